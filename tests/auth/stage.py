"""What tests of the room share: keys, tokens signed with them, an issuer that answers when told, a clock."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import get_default_algorithms

from relayd.auth.authenticator import Authenticator
from relayd.auth.base import Refused
from relayd.auth.strict import encode_base64url
from relayd.config import Auth, Jwt
from relayd.readers import Secret

HERE = Path(__file__).parent
NOW = 1_800_000_000
CASES = [json.loads(line) for line in (HERE / "jwt_cases.jsonl").read_text().splitlines()]
CASE_KEYS = json.loads((HERE / "jwt_keys.json").read_text())

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256 = ec.generate_private_key(ec.SECP256R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
SECRET = bytes(range(40, 80))
SIGNERS = get_default_algorithms()
CLAIMS = {"iss": "https://id.test", "aud": "relayd", "sub": "alice", "iat": NOW - 60, "exp": NOW + 600}


def raw_token(header: bytes, payload: bytes, key: Any = RSA, algorithm: str = "RS256") -> bytes:
    """Return a token of these bytes, rightly signed."""
    signed = encode_base64url(header) + b"." + encode_base64url(payload)
    return signed + b"." + encode_base64url(SIGNERS[algorithm].sign(signed, key))


def token(
    claims: dict[str, Any] | None = None,
    *,
    key: Any = RSA,
    algorithm: str = "RS256",
    header: dict[str, Any] | None = None,
    **changes: Any,
) -> bytes:
    """Return a token that is good but for the changes; what is `...` is left out."""
    head = {"alg": algorithm, "kid": "a", "typ": "JWT", **(header or {})}
    body = {**CLAIMS, **(claims or {}), **changes}
    parts = [{name: value for name, value in part.items() if value is not ...} for part in (head, body)]
    return raw_token(*(json.dumps(part).encode() for part in parts), key=key, algorithm=algorithm)


def jwk(key: Any, kid: str | None = "a", **changes: Any) -> dict[str, Any]:
    """Return the entry of a key in a JWKS document."""
    kind = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256"}
    algorithm = next((name for base, name in kind.items() if isinstance(key, base)), "EdDSA")
    entry = SIGNERS[algorithm].to_jwk(key.public_key(), as_dict=True)
    entry.pop("key_ops", None)
    entry.update({"use": "sig", "alg": algorithm} | ({"kid": kid} if kid is not None else {}))
    entry.update(changes)
    return {name: value for name, value in entry.items() if value is not ...}


def document(*entries: dict[str, Any]) -> bytes:
    """Return a JWKS document."""
    return json.dumps({"keys": list(entries)}).encode()


def pem(key: Any) -> bytes:
    """Return a public key as PEM."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: Any) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write(path: Path, data: bytes | str, mode: int = 0o600) -> str:
    """Write a file; return its path as settings have it."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    path.chmod(mode)
    return str(path)


def case_settings(directory: Path) -> Jwt:
    """Return the settings under which the cases have their outcome."""
    return Jwt(
        algorithms=("RS256", "HS256"),
        jwks=write(directory / "jwks.json", json.dumps(CASE_KEYS["jwks"])),
        secret=Secret("hex:" + CASE_KEYS["hs_secret_hex"]),
        secret_kid=CASE_KEYS["hs_kid"],
        issuer=CASE_KEYS["issuer"],
        audience=CASE_KEYS["audience"],
        leeway=float(CASE_KEYS["leeway"]),
    )


def authenticator(jwt: Jwt | None = None, keys: str = "", **parts: Any) -> Authenticator:
    """Return an authenticator that can fetch nothing, unless it is told how."""
    return Authenticator(Auth(jwt=jwt or Jwt(), keys=keys), **{"fetch": no_fetch, **parts})


async def no_fetch(url: str, *, timeout_s: float) -> tuple[int, bytes]:
    """Fail: nothing may be fetched here."""
    raise AssertionError(f"fetched {url}")


def reason_of(who: Authenticator, credential: bytes, now: float = NOW) -> str:
    """Return why a Bearer credential is refused, "" if it is not."""
    verdict = who.check(b"Bearer " + credential, None, now)
    return verdict.reason if isinstance(verdict, Refused) else ""


class Clock:
    """A clock that moves when it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Issuer:
    """The URL of keys: answers with `body`, or fails with `failure`; while `hangs`, answers nobody."""

    URL = "https://id.test/jwks"

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.status = 200
        self.body = document(*entries)
        self.failure: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.fetches = 0

    async def __call__(self, url: str, *, timeout_s: float) -> tuple[int, bytes]:
        assert url == self.URL
        assert 0 < timeout_s <= 2
        self.fetches += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return self.status, self.body

    def publish(self, *entries: dict[str, Any]) -> None:
        """Have other keys from now on."""
        self.body = document(*entries)


async def turns(count: int = 20) -> None:
    """Let the loop do what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
