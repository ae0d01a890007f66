"""Keys that live behind a URL: late, gone, changed, or asked for by a flood of tokens that nobody signed."""

from __future__ import annotations

import gzip
import itertools
import json
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from tests.support import procs
from tests.support.gateway import Gateway
from tests.support.upstream import Gate, Script, Upstream, head, reply, send
from tests.support.waiting import eventually
from tests.support.wire import Client, ask, request

SETTINGS = """
auth:
  failures: off
  jwt: {{algorithms: [RS256], jwks: "{keys}/keys.json", audience: relayd}}
workers:
  one: {{url: "{worker}"}}
"""


@pytest.fixture(scope="module")
def keys() -> dict[str, RSAPrivateKey]:
    return {kid: generate_private_key(65537, 2048) for kid in ("old", "new")}


class Place:
    """An issuer, a worker, and a relayd between them."""

    gateway: Gateway

    def __init__(self, folder: Path, keys: dict[str, RSAPrivateKey]) -> None:
        self.keys = keys
        self.issuer, self.worker = Upstream(listening=False), Upstream()
        self.worker.play(reply({}))
        self.file = folder / "relayd.yaml"
        self.file.write_text(SETTINGS.format(keys=self.issuer.url, worker=self.worker.url))

    def publish(self, *kids: str) -> None:
        """Let the issuer answer with these public keys."""
        self.issuer.play(reply({"keys": [public(self.keys[kid], kid) for kid in kids]}))

    def token(self, kid: str, signed_by: str = "", **claims: Any) -> str:
        said = {"sub": "acme", "aud": "relayd", "exp": time.time() + 300, **claims}
        return jwt.encode(said, self.keys[signed_by or kid], algorithm="RS256", headers={"kid": kid})

    def status(self, token: str) -> int:
        return ask(self.gateway, bearer(token)).status

    def start(self) -> None:
        self.gateway = Gateway(arguments=("--config", str(self.file)))

    def is_ready(self) -> bool:
        return self.gateway.ask_admin("/readyz")[0] == 200

    def close(self) -> None:
        self.gateway.close()
        self.issuer.close()
        self.worker.close()


def public(key: RSAPrivateKey, kid: str, **more: Any) -> dict[str, Any]:
    """Return a key as an issuer publishes it."""
    return {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", **more}


def encoded(text: str) -> str:
    return jwt.utils.base64url_encode(text.encode()).decode()


def bearer(token: str) -> bytes:
    """Return the bytes of a request with this token."""
    return request("GET", "/x", ("Authorization", f"Bearer {token}"))


@pytest.fixture
def place(tmp_path: Path, keys: dict[str, RSAPrivateKey]) -> Iterator[Place]:
    place = Place(tmp_path, keys)
    yield place
    place.close()


def test_without_keys_nobody_is_let_in_and_relayd_is_not_ready(place: Place) -> None:
    place.start()
    status, why = place.gateway.ask_admin("/readyz?verbose")
    assert (status, "[-]keys" in why) == (503, True)
    assert place.status(place.token("old")) == 503
    assert place.worker.requests == []
    place.publish("old")
    place.issuer.listen()
    eventually(place.is_ready, 15, "ready once the keys are there")
    assert place.status(place.token("old")) == 200


def test_a_new_key_is_fetched_when_it_is_first_used(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(place.is_ready, 5, "ready")
    assert place.status(place.token("old")) == 200
    place.publish("old", "new")
    assert place.status(place.token("new")) == 200, "it waited for the keys"
    assert place.status(place.token("new", signed_by="old")) == 401


def test_a_url_that_hangs_holds_up_nobody_whose_key_is_known(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(place.is_ready, 5, "ready")
    gate = Gate()
    place.issuer.play([{"gate": gate}, *reply({"keys": []})])
    before = len(place.issuer.requests)
    with ThreadPoolExecutor(1) as pool:
        stranger = pool.submit(place.status, place.token("new"))
        eventually(lambda: len(place.issuer.requests) > before, 5, "a fetch for the stranger")
        meanwhile = []
        while not stranger.done():
            meanwhile.append(place.status(place.token("old", jti=str(len(meanwhile)))))
        assert set(meanwhile) == {200}
        assert stranger.result() == 401, "in the end it is refused, not let in"
    assert place.is_ready()
    gate.open()


def test_keys_that_come_slowly_at_the_start_are_waited_for(place: Place) -> None:
    gate = Gate()
    place.issuer.play([{"gate": gate}, *reply({"keys": [public(place.keys["old"], "old")]})])
    place.issuer.listen()
    place.start()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(place.status, place.token("old"))
        eventually(lambda: place.issuer.requests, 5, "the first fetch")
        assert not place.is_ready()
        gate.open()
        assert early.result(10) == 200
    assert place.is_ready()


def test_a_rotation_under_load_refuses_no_good_token(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(place.is_ready, 5, "ready")
    statuses: list[int] = []
    stop = threading.Event()

    def ask_on(kid: str) -> None:
        """Ask with a token that was never seen before, until told to stop and ten times at least."""
        with Client.to(place.gateway) as client:
            for number in itertools.count():
                if number >= 10 and stop.is_set():
                    break
                token = place.token(kid, jti=f"{threading.get_ident()} {number}")
                statuses.append(client.ask(bearer(token)).status)

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_on, "old") for _ in range(3)]
        eventually(lambda: len(statuses) > 30, 10, "the old key is in use")
        place.publish("old", "new")
        asking += [pool.submit(ask_on, "new") for _ in range(5)]
        eventually(lambda: len(statuses) > 300, 20, "both are")
        stop.set()
        for one in asking:
            one.result(20)
    assert set(statuses) == {200}
    assert len(place.issuer.requests) == 2, "all who came with the new key waited for the same fetch"


FORGERS = 4
FORGED_BY_EACH = 1000


def test_a_flood_of_unknown_kids_makes_one_fetch_and_good_tokens_are_answered(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(place.is_ready, 5, "ready")
    before = len(place.issuer.requests)
    _, _, rest = place.token("old").partition(".")

    def unknown(number: int) -> bytes:
        return bearer(encoded(json.dumps({"alg": "RS256", "kid": f"k{number}"})) + "." + rest)

    def flood(first: int) -> list[int]:
        """Send many in one go, and read the answers."""
        numbers = range(first, first + FORGED_BY_EACH)
        with Client.to(place.gateway) as client:
            statuses = []
            for start in numbers[::100]:
                client.send(b"".join(map(unknown, range(start, start + 100))))
                statuses += [client.read().status for _ in range(100)]
            return statuses

    with ThreadPoolExecutor(FORGERS) as pool, Client.to(place.gateway) as client:
        floods = [pool.submit(flood, number * FORGED_BY_EACH) for number in range(FORGERS)]
        good = []
        while not all(one.done() for one in floods) or len(good) < 100:
            good.append(client.ask(bearer(place.token("old", jti=str(len(good))))).status)
        assert set(good) == {200}
        assert all(one.result() == [401] * FORGED_BY_EACH for one in floods)
    assert len(place.issuer.requests) - before == 1
    refused = place.gateway.metrics().total("relayd_auth_refusals_total", reason="unknown_kid")
    assert refused == FORGERS * FORGED_BY_EACH


def test_the_last_keys_serve_while_the_issuer_is_away(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(place.is_ready, 5, "ready")
    place.issuer.refuse()
    assert place.status(place.token("old")) == 200
    assert place.status(place.token("new")) == 401
    assert place.gateway.ask_admin("/readyz")[0] == 200


# --- hostile issuers -----------------------------------------------------------------------------------

MIB = 1 << 20
SECRET = "a secret that whoever reads the key set can read as well"
WEAK = generate_private_key(65537, 1024)
FORGER = generate_private_key(65537, 2048)
HONEST_LOOKING = public(FORGER, "forged")


def forged(key: Any = FORGER, algorithm: str = "RS256") -> str:
    said = {"sub": "acme", "aud": "relayd", "exp": time.time() + 300}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a key is weak
        return jwt.encode(said, key, algorithm=algorithm, headers={"kid": "forged"})


def keys_of(*rows: Any) -> Script:
    return reply({"keys": list(rows)})


def endless(*headers: tuple[str, str], piece: str = "x" * MIB, times: int = 1 << 20) -> Script:
    """Return the script of an answer that begins as a key set and then does not end."""
    document = json.dumps({"keys": [HONEST_LOOKING]})
    return [head(200, *headers), send(document), {**send(piece), "repeat": times}]


HUNDRED_MIB = str(100 * MIB + len(json.dumps({"keys": [HONEST_LOOKING]})))
BOMB = gzip.compress(b" " * (200 * MIB))

HOSTILE: dict[str, tuple[Script, str]] = {
    "100 MiB": (endless(("content-length", HUNDRED_MIB), times=100), forged()),
    "no end": (endless(), forged()),
    "no end, slowly": (
        [head(200), send(json.dumps({"keys": [HONEST_LOOKING]})), *[send(" "), {"sleep": 0.1}] * 100],
        forged(),
    ),
    "a head without an end": (
        [send("HTTP/1.1 200 OK\r\n"), {**send("X-Y: z\r\n"), "repeat": 1 << 20}],
        forged(),
    ),
    "a bomb": (reply(BOMB, 200, ("content-encoding", "gzip")), forged()),
    "less than it said": (
        [head(200, ("content-length", "10000")), send(json.dumps({"keys": [HONEST_LOOKING]})), {"fin": True}],
        forged(),
    ),
    "deep lists": (reply(b'{"keys":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), forged()),
    "deep objects": (reply(b'{"keys":' * 25_000 + b"1" + b"}" * 25_000), forged()),
    "10,000 keys": (keys_of(HONEST_LOOKING, *[{}] * 9_999), forged()),
    "not JSON": (reply(b"<html>It works!</html>"), forged()),
    "not UTF-8": (reply(b'{"keys": ["\xff\xfe"]}'), forged()),
    "a list": (reply([HONEST_LOOKING]), forged()),
    "keys by name": (reply({"keys": {"forged": HONEST_LOOKING}}), forged()),
    "numbers for keys": (keys_of(HONEST_LOOKING, 1, 2), forged()),
    "numbers for texts": (keys_of({**HONEST_LOOKING, "n": 65537, "e": 3}), forged()),
    "a number for a kid": (keys_of({**HONEST_LOOKING, "kid": 1}), forged()),
    "two documents": (reply(json.dumps({"keys": [HONEST_LOOKING]}).encode() * 2), forged()),
    "one name twice": (keys_of(HONEST_LOOKING, HONEST_LOOKING), forged()),
    "a weak key": (keys_of(public(WEAK, "forged")), forged(WEAK)),
    "for encryption": (keys_of({**HONEST_LOOKING, "use": "enc"}), forged()),
    "a secret": (
        keys_of({"kty": "oct", "kid": "forged", "k": encoded(SECRET), "alg": "HS256"}),
        forged(SECRET, "HS256"),
    ),
    "a private key": (
        keys_of({**json.loads(RSAAlgorithm.to_jwk(FORGER)), "kid": "forged", "use": "sig"}),
        forged(),
    ),
    "an error": (reply({"keys": [HONEST_LOOKING]}, 500), forged()),
    "no bytes": ([{"rst": True}], forged()),
}


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, RSAPrivateKey]) -> Iterator[Place]:
    """A place whose issuer listens, and where a test may turn relayd to another path of it."""
    place = Place(tmp_path_factory.mktemp("besieged"), keys)
    place.publish("old")
    place.issuer.listen()
    place.start()
    yield place
    place.close()


def turn_to(place: Place, path: str, *scripts: Script) -> None:
    """Let relayd take its keys from a path that answers with these scripts in turn, and forget all others."""
    place.issuer.play(*scripts)
    place.issuer.forget()
    place.file.write_text(SETTINGS.format(keys=f"{place.issuer.url}/{path}", worker=place.worker.url))
    reloads = place.gateway.stderr.count("settings read again")
    place.gateway.signal(signal.SIGHUP)
    eventually(lambda: place.gateway.stderr.count("settings read again") > reloads, 5, "a reload")


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_at_the_start_lets_nobody_in(besieged: Place, what: str) -> None:
    script, token = HOSTILE[what]
    path = "first/" + what.replace(" ", "-")
    procs.forget_peak(besieged.gateway.pid)
    before = procs.resident_kib(besieged.gateway.pid)
    turn_to(besieged, path, script)
    assert [besieged.status(token), besieged.status(besieged.token("old"))] == [503, 503]
    assert not besieged.is_ready()
    assert f"/{path}/keys.json: " in besieged.gateway.stderr
    assert procs.peak_kib(besieged.gateway.pid) - before < 32 << 10


@pytest.mark.parametrize(
    "what", ["no end", "no end, slowly", "a bomb", "deep lists", "a weak key", "a secret"]
)
def test_a_hostile_answer_later_changes_nothing(besieged: Place, what: str) -> None:
    script, token = HOSTILE[what]
    path = "later/" + what.replace(" ", "-")
    turn_to(besieged, path, keys_of(public(besieged.keys["old"], "old")), script)
    # A request must not be what makes the first fetch: it would begin the cool-down.
    eventually(lambda: besieged.issuer.requests, 5, "the first fetch")
    assert besieged.status(besieged.token("old")) == 200
    assert besieged.status(token) == 401
    assert besieged.status(besieged.token("old", jti="another")) == 200
    assert besieged.is_ready()
    eventually(lambda: f"/{path}/keys.json: " in besieged.gateway.stderr, 5, "a line about it")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(besieged: Place, status: int) -> None:
    with Upstream(keys_of(HONEST_LOOKING)) as inward:
        turn_to(besieged, f"turned/{status}", reply(b"", status, ("location", f"{inward.url}/keys.json")))
        assert [besieged.status(forged()), besieged.status(besieged.token("old"))] == [503, 503]
        assert inward.connections == []
    assert f"turned/{status}/keys.json: the answer is {status}" in besieged.gateway.stderr
