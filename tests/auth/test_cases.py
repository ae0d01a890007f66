"""Every line of the JWT cases has its outcome: asked of the authenticator, and by `relayd token verify`."""

from __future__ import annotations

import json

import pytest

from relayd.__main__ import main
from relayd.auth.base import Refused, Tenant
from tests.auth.stage import CASE_KEYS, CASES, authenticator, case_settings, write


def header_of(case: dict) -> bytes:
    """Return the Authorization header of a case, as it is sent."""
    text = case.get("authorization") or f"Bearer {case['token']}"
    return text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def who(tmp_path_factory):
    return authenticator(case_settings(tmp_path_factory.mktemp("keys")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_has_its_outcome(who, case):
    for _ in range(2):  # what is remembered of the first time changes nothing
        verdict = who.check(header_of(case), None, case["now"])
        assert isinstance(verdict, Tenant if case["expect"] == "accept" else Refused), verdict


SETTINGS = f"""
workers: {{w: {{url: "http://127.0.0.1:1"}}}}
auth:
  jwt:
    algorithms: [RS256, HS256]
    jwks: jwks.json
    secret: hex:{CASE_KEYS["hs_secret_hex"]}
    secret_kid: {CASE_KEYS["hs_kid"]}
    issuer: {CASE_KEYS["issuer"]}
    audience: {CASE_KEYS["audience"]}
    leeway: {CASE_KEYS["leeway"]}s
"""


def test_verify_says_the_same(tmp_path, capsys):
    case_settings(tmp_path)  # writes jwks.json
    config = write(tmp_path / "relayd.yaml", SETTINGS)
    lines = [
        {"authorization": case["authorization"]} if "authorization" in case else case["token"]
        for case in CASES
    ]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(map(json.dumps, lines)))
    now = str(CASE_KEYS["now"])
    assert main(["token", "verify", "--config", config, "--now", now, "--jsonl", str(asked)]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [verdict["ok"] for verdict in said] == [case["expect"] == "accept" for case in CASES]
    assert all(verdict["reason"] if not verdict["ok"] else verdict["tenant"] for verdict in said)
