"""relayd token: make tokens and keys, and see what the server makes of one.

`verify` asks the same authenticator that the server asks, and says why, which the server tells nobody.
Secrets come from files and standard input: what is in argv, every user of the machine can read.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import math
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from relayd.auth.authenticator import BEARER, Authenticator
from relayd.auth.base import DEFAULT_TIER, LONGEST_TENANT, Refused, Tenant, Wait, is_tenant_name
from relayd.auth.jwt import ALGORITHMS
from relayd.auth.key_set import Unusable, check_key, read_secret_key
from relayd.auth.keys import read_end
from relayd.auth.material import is_wanted
from relayd.auth.strict import encode_base64url
from relayd.net import fetch
from relayd.readers import Secret, SettingError, read_duration, read_name
from relayd.settings_file import load as load_settings

HELP = "make, check and hash credentials"
EXIT_SETTINGS = 1
EXIT_REFUSED = 1
SHORT_KEY = 20  # characters; a shorter key may be found by trying


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parts = parser.add_subparsers(dest="part", metavar="mint|verify|hash-key", required=True)
    for name, meaning, declare, part in (
        ("mint", "make a token and print it", add_mint, mint),
        ("verify", "say whether a credential is good, whose it is or what is wrong", add_verify, verify),
        ("hash-key", "print the entry of an API key for the keys file", add_hash_key, hash_key),
    ):
        subparser = parts.add_parser(name, help=meaning, description=meaning, allow_abbrev=False)
        declare(subparser)
        subparser.set_defaults(do=part)


def run(args: argparse.Namespace) -> int:
    """Run the part of the command that was asked for; return the exit code."""
    try:
        code: int = args.do(args)
        sys.stdout.flush()
        return code
    except SettingError as error:
        print(f"relayd: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except BrokenPipeError:  # who reads has seen enough; nothing is to be said about it at the exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# --- mint -------------------------------------------------------------------------------------------


def add_mint(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `mint`."""
    key = parser.add_mutually_exclusive_group(required=True)
    key.add_argument("--secret-file", metavar="FILE", help="sign with HS256 and the secret in this file")
    key.add_argument("--key-file", metavar="FILE", help="sign with the PEM private key (RSA, P-256, Ed25519)")
    parser.add_argument("--sub", required=True, metavar="NAME", help="the tenant")
    parser.add_argument("--tier", metavar="NAME", help="its tier")
    parser.add_argument("--models", metavar="NAME[,NAME]", help="the models that the token is for (all)")
    parser.add_argument("--ttl", default="1h", metavar="DURATION", help="how long it is good (1h)")
    parser.add_argument("--issuer", metavar="TEXT", help="iss")
    parser.add_argument("--audience", metavar="TEXT", help="aud")
    parser.add_argument("--kid", metavar="TEXT", help="the name of the key, where there are several")


def mint(args: argparse.Namespace) -> int:
    """Print a token."""
    if not is_tenant_name(args.sub):
        raise SettingError(f"--sub: a tenant is a printable text of 1 to {LONGEST_TENANT} characters")
    signer = read_signer(args)
    header = {"alg": signer.algorithm, "typ": "JWT"}
    if args.kid is not None:
        header["kid"] = args.kid
    signed = b".".join(encode_part(part) for part in (header, claims_of(args, time.time())))
    print((signed + b"." + encode_base64url(signer.sign(signed))).decode())
    return 0


class Signer(NamedTuple):
    """What signs a token."""

    algorithm: str
    material: Any

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`."""
        return ALGORITHMS[self.algorithm].sign(message, self.material)


def read_signer(args: argparse.Namespace) -> Signer:
    """Return what signs, from the file that was named."""
    if args.secret_file is not None:
        secret = read_private("--secret-file", args.secret_file).decode("utf-8", "surrogateescape")
        key = read_secret_key("--secret-file", Secret(secret.rstrip("\r\n")))
        return Signer(key.algorithm, key.material)
    data = read_private("--key-file", args.key_file)
    try:
        private: Any = load_pem_private_key(data, password=None)
        return Signer(check_key(private.public_key(), None, tuple(ALGORITHMS)).algorithm, private)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        raise SettingError(
            f"--key-file: {args.key_file} has no PEM private key without a password: see openssl genpkey"
        ) from None
    except Unusable as error:
        raise SettingError(f"--key-file: {args.key_file}: the key {error}") from None


def read_private(option: str, path: str) -> bytes:
    """Return the bytes of a file; warn if everybody can read them."""
    try:
        data = Path(path).read_bytes()
        if Path(path).stat().st_mode & stat.S_IROTH:
            warn(f"{option}: everybody on this machine can read {path}: chmod o-r {path}")
    except OSError as error:
        raise SettingError(f"{option}: {path}: {(error.strerror or 'cannot be read').lower()}") from None
    return data


def claims_of(args: argparse.Namespace, now: float) -> dict[str, Any]:
    """Return the claims that the options ask for."""
    try:
        ttl = int(read_duration(args.ttl))
    except SettingError as error:
        raise SettingError(f"--ttl: {error}") from None
    if ttl <= 0:
        raise SettingError("--ttl: a token that is never good; write a duration of 1s or more")
    claims: dict[str, Any] = {"sub": args.sub, "iat": int(now), "exp": int(now) + ttl}
    if args.tier is not None:
        claims["tier"] = read_option("--tier", args.tier)
    if args.models is not None:
        claims["models"] = [read_option("--models", name) for name in args.models.split(",")]
    claims.update((claim, text) for claim, text in (("iss", args.issuer), ("aud", args.audience)) if text)
    return claims


def read_option(option: str, text: str) -> str:
    """Return the name that an option has."""
    try:
        return read_name(text.strip())
    except SettingError as error:
        raise SettingError(f"{option}: {error}") from None


def encode_part(part: dict[str, Any]) -> bytes:
    """Return a header or claims as they stand in a token."""
    return encode_base64url(json.dumps(part, separators=(",", ":")).encode())


# --- verify -----------------------------------------------------------------------------------------


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument("--config", required=True, metavar="FILE", help="the settings of the server")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting by its path; may be repeated",
    )
    parser.add_argument(
        "--now", type=read_time, metavar="EPOCH", help="the time to judge by, in seconds (now)"
    )
    parser.add_argument(
        "--jsonl",
        metavar="FILE|-",
        help='a file with one credential a line: "TOKEN", or {"authorization": "Bearer ..."}, or '
        '{"x-api-key": "..."}; without it, one token or key on standard input',
    )


def read_time(text: str) -> float:
    """Return a time in seconds; ValueError is argparse's word for what is none."""
    if not math.isfinite(float(text)):
        raise ValueError
    return float(text)


def verify(args: argparse.Namespace) -> int:
    """Print a verdict for each credential; 0 if all were looked at, or if the single one is good."""
    settings = load_settings(args.config, args.set, insecure=True).auth
    if not is_wanted(settings):
        raise SettingError("auth: neither tokens nor keys are configured, so every request is let in")
    return asyncio.run(verify_all(Authenticator(settings, fetch=fetch), args))


async def verify_all(authenticator: Authenticator, args: argparse.Namespace) -> int:
    """Print the verdicts, after the keys were fetched if they are a URL's."""
    if authenticator.source is not None:
        await authenticator.source.refresh()
        if not authenticator.ready:
            raise SettingError(f"auth.jwt.jwks: {authenticator.source.url}: {authenticator.source.failure}")
    for warning in authenticator.warnings:
        warn(warning)
    if args.jsonl is None:
        verdict = judge(authenticator, "Bearer " + standard_input().read().strip(), None, args.now)
        print(json.dumps(verdict))
        return 0 if verdict["ok"] else EXIT_REFUSED
    done = True
    for line in lines_of(args.jsonl):
        credentials = credentials_of(line)
        done = done and credentials is not None
        print(json.dumps(judge(authenticator, *credentials, args.now) if credentials else NOT_A_LINE))
    return 0 if done else EXIT_REFUSED


NOT_A_LINE = {"ok": False, "reason": "not_a_line"}


def judge(
    authenticator: Authenticator, authorization: str | None, api_key: str | None, now: float | None
) -> dict[str, Any]:
    """Return the verdict on one credential; what further keys would say is not waited for."""
    verdict = authenticator.check(
        to_bytes(authorization), to_bytes(api_key), time.time() if now is None else now
    )
    if isinstance(verdict, Wait):
        verdict = Refused("unknown_kid")
    if isinstance(verdict, Refused):
        return {"ok": False, "reason": verdict.reason}
    return {"ok": True, **described(verdict)}


def described(tenant: Tenant) -> dict[str, Any]:
    """Return what is known of a tenant, for JSON."""
    models = {} if tenant.models is None else {"models": sorted(tenant.models)}
    return {"tenant": tenant.name, "tier": tenant.tier, **models}


def to_bytes(header: str | None) -> bytes | None:
    """Return a header's value as it is sent; JSON can have halves of characters, which no header has."""
    return None if header is None else header.encode("utf-8", "surrogatepass")


def lines_of(path: str) -> Iterator[str]:
    """Yield the lines of a file, or of standard input, that are not empty."""
    try:
        if path == "-":
            yield from filter(str.strip, standard_input())
            return
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            yield from filter(str.strip, file)
    except OSError as error:
        raise SettingError(f"--jsonl: {path}: {(error.strerror or 'cannot be read').lower()}") from None


def credentials_of(line: str) -> tuple[str | None, str | None] | None:
    """Return (Authorization, x-api-key) of a line, or None if it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, str):
        found = {"token": found}
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("token"), str):
        return f"Bearer {found['token']}", None
    found = {name.lower(): value for name, value in found.items()}  # as names of headers are
    authorization = found.get("authorization")
    api_key = found.get("x-api-key", found.get("api-key"))
    if not all(isinstance(text, str | None) for text in (authorization, api_key)):
        return None
    return authorization, api_key


# --- hash-key ---------------------------------------------------------------------------------------


def add_hash_key(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hash-key`."""
    parser.add_argument("--new", action="store_true", help="make a key and show it, once, on standard error")
    parser.add_argument("--tenant", required=True, metavar="NAME", help="whose key it is")
    parser.add_argument("--tier", default=DEFAULT_TIER, metavar="NAME", help="its tier (default)")
    parser.add_argument("--models", metavar="NAME[,NAME]", help="the models that the key is for (all)")
    parser.add_argument(
        "--expires", metavar="DAY", help="the day from which it is refused, such as 2027-01-31"
    )


def hash_key(args: argparse.Namespace) -> int:
    """Print the entry of a key, from standard input or a new one."""
    if not is_tenant_name(args.tenant):
        raise SettingError(f"--tenant: a printable text of 1 to {LONGEST_TENANT} characters")
    entry: dict[str, Any] = {"tenant": args.tenant, "tier": read_option("--tier", args.tier)}
    if args.models is not None:
        entry["models"] = [read_option("--models", name) for name in args.models.split(",")]
    if args.expires is not None:
        entry["expires"] = args.expires
        read_end(args.expires)
    key = make_key() if args.new else read_key()
    lines = [f"sha256: {hashlib.sha256(key.encode()).hexdigest()}"]
    lines += [
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items()
    ]  # JSON is YAML, too
    print("- " + "\n  ".join(lines))
    return 0


def make_key() -> str:
    """Return a new key, after showing it."""
    key = "rk-" + secrets.token_urlsafe(32)
    print(f"relayd: the key, which is shown only now: {key}", file=sys.stderr)
    return key


def read_key() -> str:
    """Return the key on standard input."""
    if sys.stdin.isatty():
        print("relayd: type or paste the key, then Enter and Ctrl-D:", file=sys.stderr)
    key = standard_input().read().strip()
    if not BEARER.fullmatch(b"Bearer " + key.encode("utf-8", "surrogatepass")):
        raise SettingError("standard input: a key is letters, digits and -._~+/ without spaces: try --new")
    if len(key) < SHORT_KEY:
        warn(f"a key of fewer than {SHORT_KEY} characters may be guessed: --new makes a good one")
    return key


def standard_input() -> TextIO:
    """Return standard input as text, whatever bytes it has."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return sys.stdin


def warn(text: str) -> None:
    """Say on standard error what an operator should know."""
    print(f"relayd: warning: {text}", file=sys.stderr)
