"""A Unix socket has its mode from the start, never takes another's place, and takes away only its own."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from relayd.front.paths import PathError, PathSocket


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "relayd.sock")


def connect(path: str) -> socket.socket:
    """Return a connection to a socket."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return client


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_mode_is_what_was_asked_for_whatever_umask_is(path, mode, umask):
    before = os.umask(umask)
    try:
        listener = PathSocket(path, mode)
        assert os.umask(umask) == umask, "and umask is as it was"
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode
    connect(path).close()
    listener.socket.close()


def test_what_was_left_behind_is_replaced(path):
    PathSocket(path, 0o600).socket.close()
    assert os.path.exists(path)
    listener = PathSocket(path, 0o660)
    connect(path).close()
    listener.socket.close()


def test_one_that_is_in_use_stays(path):
    first = PathSocket(path, 0o600)
    with pytest.raises(PathError, match="another process listens there") as caught:
        PathSocket(path, 0o600)
    assert caught.value.temporary
    connect(path).close()
    first.socket.close()


def test_one_whose_queue_is_full_is_in_use(path):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(path)
        with pytest.raises(PathError, match="another process listens there"):
            PathSocket(path, 0o600)
        for client in clients:
            client.close()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/nowhere", path)])
def test_what_is_no_socket_stays(path, make):
    make(path)
    with pytest.raises(PathError, match="it is no socket") as caught:
        PathSocket(path, 0o600)
    assert not caught.value.temporary
    assert os.path.lexists(path)


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(PathError, match=r"there is no directory '.*/gone'"):
        PathSocket(f"{tmp_path}/gone/x", 0o600)


def test_its_file_goes_with_it(path):
    listener = PathSocket(path, 0o600)
    listener.remove()
    assert not os.path.exists(path)
    listener.remove()
    listener.socket.close()


def test_a_file_that_is_gone_is_not_missed(path):
    listener = PathSocket(path, 0o600)
    os.unlink(path)
    listener.remove()
    listener.socket.close()


@pytest.mark.parametrize("make", [lambda path: PathSocket(path, 0o600), os.mkdir, os.mkfifo])
def test_anothers_file_stays(path, make):
    """Even one that would have got the number of the first."""
    listener = PathSocket(path, 0o600)
    os.unlink(path)
    other = make(path)
    listener.remove()
    assert os.path.exists(path)
    listener.socket.close()
    if isinstance(other, PathSocket):
        connect(path).close()
        other.remove()
        other.socket.close()
