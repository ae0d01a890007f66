"""What `relayd token` makes, the server takes; what it says of a credential, the server means."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa

from relayd.__main__ import main
from relayd.auth.base import Tenant
from relayd.auth.keys import read_keys
from relayd.commands import token as command
from relayd.config import Auth, Jwt, Settings
from relayd.net import FetchError
from relayd.readers import Secret, SettingError
from tests.auth.stage import (
    ED25519,
    NOW,
    P256,
    RSA,
    SECRET,
    Issuer,
    authenticator,
    jwk,
    pem,
    private_pem,
    token,
    write,
)


@pytest.fixture
def says(capsys, monkeypatch):
    """Run the command; return (exit code, output, errors)."""

    def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main(["token", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def configured(monkeypatch):
    """Let --config mean these settings."""

    def use(auth: Auth) -> None:
        monkeypatch.setattr(command, "load_settings", lambda path, assignments, insecure: Settings(auth=auth))

    return use


# --- mint -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (P256, "ES256"), (ED25519, "EdDSA")])
def test_a_token_signed_with_a_private_key_is_taken(says, tmp_path, key, algorithm):
    path = write(tmp_path / "key.pem", private_pem(key))
    code, minted, errors = says("mint", "--key-file", path, "--sub", "alice")
    assert (code, errors) == (0, "")
    who = authenticator(Jwt(algorithms=(algorithm,), public_key=write(tmp_path / "public.pem", pem(key))))
    assert who.check(b"Bearer " + minted.strip().encode(), None, time.time()) == Tenant("alice")


@pytest.mark.parametrize("text", ["x" * 32, "hex:" + SECRET.hex() + "\n", "base64:" + "QUJD" * 11 + "\r\n"])
def test_a_token_signed_with_a_secret_is_taken(says, tmp_path, text):
    path = write(tmp_path / "secret", text)
    options = ["--tier", "gold", "--models", "m, n", "--issuer", "i", "--audience", "relayd", "--kid", "hs"]
    code, minted, _ = says("mint", "--secret-file", path, "--sub", "al ice", "--ttl", "10m", *options)
    assert code == 0
    jwt = Jwt(
        algorithms=("HS256",), secret=Secret(text.strip()), secret_kid="hs", issuer="i", audience="relayd"
    )
    who = authenticator(jwt)
    credential = b"Bearer " + minted.strip().encode()
    assert who.check(credential, None, time.time()) == Tenant("al ice", "gold", frozenset({"m", "n"}))
    assert not isinstance(who.check(credential, None, time.time() + 631), Tenant)


@pytest.mark.parametrize(
    ("content", "option", "why"),
    [
        (b"short", "--secret-file", "too short"),
        (b"hex:zz", "--secret-file", "after hex:"),
        (b"", "--key-file", "no PEM private key"),
        (pem(RSA), "--key-file", "no PEM private key"),
        (private_pem(rsa.generate_private_key(65537, 1024)), "--key-file", "1024 bits"),
        (private_pem(ec.generate_private_key(ec.SECP384R1())), "--key-file", "none of"),
        (private_pem(ed448.Ed448PrivateKey.generate()), "--key-file", "none of"),
        (private_pem(RSA), "--secret-file", "another algorithm"),
    ],
)
def test_what_cannot_sign_is_refused(says, tmp_path, content, option, why):
    code, minted, errors = says("mint", option, write(tmp_path / "file", content), "--sub", "a")
    assert (code, minted) == (1, "")
    assert errors.startswith("relayd: --")
    assert why in errors


@pytest.mark.parametrize(
    "words",
    [
        ["--sub", ""],
        ["--sub", "a\nb"],
        ["--sub", "a", "--ttl", "soon"],
        ["--sub", "a", "--ttl", "0"],
        ["--sub", "a", "--ttl", "250ms"],
        ["--sub", "a", "--tier", "no name"],
        ["--sub", "a", "--models", "a,,b"],
    ],
)
def test_what_no_token_can_say_is_refused(says, tmp_path, words):
    path = write(tmp_path / "secret", "x" * 32)
    code, minted, errors = says("mint", "--secret-file", path, *words)
    assert (code, minted) == (1, "")
    assert errors.startswith("relayd: --")


def test_a_secret_that_everybody_can_read_is_worth_a_word(says, tmp_path):
    code, minted, errors = says("mint", "--secret-file", write(tmp_path / "s", "x" * 32, 0o644), "--sub", "a")
    assert code == 0
    assert "chmod o-r" in errors
    assert minted


def test_a_file_that_is_not_there(says, tmp_path):
    for option in ("--secret-file", "--key-file"):
        code, _, errors = says("mint", option, str(tmp_path / "none"), "--sub", "a")
        assert code == 1
        assert "no such file" in errors


# --- verify -----------------------------------------------------------------------------------------


@pytest.fixture
def pem_only(configured, tmp_path):
    configured(Auth(jwt=Jwt(public_key=write(tmp_path / "public.pem", pem(RSA)), audience="relayd")))


GOOD = {"ok": True, "tenant": "alice", "tier": "default"}


def test_one_token_on_standard_input(says, pem_only):
    code, said, _ = says("verify", "--config", "f", "--now", str(NOW), stdin=token().decode() + "\n")
    assert (code, json.loads(said)) == (0, GOOD)
    code, said, _ = says("verify", "--config", "f", "--now", str(NOW + 5000), stdin=token().decode())
    assert (code, json.loads(said)) == (1, {"ok": False, "reason": "expired"})


def test_one_credential_a_line(says, pem_only):
    good = token().decode()
    lines = [
        good,
        {"authorization": f"bearer {good}"},
        {"Api-Key": good},
        {"token": good, "what": "ever"},
        token(tier="gold", models=["n", "m"]).decode(),
        {"authorization": good},
        {"authorization": None},
        {},
        "",
        "a\n",
        "\ud800",
    ]
    text = "\n\n".join(map(json.dumps, lines)) + "\n"
    code, said, _ = says("verify", "--config", "f", "--now", str(NOW), "--jsonl", "-", stdin=text)
    verdicts = [json.loads(line) for line in said.splitlines()]
    assert code == 0
    assert verdicts[:4] == [GOOD] * 4
    assert verdicts[4] == {"ok": True, "tenant": "alice", "tier": "gold", "models": ["m", "n"]}
    assert [verdict["reason"] for verdict in verdicts[5:]] == [
        "bad_scheme", "missing", "missing", "malformed", "malformed", "malformed",
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["nonsense", "1", "null", '["x"]', '{"authorization": 1}', "[" * 100_000])
def test_a_line_that_is_none_does_not_stop_the_others(says, pem_only, line):
    text = f"{line}\n{json.dumps(token().decode())}\n"
    code, said, _ = says("verify", "--config", "f", "--now", str(NOW), "--jsonl", "-", stdin=text)
    assert [json.loads(line) for line in said.splitlines()] == [{"ok": False, "reason": "not_a_line"}, GOOD]
    assert code == 1


def test_an_api_key_on_standard_input(says, configured, tmp_path):
    key = "rk-0123456789abcdefghij"
    _, entry, _ = says("hash-key", "--tenant", "team", stdin=key)
    configured(Auth(keys=write(tmp_path / "keys.yaml", entry)))
    code, said, _ = says("verify", "--config", "f", stdin=key)
    assert (code, json.loads(said)) == (0, {"ok": True, "tenant": "team", "tier": "default"})


def test_keys_from_a_url_are_fetched_once(says, configured, monkeypatch):
    issuer = Issuer(jwk(RSA))
    monkeypatch.setattr(command, "fetch", issuer)
    configured(Auth(jwt=Jwt(jwks=Issuer.URL)))
    lines = [token().decode(), token(header={"kid": "b"}).decode(), token(header={"kid": "c"}).decode()]
    text = "\n".join(map(json.dumps, lines))
    code, said, errors = says("verify", "--config", "f", "--now", str(NOW), "--jsonl", "-", stdin=text)
    assert code == 0
    assert [json.loads(line).get("reason") for line in said.splitlines()] == [
        None,
        "unknown_kid",
        "unknown_kid",
    ]
    assert issuer.fetches == 1
    assert "no audience is set" in errors


def test_a_url_without_keys_is_an_error(says, configured, monkeypatch):
    issuer = Issuer()
    issuer.failure = FetchError("connection refused")
    monkeypatch.setattr(command, "fetch", issuer)
    configured(Auth(jwt=Jwt(jwks=Issuer.URL)))
    code, said, errors = says("verify", "--config", "f", stdin="x")
    assert (code, said) == (1, "")
    assert f"relayd: auth.jwt.jwks: {Issuer.URL}: connection refused" in errors


def test_settings_without_auth_verify_nothing(says, configured):
    configured(Auth())
    code, _, errors = says("verify", "--config", "f", stdin="x")
    assert code == 1
    assert "every request is let in" in errors


def test_settings_that_cannot_be_used(says, monkeypatch):
    def broken(path, assignments, insecure):
        raise SettingError("f:1:1: broken")

    monkeypatch.setattr(command, "load_settings", broken)
    assert says("verify", "--config", "f") == (1, "", "relayd: f:1:1: broken\n")


def test_a_list_of_lines_that_is_not_there(says, pem_only, tmp_path):
    code, _, errors = says("verify", "--config", "f", "--jsonl", str(tmp_path / "none"))
    assert code == 1
    assert "no such file" in errors


@pytest.mark.parametrize("words", [[], ["mint"], ["verify"], ["hash-key"], ["nonsense"],
                                   ["mint", "--sub", "a"], ["mint", "--sub", "a", "--secret", "x"],
                                   ["verify", "--config", "f", "--now", "nan"]])  # fmt: skip
def test_wrong_words_are_code_2(says, words):
    with pytest.raises(SystemExit) as caught:
        says(*words)
    assert caught.value.code == 2


# --- hash-key ---------------------------------------------------------------------------------------


def test_a_new_key_is_shown_once_and_beside_its_entry(says, tmp_path):
    words = [
        "--tenant",
        'a "b" : \U0001f600',
        "--tier",
        "gold",
        "--models",
        "m,n/o",
        "--expires",
        "2030-01-31",
    ]
    code, entry, errors = says("hash-key", "--new", *words)
    key = errors.rpartition(" ")[2].strip()
    assert code == 0
    assert len(key) >= 40
    assert key not in entry
    granted = read_keys(write(tmp_path / "keys.yaml", entry)).find(key.encode(), NOW)
    assert granted.tenant == Tenant('a "b" : \U0001f600', "gold", frozenset({"m", "n/o"}))
    assert granted.ends_at == 1896048000
    assert says("hash-key", "--new", *words)[2] != errors


def test_entries_are_added_to_a_file(says, tmp_path):
    text = "".join(says("hash-key", "--new", "--tenant", name)[1] for name in "abc")
    assert len(read_keys(write(tmp_path / "keys.yaml", text)).by_digest) == 3


def test_the_key_on_standard_input_is_hashed(says):
    code, entry, errors = says("hash-key", "--tenant", "a", stdin="rk-0123456789abcdefghij\n")
    assert (code, errors) == (0, "")
    assert hashlib.sha256(b"rk-0123456789abcdefghij").hexdigest() in entry


@pytest.mark.parametrize("key", ["", " ", "two words", "k\u00e9y", "a,b", "\ud800"])
def test_what_no_client_can_send_is_no_key(says, key):
    code, entry, errors = says("hash-key", "--tenant", "a", stdin=key)
    assert (code, entry) == (1, "")
    assert "try --new" in errors


def test_a_short_key_is_worth_a_word(says):
    code, entry, errors = says("hash-key", "--tenant", "a", stdin="short")
    assert code == 0
    assert entry
    assert "may be guessed" in errors
    assert "short" not in errors


@pytest.mark.parametrize(
    "words", [["--tenant", ""], ["--tenant", "a", "--tier", "a b"], ["--tenant", "a", "--expires", "soon"]]
)
def test_what_no_entry_can_say_is_refused(says, words):
    code, entry, errors = says("hash-key", "--new", *words)
    assert (code, entry) == (1, "")
    assert "key, which is shown" not in errors


# --- as a program -----------------------------------------------------------------------------------


def program(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "relayd", "token", *words], input=stdin, capture_output=True, timeout=60
    )


def test_bytes_that_are_no_text_are_no_traceback():
    done = program("hash-key", "--tenant", "a", stdin=b"\xff\xfe")
    assert done.returncode == 1
    assert done.stderr.startswith(b"relayd: standard input")
    assert b"Traceback" not in done.stderr


def test_who_stops_reading_gets_no_traceback(tmp_path):
    path = write(tmp_path / "secret", "x" * 32)
    words = [sys.executable, "-m", "relayd", "token", "mint", "--secret-file", path, "--sub", "a"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
