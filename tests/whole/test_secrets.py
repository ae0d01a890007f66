"""Planted secrets: in settings, heads, URLs and bodies; through successes and every kind of failure.

None of them may appear in anything that relayd says of itself, on any way out, nor in what it answers to
somebody who did not send it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from tests.support.gateway import Gateway, run_relayd
from tests.support.upstream import Upstream, reply
from tests.support.waiting import eventually
from tests.support.wire import Answer, Client, ask, request

SETTINGS = """
auth:
  failures: 12/h
  jwt:
    algorithms: [HS256, RS256]
    secret: "${{RELAYD_TEST_SECRET}}"
    secret_kid: hs
    jwks: "{issuer}/keys.json?code=canary-in-a-key-url"
    audience: relayd
  keys: {keys}
limits:
  tiers:
    default: {{}}
    small: {{requests: 1/h}}
log: {{sinks: [stdout, "file:{log}", "file:/dev/full"]}}
max_body: 64KiB
workers:
  one: {{url: "{one}", key: "${{RELAYD_TEST_KEY}}", headers: {{x-org-token: canary-in-a-worker-header}}}}
  gone: {{url: "{gone}", key: "${{file:{file}}}"}}
models:
  m: {{targets: [one]}}
  absent: {{targets: [gone]}}
"""

HS_SECRET = "canary-of-the-token-secret-that-is-long-enough"
ENVIRONMENT = {"RELAYD_TEST_SECRET": HS_SECRET, "RELAYD_TEST_KEY": "canary-of-the-worker-key"}
KEYS = {"acme": "canary-of-an-api-key", "small": "canary-of-a-small-key", "picky": "canary-of-a-picky-key"}


def token(**claims: object) -> str:
    said = {"sub": "acme", "aud": "relayd", "exp": time.time() + 86_400, "note": "canary", **claims}
    return jwt.encode(said, HS_SECRET, headers={"kid": "hs"})


TOKENS = [token(), token(exp=1), token(aud="another"), token()[:-9] + "AAAAAAAAA"]
PLANTED = [
    *ENVIRONMENT.values(),
    *KEYS.values(),
    *TOKENS,
    *(one.split(".")[2] for one in TOKENS),
    "canary-in-a-key-url",
    "canary-in-a-worker-header",
    "canary-in-a-settings-file",
    "canary-in-a-head",
    "canary-in-a-query",
    "canary-in-a-body",
    "canary-in-an-answer",
    "canary-that-is-wrong",
]


class Place:
    """A relayd full of secrets, and all that it has said."""

    def __init__(self, folder: Path) -> None:
        self.worker, self.gone, self.issuer = Upstream(), Upstream(listening=False), Upstream(listening=False)
        self.worker.play(reply({"text": "canary-in-an-answer"}))
        (folder / "keys.yaml").write_text(json.dumps([row(tenant) for tenant in KEYS]))
        (folder / "worker.key").write_text("canary-in-a-settings-file")
        for name in ("keys.yaml", "worker.key"):
            (folder / name).chmod(0o600)
        self.log, self.out, self.file = folder / "log", folder / "stdout", folder / "relayd.yaml"
        self.settings = SETTINGS.format(
            issuer=self.issuer.url, keys=folder / "keys.yaml", log=self.log, one=self.worker.url,
            gone=self.gone.url, file=folder / "worker.key",
        )  # fmt: skip
        self.file.write_text(self.settings)
        descriptor = os.open(self.out, os.O_WRONLY | os.O_CREAT, 0o600)
        self.gateway = Gateway(
            arguments=("--config", str(self.file)), environment=ENVIRONMENT, stdout=descriptor
        )
        os.close(descriptor)

    def ask(self, *lines: tuple[str, str], path: str = "/v1/chat/completions", **more: object) -> Answer:
        """Ask with planted secrets in the URL, the head and the body."""
        body = {"model": "m", "user": "canary-in-a-body", "messages": [], **more}
        path += "?key=canary-in-a-query&api_key=canary-in-a-query"
        data = json.dumps(body).encode()
        return ask(self.gateway, request("POST", path, *lines, ("X-Note", "canary-in-a-head"), body=data))

    def said(self) -> dict[str, str]:
        """Return all that relayd has said of itself, by where."""
        pages = ("/metrics", "/status", "/", "/readyz?verbose", "/healthz", "/nothing-here")
        said = {page: self.gateway.ask_admin(page)[1] for page in pages}
        said["arguments"] = Path(f"/proc/{self.gateway.pid}/cmdline").read_text()
        self.gateway.close()
        return {
            **said,
            "stderr": self.gateway.stderr,
            "stdout": self.out.read_text(),
            "log": self.log.read_text(),
        }

    def close(self) -> None:
        self.gateway.close()
        for upstream in (self.worker, self.gone, self.issuer):
            upstream.close()


def row(tenant: str) -> dict[str, object]:
    tier = "small" if tenant == "small" else "default"
    digest = hashlib.sha256(KEYS[tenant].encode()).hexdigest()
    return {
        "sha256": digest,
        "tenant": tenant,
        "tier": tier,
        **({"models": ["x"]} if tenant == "picky" else {}),
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def key(tenant: str) -> tuple[str, str]:
    return ("x-api-key", KEYS[tenant])


def bearer(credential: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {credential}")


def refuse_in_every_way(place: Place) -> list[tuple[int, Answer]]:
    """Return answers to requests that are refused, each with the status it should have."""
    with Client.to(place.gateway) as client:
        odd = client.ask(b"GET /x?key=canary-in-a-query HTTP/1.1\r\nHost: a\r\ncanary-in-a-head\r\n\r\n")
    broken = b'{"model": "m", "user": "canary-in-a-body'
    return [
        (400, odd),
        (400, ask(place.gateway, request("POST", "/v1/chat/completions", key("acme"), body=broken))),
        (400, place.ask(key("acme"), model=["canary-in-a-body"])),
        (401, place.ask(bearer("canary-that-is-wrong"))),
        (401, place.ask(("x-api-key", "canary-that-is-wrong"))),
        (401, place.ask(("Authorization", "Basic canary-that-is-wrong"))),
        *((401, place.ask(bearer(one))) for one in TOKENS[1:]),
        (401, place.ask(bearer(token().replace(".", "..")))),
        (401, place.ask(bearer(jwt.encode({"sub": "canary-in-a-head"}, HS_SECRET, headers={"kid": "none"})))),
        (403, place.ask(key("picky"))),
        (404, place.ask(key("acme"), path="/canary/of/nothing")),
        (413, place.ask(key("acme"), more="canary-in-a-body" * 9000)),
        (429, place.ask(key("small"))),
        (502, place.ask(key("acme"), model="absent")),
    ]


def test_planted_secrets_appear_nowhere(place: Place) -> None:
    assert [place.ask(one).status for one in (key("acme"), bearer(TOKENS[0]), key("small"))] == [200] * 3
    refusals = refuse_in_every_way(place)
    place.worker.play(reply({"error": "canary-in-an-answer"}, 500))
    assert place.ask(key("acme")).status == 500
    while (last := place.ask(bearer("canary-that-is-wrong"))).status != 429:
        assert last.status == 401
    said = {f"{status} {number}": str(answer) for number, (status, answer) in enumerate(refusals)}
    assert [answer.status for _, answer in refusals] == [
        503 if answer.status == 503 and "keys_missing" in str(answer) else status
        for status, answer in refusals
    ]
    break_settings(place)
    said |= place.said()
    assert said["log"].count("\n") == said["stdout"].count("\n") > 15
    assert "keys.json" in said["stderr"], "the issuer does not answer, and that was told"
    assert "/dev/full" in said["stderr"], "and so was the log that cannot be written"
    for where, text in said.items():
        for one in PLANTED:
            assert one not in text, (where, one)


# Mistakes on a line with a secret, or in it.
MISTAKES = [
    ('secret: "${RELAYD_TEST_SECRET}"', "secret: canary-of-the-worker-key"),
    ('secret: "${RELAYD_TEST_SECRET}"', 'secrets: "canary-of-the-token-secret-that-is-long-enough"'),
    ('secret: "${RELAYD_TEST_SECRET}"', "secret: [canary-of-the-token-secret-that-is-long-enough]"),
    ('secret: "${RELAYD_TEST_SECRET}"', 'secret: "canary-of-the-token-secret-that-is-long-enough'),
    ('secret: "${RELAYD_TEST_SECRET}"', "secret: hex:canary-of-the-token-secret-that-is-long-enough"),
    ('key: "${RELAYD_TEST_KEY}"', 'key: "canary-of-the-worker-key\\r\\nX: y"'),
    ('key: "${RELAYD_TEST_KEY}"', 'kee: "canary-of-the-worker-key"'),
    ('key: "${RELAYD_TEST_KEY}"', 'key: "canary-of-the-worker-key", engine: none'),
    ("x-org-token: canary-in-a-worker-header", '"x org": canary-in-a-worker-header'),
    ('jwks: "http://127.0.0.1', 'jwks: "http://id.example.test'),
    ('one: {url: "http://', 'one: {url: "http://a.test/?key=canary-in-a-query&'),
    ("failures: 12/h", "failures: canary-12"),
]


def break_settings(place: Place) -> None:
    """Reload with every mistake in turn."""
    for right, wrong in MISTAKES:
        assert right in place.settings
        place.file.write_text(place.settings.replace(right, wrong))
        refusals = place.gateway.stderr.count("the settings stay as they are")
        place.gateway.signal(signal.SIGHUP)
        eventually(
            lambda before=refusals: place.gateway.stderr.count("the settings stay as they are") > before,
            5,
            f"a refusal of {wrong}",
        )


@pytest.mark.parametrize(("right", "wrong"), MISTAKES[:-1])
def test_what_is_said_of_a_wrong_file_has_no_secrets(
    tmp_path: Path, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "worker.key").write_text("canary-in-a-settings-file")
    (tmp_path / "keys.yaml").write_text("[]")
    settings = SETTINGS.format(
        issuer="http://127.0.0.1:9", keys=tmp_path / "keys.yaml", log=tmp_path / "log",
        one="http://127.0.0.1:9", gone="http://127.0.0.1:10", file=tmp_path / "worker.key",
    )  # fmt: skip
    assert right in settings
    (tmp_path / "relayd.yaml").write_text(settings.replace(right, wrong))
    ended = run_relayd("check", "--json", str(tmp_path / "relayd.yaml"))
    assert ended.returncode == 1
    for one in PLANTED:
        assert one not in ended.stdout + ended.stderr
