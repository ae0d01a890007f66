"""Unix sockets that relayd listens on: made with the right mode, told from those in use, taken away again.

A socket's file outlives who made it.  So a file at which nobody answers is one that was left behind, and is
replaced; one at which somebody does is not touched.  At the end the file goes, unless it is another's now.
"""

from __future__ import annotations

import os
import socket
import stat

from relayd.readers import quoted

BACKLOG = 4096


class PathError(Exception):
    """A path cannot be listened on; `temporary` if it is only in use."""

    def __init__(self, message: str, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


class PathSocket:
    """A listening Unix socket and the file that leads to it.

    The file is held open as well: so its number is given to no other file, and tells it from any other.
    """

    def __init__(self, path: str, mode: int) -> None:
        """Listen at `path`.

        Raises:
            PathError: that cannot be done.
        """
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            make_room(path)
            bind(self.socket, path, mode)
            self._file: int | None = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.socket.listen(BACKLOG)
        except OSError as error:
            self.socket.close()
            raise PathError(f"it cannot be made: {(error.strerror or str(error)).lower()}") from None
        except PathError:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def remove(self) -> None:
        """Take the file away if it still leads to this socket.

        To be called while the socket is open: nobody replaces a file that answers.
        """
        if self._file is None:
            return
        try:
            if os.path.samestat(os.fstat(self._file), os.lstat(self.path)):
                os.unlink(self.path)
        except OSError:
            pass  # it is gone already, or not ours to remove any more
        os.close(self._file)
        self._file = None


def make_room(path: str) -> None:
    """Take away a socket that was left behind.

    Raises:
        PathError: there is something else, or somebody answers.
    """
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise PathError(f"there is no directory {quoted(directory)}; make it, or name another")
    if not has_socket(path):
        return
    if not is_left_behind(path):
        raise PathError("another process listens there; stop it, or choose another path", temporary=True)
    os.unlink(path)


def has_socket(path: str) -> bool:
    """True if there is a socket at `path`, False if there is nothing.

    Raises:
        PathError: there is another kind of file, which is not ours to remove.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    if not stat.S_ISSOCK(mode):
        raise PathError(
            "there is a file of that name, and it is no socket; choose another path, or remove it"
        )
    return True


def is_left_behind(path: str) -> bool:
    """True if nobody listens on a socket any more; a queue that is full, or a lock, is somebody's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def bind(listener: socket.socket, path: str, mode: int) -> None:
    """Make the file, with `mode` from its first moment; umask is for all threads, so before there are any."""
    old = os.umask(0o777 & ~mode)
    try:
        listener.bind(path)
    finally:
        os.umask(old)
