"""A gateway that cannot be made says what to change; one that was made gives everything back."""

from __future__ import annotations

import argparse
import asyncio
import errno
import socket

import pytest

from relayd import server
from relayd.commands import serve
from relayd.commands.serve import read_settings, read_worker
from relayd.config import Settings, apply
from relayd.readers import SettingError, is_loopback
from relayd.server import Gateway, ListenError, check_parser, listen_error, shown


def arguments(*words: str) -> argparse.Namespace:
    """Return what `relayd serve` makes of `words`."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(["--worker", "http://127.0.0.1:1", *words])


# --- the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "10.0.0.1:8000", "http://10.0.0.1:8000/"),
        ("https://api.example.com", "api.example.com", "https://api.example.com"),
        ("a100-0=http://10.0.0.1:8000", "a100-0", "http://10.0.0.1:8000"),
        ("a_1.b=http://w", "a_1.b", "http://w"),
        ("http://w/?a=b", "w/?a=b", "http://w/?a=b"),  # refused later, for what is in it
    ],
)
def test_a_worker_has_a_name_and_a_url(text, name, url):
    assert read_worker(text) == (name, url)


@pytest.mark.parametrize(
    "text",
    [
        "=http://w",
        "a b=http://w",
        "a,b=http://w",
        'a"=http://w',
        "-=http://w",
        "\n=http://w",
        "w\u00f6rker=http://w",
    ],
)
def test_a_name_that_is_none(text):
    with pytest.raises(SettingError, match="a name is letters, digits, dots and dashes"):
        read_worker(text)


def test_settings_come_from_the_command_line():
    settings = read_settings(
        arguments(
            "--listen",
            "127.0.0.1:1",
            "--admin",
            "off",
            "--set",
            "policy=least_conn",
            "--set",
            "timeouts.idle=1s",
        )
    )
    assert (settings.listen, settings.admin, settings.policy) == ("127.0.0.1:1", "off", "least_conn")
    assert settings.resilience.timeouts.idle == 1.0


def test_later_settings_win_and_options_win_over_them():
    settings = read_settings(
        arguments("--set", "policy=a", "--set", "policy=b", "--set", "admin=off", "--admin", "127.0.0.1:1")
    )
    assert (settings.policy, settings.admin) == ("b", "127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [["--set", "nonsense"], ["--set", "no=1"], ["--listen", "8080"], ["--admin", "x"], ["--listen", "off"]],
)
def test_settings_that_cannot_be_used(words):
    with pytest.raises(SettingError):
        read_settings(arguments(*words))


@pytest.mark.parametrize("listen", ["0.0.0.0:80", ":80", "10.0.0.1:80", "[::]:80", "example.com:80"])
def test_nobody_is_authenticated_beyond_this_machine_by_mistake(listen):
    with pytest.raises(SettingError, match="--insecure"):
        read_settings(arguments("--listen", listen))
    assert read_settings(arguments("--listen", listen, "--insecure")).listen == listen


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "words",
    [["--set", "no=1"], ["--set", "policy=least_con"], ["--worker", "nonsense"], ["--worker", "http://["]],
)
def test_a_wrong_setting_is_one_line_and_code_1(words, capsys):
    assert serve.run(arguments(*words)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("relayd: ")
    assert said.err.count("\n") == 1


# --- making one ---------------------------------------------------------------------------------------

LOCAL = apply(apply(Settings(), "listen=127.0.0.1:0"), "admin=127.0.0.1:0")
NOBODY = [("a", "http://127.0.0.1:1")]


def test_a_policy_that_is_not_there():
    with pytest.raises(SettingError, match=r"policy: 'least_con' is not one of .*did you mean 'least_conn'"):
        Gateway(apply(Settings(), "policy=least_con"), NOBODY)


def test_two_workers_of_one_name():
    with pytest.raises(SettingError, match="two workers have the same name"):
        Gateway(LOCAL, [*NOBODY, ("a", "http://127.0.0.1:2")])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "http://",
        "http://[::1",
        "http://w/path",
        "ftp://w",
        "http://w\u00f6rker",
        "http://a b",
    ],
)
def test_a_url_that_is_none(url):
    async def make_and_start() -> None:
        gateway = Gateway(LOCAL, [("a", url)])
        await gateway.start()
        await gateway.stop()

    with pytest.raises(SettingError, match=r"has a path|is not a URL"):
        asyncio.run(make_and_start())


def test_authorities_that_cannot_be_read():
    with pytest.raises(SettingError, match=r"worker_tls\.ca"):
        Gateway(apply(LOCAL, "worker_tls.ca=/nonexistent"), [("a", "https://w")])
    Gateway(apply(LOCAL, "worker_tls.ca=/nonexistent"), NOBODY)  # nobody asks


def test_aiohttps_slow_parser_is_refused(monkeypatch):
    check_parser()
    monkeypatch.setattr(server.http_parser, "HttpRequestParser", server.http_parser.HttpRequestParserPy)
    with pytest.raises(SettingError, match="without its compiled parser"):
        check_parser()


# --- listening ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "temporary", "words"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), True, "is in use already"),
        (OSError(errno.EACCES, "Permission denied"), False, "needs privileges"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), False, "cannot listen on"),
        (OSError("[Errno 98] error while attempting to bind: address already in use"), True, "is in use"),
        (OSError(), False, "cannot listen on"),
    ],
)
def test_says_why_it_cannot_listen(error, temporary, words):
    failed = listen_error("listen", "127.0.0.1:80", error)
    assert failed.temporary is temporary
    assert words in str(failed)
    assert str(failed).startswith("listen: ")
    assert "127.0.0.1:80" in str(failed)


@pytest.mark.parametrize(
    ("address", "text"), [(("127.0.0.1", 80), "127.0.0.1:80"), (("::1", 80, 0, 0), "[::1]:80")]
)
def test_shows_an_address(address, text):
    assert shown(address) == text


@pytest.mark.parametrize("setting", ["listen", "admin"])
def test_a_port_in_use(setting):
    async def start(port: int) -> None:
        gateway = Gateway(apply(LOCAL, f"{setting}=127.0.0.1:{port}"), NOBODY)
        try:
            await gateway.start()
        finally:
            await gateway.stop()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ListenError, match=f"^{setting}: .* in use") as caught:
            asyncio.run(start(taken.getsockname()[1]))
    assert caught.value.temporary


@pytest.mark.parametrize("admin", ["off", "127.0.0.1:0"])
def test_starts_and_stops(admin):
    async def run() -> tuple[str, str]:
        gateway = Gateway(apply(LOCAL, f"admin={admin}"), NOBODY)
        await gateway.start()
        addresses = gateway.address, gateway.admin_address
        assert await gateway._checks() == [("accepting", True), ("workers", False)], "nobody listens there"
        await gateway.stop()
        assert (await gateway._checks())[0] == ("accepting", False)
        return addresses

    address, admin_address = asyncio.run(run())
    assert int(address.rpartition(":")[2]) > 0
    assert bool(admin_address) is (admin != "off")


def test_two_gateways_in_one_process():
    async def run() -> None:
        pair = [Gateway(LOCAL, NOBODY), Gateway(LOCAL, NOBODY)]
        for gateway in pair:
            await gateway.start()
        assert pair[0].address != pair[1].address
        assert pair[0].pseudonym != pair[1].pseudonym
        for gateway in pair:
            await gateway.stop()

    asyncio.run(run())


def test_a_drain_with_nobody_there_takes_no_time():
    async def run() -> None:
        gateway = Gateway(apply(LOCAL, "drain_delay=0"), NOBODY)
        await gateway.start()
        await gateway.drain()
        assert (await gateway._checks())[0] == ("accepting", False)
        await gateway.stop()

    asyncio.run(run())


def test_a_worker_that_comes_up_later_makes_relayd_ready(monkeypatch):
    """A balancer's question is the only thing that makes relayd look again."""

    async def run() -> None:
        gateway = Gateway(LOCAL, NOBODY)
        await gateway.start()
        looked = []

        async def look_at(workers) -> None:
            looked.append(list(workers))
            gateway.workers[0].up = True

        monkeypatch.setattr(gateway.discovery, "look_at", look_at)
        assert await gateway._checks() == [("accepting", True), ("workers", True)]
        assert await gateway._checks() == [("accepting", True), ("workers", True)]
        assert looked == [gateway.workers], "asked once: a worker that is up is not looked at"
        await gateway.stop()

    asyncio.run(run())
