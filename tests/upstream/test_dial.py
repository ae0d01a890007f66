"""A worker's URL, how its addresses are tried, and what is said when none answers."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from relayd._fast.leg import LegOutcome
from relayd.config import WorkerTls
from relayd.readers import SettingError
from relayd.upstream.dial import Dialer, Endpoint, tls_context, words_for, words_for_tls

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
    "http://worker:99999", "//worker", "unix:/run/x.sock", "http://[::1", "http://[::1]x", "http://a b", "http://w\u00f6rker",
    "http://w,x",
]  # fmt: skip
TOO_MUCH = [
    ("http://worker/v1", "drop it, write http://worker$"),
    ("http://worker?x=1", "more than a host and a port"),
    ("http://worker#a", "more than a host and a port"),
    ("http://user:pw@worker", "before the @"),
    ("http://user@worker", "before the @"),
]


@pytest.mark.parametrize(("url", "tls", "host", "port", "header"), URLS)
def test_a_url_says_where_a_worker_is(url, tls, host, port, header):
    endpoint = Endpoint(url)
    assert (endpoint.tls, endpoint.host, endpoint.port, endpoint.host_header) == (tls, host, port, header)


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_is_refused_with_an_example(url):
    with pytest.raises(SettingError, match="write http://HOST:PORT or https://HOST") as caught:
        Endpoint(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(("url", "why"), TOO_MUCH)
def test_more_than_an_origin_is_refused(url, why):
    with pytest.raises(SettingError, match=why):
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


def tls_error(reason: str | None) -> ssl.SSLError:
    """Return an error as OpenSSL reports it."""
    error = ssl.SSLError(1, reason or "x")
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
    assert words_for_tls(tls_error(None)) == "the handshake failed"


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


class ScriptedDialer(Dialer):
    """A dialer without sockets: `reach` says what connecting to each address does."""

    def __init__(self, reach=None, found=("10.0.0.1",), timeout_s=2.0) -> None:
        super().__init__(Endpoint("http://worker:80"), None, timeout_s)
        self.reach = reach or {}
        self.found = list(found)
        self.lookups = 0
        self.tried: list[str] = []
        self.heard: list = []

    async def _connect_to(self, pool, host, port):
        self.tried.append(host)
        outcome = self.reach.get(host, "a connection")
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == "hang":
            await asyncio.get_running_loop().create_future()
        return outcome

    async def getaddrinfo(self, host, port, **options):
        self.lookups += 1
        if isinstance(self.found, Exception):
            raise self.found
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.found]

    # What a pool hears.

    def dialed(self, connection) -> None:
        self.heard.append(connection)

    def dial_failed(self, outcome, reason) -> None:
        self.heard.append((outcome, reason))


def dialed(dialer: ScriptedDialer, times: int = 1, age_s: float = 0.0) -> list:
    """Dial so many times, each with an address that was found `age_s` ago; return what the pool heard."""

    async def run() -> None:
        asyncio.get_running_loop().getaddrinfo = dialer.getaddrinfo
        for _ in range(times):
            dialer.endpoint.resolved_at = asyncio.get_running_loop().time() - age_s
            dialer.dial(dialer)
            while dialer.tasks:
                await asyncio.gather(*dialer.tasks)

    asyncio.run(run())
    return dialer.heard


REFUSED = ConnectionRefusedError(111, "Connection refused")


def test_a_dial_that_goes_well():
    dialer = ScriptedDialer()
    assert dialed(dialer) == ["a connection"]
    assert dialer.endpoint.addresses == [("10.0.0.1", 80)]


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (REFUSED, (LegOutcome.LEG_CONNECT, "connection refused")),
        (OSError(113, "No route to host"), (LegOutcome.LEG_CONNECT, "no route to host")),
        (
            tls_error("WRONG_VERSION_NUMBER"),
            (LegOutcome.LEG_TLS, words_for_tls(tls_error("WRONG_VERSION_NUMBER"))),
        ),
        ("hang", (LegOutcome.LEG_CONNECT_TIMEOUT, "did not accept a connection in time")),
        (TimeoutError(), (LegOutcome.LEG_CONNECT_TIMEOUT, "did not accept a connection in time")),
    ],
)
def test_a_dial_that_does_not(error, heard):
    assert dialed(ScriptedDialer({"10.0.0.1": error}, timeout_s=0.01)) == [heard]


def test_a_name_that_is_not_known():
    dialer = ScriptedDialer()
    dialer.found = socket.gaierror(-2, "unknown")
    assert dialed(dialer) == [(LegOutcome.LEG_CONNECT, "its name is not known")]


def test_a_name_that_cannot_be_asked_for():
    """The resolver refuses a label of more than 63 characters with an error that is no OSError."""
    dialer = ScriptedDialer()
    dialer.found = UnicodeError("label empty or too long")
    assert [outcome for outcome, _ in dialed(dialer)] == [LegOutcome.LEG_CONNECT]


def test_a_name_without_an_address():
    assert dialed(ScriptedDialer(found=())) == [(LegOutcome.LEG_CONNECT, "the name has no address")]


def test_every_address_is_tried_and_the_one_that_works_comes_first():
    dialer = ScriptedDialer({"10.0.0.1": REFUSED, "10.0.0.2": REFUSED}, ("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    assert dialed(dialer, times=2) == ["a connection"] * 2
    assert dialer.tried == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.3"]
    assert [host for host, _ in dialer.endpoint.addresses] == ["10.0.0.3", "10.0.0.1", "10.0.0.2"]


def test_when_no_address_works_the_last_reason_is_told():
    dialer = ScriptedDialer(
        {"10.0.0.1": OSError(113, "No route to host"), "10.0.0.2": REFUSED}, ("10.0.0.1", "10.0.0.2")
    )
    assert dialed(dialer) == [(LegOutcome.LEG_CONNECT, "connection refused")]


def test_a_certificate_that_is_not_trusted_is_not_shopped_around():
    dialer = ScriptedDialer({"10.0.0.1": tls_error("CERTIFICATE_VERIFY_FAILED")}, ("10.0.0.1", "10.0.0.2"))
    assert dialed(dialer)[0][0] == LegOutcome.LEG_TLS
    assert dialer.tried == ["10.0.0.1"]


def test_an_address_is_looked_up_once():
    dialer = ScriptedDialer()
    dialed(dialer, times=3, age_s=1)
    assert dialer.lookups == 1


def test_an_old_address_is_used_at_once_and_looked_up_behind_it():
    dialer = ScriptedDialer()
    dialed(dialer)
    dialer.found = ["10.0.0.9"]
    dialed(dialer, age_s=31)
    assert dialer.tried == ["10.0.0.1", "10.0.0.1"]
    assert dialer.lookups == 2
    dialed(dialer)
    assert dialer.tried[-1] == "10.0.0.9"


def test_a_look_up_that_fails_keeps_the_last_good_answer():
    dialer = ScriptedDialer()
    dialed(dialer)
    dialer.found = socket.gaierror(-3, "Temporary failure")
    assert dialed(dialer, times=2, age_s=31) == ["a connection"] * 3
    assert not dialer.refreshing


def test_a_look_up_keeps_the_address_that_works_first():
    dialer = ScriptedDialer({"10.0.0.1": REFUSED}, ("10.0.0.1", "10.0.0.2"))
    dialed(dialer, times=1)
    dialed(dialer, age_s=31)
    assert [host for host, _ in dialer.endpoint.addresses] == ["10.0.0.2", "10.0.0.1"]


def test_a_dial_that_is_cancelled_is_told():
    dialer = ScriptedDialer({"10.0.0.1": "hang"})

    async def run() -> None:
        asyncio.get_running_loop().getaddrinfo = dialer.getaddrinfo
        dialer.dial(dialer)
        for _ in range(3):
            await asyncio.sleep(0)
        for task in dialer.tasks:
            task.cancel()
        await asyncio.gather(*dialer.tasks, return_exceptions=True)

    asyncio.run(run())
    assert dialer.heard == [(LegOutcome.LEG_CONNECT, "relayd is stopping")]
