"""A worker's URL, how its addresses are tried, and what is said when none answers."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from relayd._fast.leg import Connection, LegOutcome, Pool
from relayd.config import SettingError, WorkerTls
from relayd.upstream import dial
from relayd.upstream.dial import Dialer, Endpoint, tls_context, words_for, words_for_tls
from tests.fast.stage import FakeTransport

# --- URLs ---------------------------------------------------------------------------------------------

URLS = [
    ("http://10.0.0.1:8000", False, "10.0.0.1", 8000, b"10.0.0.1:8000"),
    ("http://worker", False, "worker", 80, b"worker"),
    ("http://worker:80/", False, "worker", 80, b"worker"),
    ("https://api.example.com", True, "api.example.com", 443, b"api.example.com"),
    ("https://api.example.com:443", True, "api.example.com", 443, b"api.example.com"),
    ("https://api.example.com:8443", True, "api.example.com", 8443, b"api.example.com:8443"),
    ("http://worker:443", False, "worker", 443, b"worker:443"),
    ("http://[::1]:8000", False, "::1", 8000, b"[::1]:8000"),
    ("http://[::1]", False, "::1", 80, b"[::1]"),
    ("HTTP://Worker:1", False, "worker", 1, b"worker:1"),
]
NO_URLS = [
    "", "worker", "worker:8000", "10.0.0.1:8000", "ftp://worker", "http://", "http://:80", "http://worker:port",
    "http://worker:99999", "//worker", "unix:/run/x.sock",
]  # fmt: skip
TOO_MUCH = ["http://worker/v1", "http://worker?x=1", "http://worker#a", "http://user:pw@worker", "http://user@worker"]


@pytest.mark.parametrize(("url", "tls", "host", "port", "header"), URLS)
def test_a_url_says_where_a_worker_is(url, tls, host, port, header):
    endpoint = Endpoint(url)
    assert (endpoint.tls, endpoint.host, endpoint.port, endpoint.host_header) == (tls, host, port, header)


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_is_refused_with_an_example(url):
    with pytest.raises(SettingError, match="write http://HOST:PORT or https://HOST") as caught:
        Endpoint(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize("url", TOO_MUCH)
def test_more_than_an_origin_is_refused(url):
    with pytest.raises(SettingError, match="leave the rest away"):
        Endpoint(url)


# --- words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "its name is not known"),
        (ConnectionResetError(104, "reset"), "the connection was reset"),
        (OSError(113, "No route to host"), "no route to host"),
        (OSError("All went wrong"), "all went wrong"),
        (OSError(), "oserror"),
    ],
)
def test_says_why_there_is_no_connection(error, words):
    assert words_for(error) == words


def tls_error(reason: str) -> ssl.SSLError:
    """Return an error as OpenSSL reports it."""
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize("reason", ["WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"])
def test_says_that_a_port_is_plain(reason):
    assert "begin with http://" in words_for_tls(tls_error(reason))


def test_says_why_a_certificate_is_not_trusted():
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "self-signed certificate"
    assert words_for_tls(error) == "its certificate is not trusted: self-signed certificate"


def test_says_what_else_went_wrong_in_a_handshake():
    assert words_for_tls(tls_error("TLSV1_ALERT_INTERNAL_ERROR")) == "tlsv1 alert internal error"
    assert words_for_tls(ssl.SSLError(1, "x")) == "the handshake failed"


# --- TLS ----------------------------------------------------------------------------------------------


def test_certificates_are_checked_unless_told_otherwise():
    context = tls_context(WorkerTls())
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    context = tls_context(WorkerTls(verify=False))
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)


def test_authorities_that_cannot_be_read(tmp_path):
    for text in (None, "not a certificate"):
        path = tmp_path / "ca.pem"
        if text is not None:
            path.write_text(text)
        with pytest.raises(SettingError, match=r"worker_tls\.ca"):
            tls_context(WorkerTls(ca=str(path)))


# --- dialing ------------------------------------------------------------------------------------------


class FakeLoop:
    """The parts of a loop that a dialer asks for: `reach` says what connecting to an address does."""

    def __init__(self, found: list, reach: dict) -> None:
        self.found, self.reach, self.now = found, reach, 0.0
        self.lookups = 0
        self.tried: list[tuple] = []
        self.real = asyncio.get_running_loop()

    def time(self) -> float:
        return self.now

    def create_task(self, work):
        return self.real.create_task(work)

    async def getaddrinfo(self, host, port, type):  # noqa: A002
        self.lookups += 1
        if isinstance(self.found, Exception):
            raise self.found
        return [(socket.AF_INET, type, 6, "", (address, port)) for address in self.found]

    async def create_connection(self, make, host, port, **tls):
        self.tried.append((host, port))
        outcome = self.reach.get(host)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == "hang":
            await asyncio.get_event_loop_policy().get_event_loop().create_future()
        connection = make()
        connection.connection_made(FakeTransport())
        return None, connection


class FakePool:
    """Hears what became of a dial."""

    def __init__(self) -> None:
        self.pool = Pool("w", b"w", None)
        self.heard: list = []


def dialing(monkeypatch, scenario, found=("10.0.0.1",), reach=None, url="http://worker:80", timeout_s=2.0):
    """Run `scenario(loop, dialer, dial)`; `dial` makes one dial and returns what the pool heard of it."""
    heard: list = []

    async def run():
        loop = FakeLoop(found if isinstance(found, Exception) else list(found), reach or {})
        monkeypatch.setattr(dial.asyncio, "get_running_loop", lambda: loop)
        dialer = Dialer(Endpoint(url), None, timeout_s)
        pool = Pool("w", b"w", dialer.dial)
        try:
            await scenario(loop, dialer, pool)
        finally:
            monkeypatch.undo()

    asyncio.run(run())
    return heard


async def one_dial(dialer, pool):
    """Dial once on a pool that reports; return ("made", connection) or (outcome, reason)."""
    result: list = []

    class Hearing:
        def dialed(self, connection):
            result.append(("made", connection))

        def dial_failed(self, outcome, reason):
            result.append((outcome, reason))

    await dialer._dial(Hearing()) if not isinstance(pool, Pool) else await dialer._dial(pool)
    return result[0] if result else None
