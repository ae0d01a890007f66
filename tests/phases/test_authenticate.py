"""Every token case through the driver: a client hears 401 or its answer, and never why, and never a 500."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relayd.auth.authenticator import Authenticator
from relayd.config import Auth, Jwt, PerAddress
from relayd.limits.addresses import Addresses
from relayd.readers import RateOf, Secret
from tests.fast.stage import reply
from tests.phases.test_driver import Gateway

pytestmark = pytest.mark.usefixtures("both_ways")

FOLDER = Path(__file__).parents[1] / "auth"
KEYS = json.loads((FOLDER / "jwt_keys.json").read_text())
CASES = [json.loads(line) for line in (FOLDER / "jwt_cases.jsonl").read_text().splitlines()]


async def no_fetch(url: str, timeout_s: float) -> tuple[int, bytes]:
    raise AssertionError("a token must not make relayd ask anybody")


def guarded(folder: Path, **more) -> Gateway:
    """Return a gateway that knows the keys of the cases."""
    document = folder / "jwks.json"
    document.write_text(json.dumps(KEYS["jwks"]))
    jwt = Jwt(
        algorithms=("RS256", "HS256"),
        jwks=str(document),
        secret=Secret("hex:" + KEYS["hs_secret_hex"]),
        secret_kid=KEYS["hs_kid"],
        issuer=KEYS["issuer"],
        audience=KEYS["audience"],
        leeway=KEYS["leeway"],
    )
    gateway = Gateway(1)
    gateway.driver.authenticator = Authenticator(Auth(jwt=jwt, failures=None), fetch=no_fetch)
    return gateway


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/anything"])
def test_a_token_case(case, path, tmp_path):
    gateway = guarded(tmp_path)
    gateway.driver.wall = lambda: float(case["now"])
    header = case["authorization"] if "authorization" in case else "Bearer " + case["token"]
    value = header.encode("utf-8", "surrogateescape").strip(b" \t")
    call = gateway.begin("POST", path, (b"Authorization", value))
    if case["expect"] == "accept":
        assert call.exchange.tenant
        assert gateway.stages[0].pool.in_flight == 1
        gateway.stages[0].worker_says(reply(body=b"{}"))
        assert call.answer.status == 200
    else:
        # What is not even a header, or two credentials, is refused with the head.
        assert call.answer.status in (400, 401)
        assert call.answer.status == 401 or case["category"] in ("encoding", "transport")
        text = bytes(call.answer.body).decode()
        assert case["name"] not in text
        assert header[-20:] not in text or len(header) < 20
        assert gateway.stages[0].dials == 0
    gateway.assert_nothing_left()


def test_failures_make_an_address_wait_and_time_lets_it_try_again(tmp_path, monkeypatch):
    gateway = guarded(tmp_path)
    gateway.driver.addresses = Addresses((), PerAddress(), 0, RateOf(2, 60.0))
    gateway.driver.wall = lambda: float(KEYS["now"])

    def status(token: str) -> int:
        call = gateway.begin("GET", b"/v1/models", (b"Authorization", b"Bearer " + token.encode()), body=None)
        return call.answer.status

    assert [status("a.b.c") for _ in range(4)] == [401, 401, 429, 429]
    gateway.assert_nothing_left()
