"""Wrong settings, wrong workers, wrong ports: a sentence that helps, and never a traceback or a 500."""

from __future__ import annotations

import datetime
import json
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.dialects import OPENAI
from tests.support.gateway import Gateway, run_relayd
from tests.support.program import Program
from tests.support.upstream import Upstream, bound, reply, send, silence, stream
from tests.support.wire import Answer, ask, request
from tests.whole.conftest import Relay, question

FREE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
WORKER = ("--worker", "http://127.0.0.1:9")


def _is_refused(*arguments: str, says: str, code: int | tuple[int, ...]) -> None:
    """Run `relayd serve`; check that it ends with `code` and one helpful sentence."""
    ended = run_relayd("serve", *arguments)
    codes = code if isinstance(code, tuple) else (code,)
    assert ended.returncode in codes, ended
    assert "Traceback" not in ended.stderr
    assert says.lower() in ended.stderr.lower()
    assert any(line.startswith("relayd") for line in ended.stderr.splitlines()), ended.stderr


WRONG_URLS = [
    "not-a-url",
    "ftp://127.0.0.1:21",
    "http://",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:1/?a=b",
    "http://a b:1",
    "",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_wrong_url_is_named(url: str) -> None:
    shown = url.partition("?")[0]  # what follows may be a key
    _is_refused(*FREE, "--worker", url, says=shown or "worker", code=(1, 2))


def test_a_worker_is_needed() -> None:
    _is_refused(*FREE, says="--worker", code=2)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("nonsense=1", "nonsense"),
        ("timeouts.idel=1s", "idle"),  # did you mean
        ("timeouts.idle=soon", "soon"),
        ("timeouts.idle=1", "20s"),  # what a duration looks like
        ("policy=best", "round_robin"),
        ("idle", "KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_explained(setting: str, says: str) -> None:
    _is_refused(*FREE, *WORKER, "--set", setting, says=says, code=(1, 2))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:70000"])
def test_a_wrong_address_is_named(address: str) -> None:
    _is_refused("--listen", address, "--admin", "off", *WORKER, says=address, code=(1, 2))


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_a_port_in_use_is_named(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = "--admin" if flag == "--listen" else "--listen"
        arguments = (flag, f"127.0.0.1:{port}", other, "127.0.0.1:0", *WORKER)
        _is_refused(*arguments, says=str(port), code=75)


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0"])
def test_the_world_is_not_served_without_a_word(address: str) -> None:
    _is_refused("--listen", address, "--admin", "127.0.0.1:0", *WORKER, says="--insecure", code=(1, 2))


def test_the_world_is_served_if_that_is_meant() -> None:
    with Upstream() as upstream:
        gateway = Gateway(upstream, arguments=("--listen", "0.0.0.0:0", "--insecure"))
        with gateway:
            assert ask(gateway, request("GET", "/any")).status == 200


def test_help_and_version_are_there() -> None:
    for arguments in (["--help"], ["serve", "--help"], ["version"]):
        ended = run_relayd(*arguments)
        assert ended.returncode == 0, ended
        assert ended.stdout
        assert not ended.stderr


def test_an_unknown_command_is_a_usage_error() -> None:
    ended = run_relayd("serv")
    assert ended.returncode == 2
    assert "serve" in ended.stderr
    assert "Traceback" not in ended.stderr


# Workers that are not what they should be


def _is_told(gateway: Gateway, status: int | tuple[int, ...], *codes: str) -> Answer:
    """Ask; check that the failure is worded, has a code, and is no 500."""
    answer = ask(gateway, question(OPENAI))
    statuses = status if isinstance(status, tuple) else (status,)
    assert answer.status in statuses, answer
    error = answer.json()["error"]
    assert error["code"] in codes, error
    assert len(error["message"]) > 20
    return answer


def test_a_dead_worker_is_no_reason_not_to_start() -> None:
    held = bound()
    name = f"127.0.0.1:{held.getsockname()[1]}"
    with Gateway(f"http://{name}") as gateway:
        answer = _is_told(gateway, (502, 503), "connect_failed", "no_worker")
        assert name in answer.json()["error"]["message"]
        assert gateway.ask_admin("/livez")[0] == 200
        assert gateway.metrics().total("relayd_upstream_up", worker=name) == 0
    held.close()


def test_it_serves_as_soon_as_the_worker_is_there() -> None:
    with Upstream(listening=False) as upstream, Gateway(upstream) as gateway:
        assert ask(gateway, question(OPENAI)).status in (502, 503)
        upstream.play(reply({"ok": True}))
        upstream.listen()
        assert ask(gateway, question(OPENAI)).status == 200
        assert gateway.ask_admin("/readyz")[0] == 200


def test_one_worker_down_and_one_up_is_a_good_start() -> None:
    began = time.monotonic()
    with Upstream(listening=False) as down, Upstream() as up, Gateway(down, up) as gateway:
        up.play(reply({"ok": True}))
        assert {ask(gateway, question(OPENAI)).status for _ in range(10)} == {200}
        assert time.monotonic() - began < 10


def test_a_worker_that_does_not_answer_does_not_hold_up_the_start() -> None:
    """Models are asked for at the start; a worker that is silent then serves any."""
    held = socket.create_server(("127.0.0.1", 0))
    with Upstream() as fine, Gateway(f"http://127.0.0.1:{held.getsockname()[1]}", fine) as gateway:
        assert gateway.port
    held.close()


BANNERS = [
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"+PONG\r\n",
    b"\0\1\2\3" * 1000,
    b"220 mail ready\r\n\r\n",
    b"<html></html>\n",
]


@pytest.mark.parametrize("banner", BANNERS)
def test_a_worker_that_speaks_something_else(relay: Relay, banner: bytes) -> None:
    relay.upstream.play([send(banner), {"fin": True}])
    answer = _is_told(relay.gateway, 502, "bad_answer", "worker_reset")
    assert banner[:4] not in bytes(answer.body)


def test_a_worker_that_speaks_first() -> None:
    """A mail server's greeting comes before any request."""
    with _greeter(b"220 mail ready\r\n") as port, Gateway(f"http://127.0.0.1:{port}") as gateway:
        _is_told(gateway, 502, "bad_answer", "worker_reset", "connect_failed")


@contextmanager
def _greeter(greeting: bytes) -> Iterator[int]:
    """Greet whoever connects and close; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_greet, args=(listener, greeting), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
    thread.join(5)


def _greet(listener: socket.socket, greeting: bytes) -> None:
    listener.settimeout(0.1)
    while listener.fileno() >= 0:
        try:
            connection, _ = listener.accept()
        except OSError:
            continue
        connection.sendall(greeting)
        time.sleep(0.1)
        connection.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(authority: Authority) -> Iterator[Upstream]:
    """A worker with a certificate for its address, by an authority nobody knows."""
    with Upstream(tls=authority.server("127.0.0.1", "localhost")) as upstream:
        upstream.play(reply({"secure": True}))
        yield upstream


def test_an_unknown_authority_is_not_trusted(secure: Upstream) -> None:
    with Gateway(secure) as gateway:
        answer = _is_told(gateway, 502, "tls_error")
        assert "certificate" in answer.json()["error"]["message"]
    assert not secure.requests


def test_a_named_authority_is_trusted(secure: Upstream, authority: Authority) -> None:
    with Gateway(secure, settings={"worker_tls.ca": str(authority.file)}) as gateway:
        for _ in range(3):
            assert ask(gateway, question(OPENAI)).json() == {"secure": True}
        assert len({id(seen.connection) for seen in secure.requests}) == 1
        secure.play(stream(*OPENAI.events("a", "b")))
        assert ask(gateway, question(OPENAI, stream=True)).body == "".join(OPENAI.events("a", "b")).encode()


def test_the_systems_authorities_are_trusted(secure: Upstream, authority: Authority) -> None:
    with Gateway(secure, environment={"SSL_CERT_FILE": str(authority.file)}) as gateway:
        assert ask(gateway, question(OPENAI)).json() == {"secure": True}


def test_verification_can_be_switched_off(secure: Upstream) -> None:
    with Gateway(secure, settings={"worker_tls.verify": "off"}) as gateway:
        assert ask(gateway, question(OPENAI)).json() == {"secure": True}


def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    with Upstream(tls=authority.server("other.test")) as upstream:
        with Gateway(upstream, settings={"worker_tls.ca": str(authority.file)}) as gateway:
            _is_told(gateway, 502, "tls_error")
        assert not upstream.requests


def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    expired = authority.server("127.0.0.1", valid_for=datetime.timedelta(days=-1))
    with Upstream(tls=expired) as upstream:
        with Gateway(upstream, settings={"worker_tls.ca": str(authority.file)}) as gateway:
            _is_told(gateway, 502, "tls_error")
        assert not upstream.requests


def test_TLS_on_a_plain_port(secure: Upstream) -> None:
    """The worker wants TLS, its URL says http: somebody forgot an s."""
    with Gateway(f"http://{secure.name}") as gateway:
        _is_told(gateway, 502, "bad_answer", "worker_reset")


def test_a_plain_worker_behind_an_https_url() -> None:
    with (
        _greeter(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        Gateway(f"https://127.0.0.1:{port}") as gateway,
    ):
        _is_told(gateway, 502, "tls_error")


def test_a_plain_worker_that_waits_for_the_end_of_the_handshake() -> None:
    settings = {"resilience.timeouts.connect": "500ms"}
    with Upstream() as upstream, Gateway(f"https://{upstream.name}", settings=settings) as gateway:
        _is_told(gateway, (502, 504), "tls_error", "connect_timeout")
        assert not upstream.requests


def test_a_handshake_that_never_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with Gateway(url, settings={"resilience.timeouts.connect": "500ms"}) as gateway:
            _is_told(gateway, (502, 504), "connect_timeout", "tls_error")


def test_a_connect_that_never_ends() -> None:
    """A full backlog swallows the handshake of TCP."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        with Gateway(url, settings={"resilience.timeouts.connect": "500ms"}) as gateway:
            _is_told(gateway, 504, "connect_timeout")
        for filler in fillers:
            filler.close()


# The admin port


def test_the_admin_port_says_how_it_is(relay: Relay) -> None:
    for page in ("/healthz", "/livez", "/readyz"):
        assert relay.gateway.ask_admin(page)[0] == 200
    assert relay.gateway.ask_admin("/nothing")[0] == 404


def test_the_metrics_have_their_names(relay: Relay) -> None:
    relay.ask(OPENAI)
    relay.upstream.play(stream(*OPENAI.events("a")))
    relay.ask(OPENAI, stream=True)
    relay.gateway.wait_idle()
    declared = re.findall(r"(?m)^# TYPE (\S+) ", relay.gateway.metrics().text)
    assert set(declared) >= {
        "relayd_requests_total",
        "relayd_in_flight",
        "relayd_ttft_seconds",
        "relayd_overhead_seconds",
        "relayd_decision_seconds",
        "relayd_request_duration_seconds",
        "relayd_client_disconnects_total",
        "relayd_legs_total",
        "relayd_tokens_total",
        "relayd_upstream_up",
        "relayd_retries_total",
        "relayd_build_info",
    }


def test_labels_are_bounded(relay: Relay) -> None:
    """A client that makes up models and paths does not make up series."""
    for number in range(300):
        ask(relay.gateway, request("GET", f"/made/up/{number}"))
        if number % 3 == 0:
            relay.ask(OPENAI, model=f"made-up-{number}")
    relay.gateway.wait_idle()
    assert len(relay.gateway.metrics().samples) < 1500


def test_the_admin_port_can_be_left_out() -> None:
    with Upstream() as upstream, Gateway(upstream, arguments=("--admin", "off")) as gateway:
        assert gateway.admin_port == 0
        assert ask(gateway, request("GET", "/any")).status == 200


def test_no_question_is_sent_after_the_start(start: Callable[..., Relay]) -> None:
    relay = start()
    probes = len(relay.upstream.probes)
    time.sleep(1.5)
    assert len(relay.upstream.probes) == probes
    assert not relay.upstream.requests


def test_models_are_those_of_all_workers() -> None:
    with (
        Upstream(models=["a", "b"]) as first,
        Upstream(models=["b", "c"]) as second,
        Gateway(first, second) as gateway,
    ):
        answer = ask(gateway, request("GET", "/v1/models"))
    assert answer.status == 200
    assert sorted(model["id"] for model in answer.json()["data"]) == ["a", "b", "c"]


def test_a_worker_may_have_a_name() -> None:
    with Upstream() as upstream, Gateway(f"gpu-0={upstream.url}") as gateway:
        assert ask(gateway, request("GET", "/any")).header("x-relayd-worker") == "gpu-0"


def test_a_silent_worker_is_not_a_crash(start: Callable[..., Relay]) -> None:
    relay = start(1, {"resilience.timeouts.first_token": "300ms"})
    relay.upstream.play([silence()])
    _is_told(relay.gateway, 504, "first_token_timeout")


# Unix sockets

READY_THERE = re.compile(r"listening on unix:(\S+?)(?:, admin on (\S+))?\n")


def _ask_there(path: str, page: str, lines: str = "") -> bytes:
    """Return what a Unix socket answers to a GET."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(path)
        client.sendall(f"GET {page} HTTP/1.1\r\nHost: relayd\r\n{lines}Connection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def _serve_there(upstream: Upstream, folder: Path, *arguments: str) -> Program:
    places = ("--listen", f"unix:{folder}/relayd.sock", "--admin", f"unix:{folder}/admin.sock")
    return Program(READY_THERE, "serve", *places, "--worker", upstream.url, *arguments)


def test_clients_and_admin_come_by_unix_sockets(tmp_path: Path) -> None:
    sockets = [tmp_path / "relayd.sock", tmp_path / "admin.sock"]
    with Upstream() as upstream, _serve_there(upstream, tmp_path, "--set", "drain_delay=0") as relayd:
        assert [stat.S_IMODE(path.stat().st_mode) for path in sockets] == [0o660, 0o660]
        assert b"HTTP/1.1 200 OK" in _ask_there(str(sockets[0]), "/any")
        assert b"HTTP/1.1 200 OK" in _ask_there(str(sockets[1]), "/livez")
        relayd.signal(signal.SIGTERM)
        assert relayd.wait() == 0
    assert not any(path.exists() for path in sockets)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_proxy_on_a_socket_says_who_asks_if_it_is_trusted(tmp_path: Path, trusted: bool) -> None:
    log = tmp_path / "log"
    settings = ["--set", f"log.sinks=file:{log}", *(["--set", "trusted_proxies=unix"] if trusted else [])]
    with Upstream() as upstream, _serve_there(upstream, tmp_path, *settings):
        _ask_there(f"{tmp_path}/relayd.sock", "/any", "X-Forwarded-For: 192.0.2.7\r\n")
        head = upstream.requests[-1].head.lower()
    assert json.loads(log.read_text())["client"] == ("192.0.2.7" if trusted else "unix")
    assert (b"x-forwarded-for: 192.0.2.7, unix" if trusted else b"x-forwarded-for: unix") in head


def test_the_mode_of_a_socket_is_a_setting(tmp_path: Path) -> None:
    with Upstream() as upstream, _serve_there(upstream, tmp_path, "--set", "socket_mode=600"):
        assert stat.S_IMODE((tmp_path / "relayd.sock").stat().st_mode) == 0o600


def test_a_socket_in_use_is_named_and_stays(tmp_path: Path) -> None:
    place = f"unix:{tmp_path}/relayd.sock"
    with Upstream() as upstream, _serve_there(upstream, tmp_path):
        _is_refused("--listen", place, "--admin", "off", *WORKER, says=f"{place}: another process", code=75)
        assert b"HTTP/1.1 200 OK" in _ask_there(f"{tmp_path}/relayd.sock", "/any")


def test_what_a_crash_left_behind_is_replaced(tmp_path: Path) -> None:
    with Upstream() as upstream:
        with _serve_there(upstream, tmp_path) as relayd:
            relayd.kill()
        assert (tmp_path / "relayd.sock").exists()
        with _serve_there(upstream, tmp_path):
            assert b"HTTP/1.1 200 OK" in _ask_there(f"{tmp_path}/relayd.sock", "/any")


def test_a_start_that_fails_leaves_no_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        admin = f"127.0.0.1:{taken.getsockname()[1]}"
        place = ("--listen", f"unix:{tmp_path}/relayd.sock")
        _is_refused(*place, "--admin", admin, *WORKER, says="in use", code=75)
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_kind_stays(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    _is_refused("--listen", f"unix:{tmp_path}/x", "--admin", "off", *WORKER, says="it is no socket", code=1)
    assert (tmp_path / "x").read_text() == "mine"


# What check says, serve says


CASES = [
    ("auth: {keys: keys.yaml}\n", "keys.yaml:2:3: there is no field 'tennant'"),
    ("auth: {jwt: {public_key: keys.yaml, audience: a}}\n", "keys.yaml: it has no PEM public key"),
    ("tls: {cert: keys.yaml, key: keys.yaml}\n", "keys.yaml: it has no PEM certificate"),
    ("worker_tls: {ca: keys.yaml}\n", "keys.yaml: it has no PEM certificate"),
    ("listen: 127.0.0.1:9901\n", "listen: admin is there, too"),
    ("passthrough: {/: m}\n", "there is no model 'm'"),
    ("log: {sinks: ['file:gone/x']}\n", "gone/x: there is no such directory"),
    ("listen: unix:x.sock\n", "must begin with /"),
]


@pytest.mark.parametrize(("text", "says"), CASES)
def test_serve_and_check_refuse_the_same(tmp_path: Path, text: str, says: str) -> None:
    keys, file = tmp_path / "keys.yaml", tmp_path / "relayd.yaml"
    keys.write_text(f"- sha256: {'0f' * 32}\n  tennant: a\n")
    keys.chmod(0o600)
    file.write_text("workers: {w: {url: 'http://127.0.0.1:9'}}\n" + text)
    checked = run_relayd("check", "-q", str(file))
    served = run_relayd("serve", "--config", str(file))
    assert (checked.returncode, served.returncode) == (1, 1)
    assert says in checked.stdout
    assert checked.stdout.startswith(f"{file}:2:")
    assert served.stderr.splitlines()[1:] == checked.stdout.splitlines()


def test_a_warning_is_said_once(tmp_path: Path) -> None:
    keys, file = tmp_path / "keys.yaml", tmp_path / "relayd.yaml"
    keys.write_text("")
    keys.chmod(0o644)
    file.write_text("workers: {w: {url: 'http://127.0.0.1:9'}}\nauth: {keys: keys.yaml}\n")
    ready = re.compile(r"listening on ")
    with Program(ready, "serve", "--config", str(file), *FREE) as relayd:
        assert relayd.stderr.count("everybody on this machine can read it") == 1
        assert relayd.stderr.count("nobody can use a key") == 1
