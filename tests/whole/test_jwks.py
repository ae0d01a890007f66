"""Keys that live behind a URL: late, gone, changed, or asked for by a flood of tokens that nobody signed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from tests.support.gateway import Gateway
from tests.support.upstream import Upstream, reply
from tests.support.waiting import eventually
from tests.support.wire import ask, request

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

    def __init__(self, folder: Path, keys: dict[str, RSAPrivateKey]) -> None:
        self.keys = keys
        self.issuer, self.worker = Upstream(listening=False), Upstream()
        self.worker.play(reply({}))
        self.file = folder / "relayd.yaml"
        self.file.write_text(SETTINGS.format(keys=self.issuer.url, worker=self.worker.url))

    def publish(self, *kids: str) -> None:
        """Let the issuer answer with these public keys."""
        rows = [
            {**json.loads(RSAAlgorithm.to_jwk(self.keys[kid].public_key())), "kid": kid, "use": "sig"}
            for kid in kids
        ]
        self.issuer.play(reply({"keys": rows}))

    def token(self, kid: str, signed_by: str = "", **claims: Any) -> str:
        said = {"sub": "acme", "aud": "relayd", "exp": time.time() + 300, **claims}
        return jwt.encode(said, self.keys[signed_by or kid], algorithm="RS256", headers={"kid": kid})

    def status(self, token: str) -> int:
        return ask(self.gateway, request("GET", "/x", ("Authorization", f"Bearer {token}"))).status

    def start(self) -> None:
        self.gateway = Gateway(arguments=("--config", str(self.file)))

    def close(self) -> None:
        self.gateway.close()
        self.issuer.close()
        self.worker.close()


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
    eventually(lambda: place.gateway.ask_admin("/readyz")[0] == 200, 15, "ready once the keys are there")
    assert place.status(place.token("old")) == 200


def test_a_new_key_is_fetched_when_it_is_first_used(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(lambda: place.gateway.ask_admin("/readyz")[0] == 200, 5, "ready")
    assert place.status(place.token("old")) == 200
    place.publish("old", "new")
    assert place.status(place.token("new")) == 200, "it waited for the keys"
    assert place.status(place.token("new", signed_by="old")) == 401


def test_a_flood_of_unknown_kids_makes_one_fetch_and_good_tokens_do_not_wait(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(lambda: place.gateway.ask_admin("/readyz")[0] == 200, 5, "ready")
    good = place.token("old")
    assert place.status(good) == 200
    before = len(place.issuer.requests)
    token = place.token("old")
    for number in range(300):
        _, _, rest = token.partition(".")
        forged = jwt.utils.base64url_encode(json.dumps({"alg": "RS256", "kid": f"k{number}"}).encode())
        assert place.status(f"{forged.decode()}.{rest}") == 401
        if number % 50 == 0:
            assert place.status(good) == 200
    assert len(place.issuer.requests) - before <= 1
    refused = place.gateway.metrics().total("relayd_auth_refusals_total", reason="unknown_kid")
    assert refused == 300


def test_the_last_keys_serve_while_the_issuer_is_away(place: Place) -> None:
    place.publish("old")
    place.issuer.listen()
    place.start()
    eventually(lambda: place.gateway.ask_admin("/readyz")[0] == 200, 5, "ready")
    place.issuer.refuse()
    assert place.status(place.token("old")) == 200
    assert place.status(place.token("new")) == 401
    assert place.gateway.ask_admin("/readyz")[0] == 200
