"""What the settings of `auth`, and the files that they name, come to.

Read at the start and with every reload, wholly before any of it is taken over: what is wrong then is a
SettingError, and what was there before goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from relayd.auth.files import read_file
from relayd.auth.jwt import Key, Keyring
from relayd.auth.key_set import (
    LARGEST_DOCUMENT,
    KeySetError,
    Unusable,
    read_key_set,
    read_public_key,
    read_secret_key,
)
from relayd.auth.keys import NO_KEYS, ApiKeys, read_keys
from relayd.config import Auth, Jwt
from relayd.readers import Remark, SettingError, read_key_source, refusal

LARGEST_PEM = 64 << 10  # bytes


class Material(NamedTuple):
    """Keys to check tokens with, except those that a URL has, and API keys."""

    settings: Auth
    ring: Keyring
    api_keys: ApiKeys
    warnings: list[str]


def read_material(settings: Auth) -> Material:
    """Return what the settings come to.  Reads files; may be called on any thread.

    Raises:
        SettingError: a setting, or a file that it names, cannot be used.
    """
    remarks: list[Remark] = []
    ring = read_ring(settings.jwt, remarks) if settings.jwt != Jwt() else Keyring()
    api_keys = read_keys(settings.keys) if settings.keys else NO_KEYS
    return Material(settings, ring, api_keys, [str(remark) for remark in remarks + api_keys.remarks])


def read_ring(jwt: Jwt, remarks: list[Remark]) -> Keyring:
    """Return the keys that are no URL's; add what an operator should know to `remarks`.

    Raises:
        SettingError: a setting, or a file that it names, cannot be used.
    """
    wrong = list(contradictions(jwt))
    if wrong:
        raise refusal(*wrong)
    if not jwt.audience and (jwt.jwks or jwt.public_key):
        message = "tokens that the issuer made for other services are accepted, too: no audience is set"
        remarks.append(Remark("auth.jwt", message, "add audience: NAME"))
    ring = Keyring()
    if jwt.public_key:
        ring = Keyring(only=read_pem(jwt), nameless=True)
    elif is_url(jwt.jwks):
        check_url(jwt.jwks)
    elif jwt.jwks:
        ring = read_document(jwt, remarks)
    return with_secret(ring, jwt) if jwt.secret else ring


# The settings that `contradictions` weighs against each other.
SOURCES = ("jwks", "public_key", "secret", "secret_kid", "algorithms", "tenant_claim")


def contradictions(jwt: Jwt) -> Iterator[Remark]:
    """Yield what cannot all be meant, each mistake once."""
    public = [name for name in ("jwks", "public_key") if getattr(jwt, name)]
    if not public and not jwt.secret:
        yield Remark("auth.jwt", "there are no keys to check tokens with", "add jwks, public_key or secret")
        return
    if len(public) == 2 or (jwt.public_key and jwt.secret):
        others = "jwks" if len(public) == 2 else "a secret"
        message = f"there is {others} as well, and this is for one key alone"
        yield Remark("auth.jwt.public_key", message, "keep one of the two, or put all keys into a JWKS file")
    yield from wrong_algorithms(jwt, public)
    if jwt.secret and jwt.jwks and not jwt.secret_kid:
        yield Remark(
            "auth.jwt.secret", "there are other keys beside it, so it needs a name", "add secret_kid: NAME"
        )
    if jwt.secret_kid and not jwt.secret:
        yield Remark("auth.jwt.secret_kid", "there is no secret that it names", "add secret: ${NAME}")
    if not jwt.tenant_claim:
        yield Remark("auth.jwt.tenant_claim", "without it nobody could be told from anybody", "write sub")


def wrong_algorithms(jwt: Jwt, public: list[str]) -> Iterator[Remark]:
    """Yield what is wrong if an algorithm has no key, or a key no algorithm: at most one thing."""
    listed = ", ".join(jwt.algorithms)
    others = [name for name in jwt.algorithms if name != "HS256"]
    if not listed:
        yield Remark(
            "auth.jwt.algorithms", "no signature is accepted", f"write [{'RS256' if public else 'HS256'}]"
        )
    elif jwt.secret and "HS256" not in jwt.algorithms:
        hint = f"write algorithms: [{listed}, HS256]" if public else "write algorithms: [HS256]"
        yield Remark("auth.jwt.secret", f"it is for HS256, and algorithms has {listed} only", hint)
    elif "HS256" in jwt.algorithms and not jwt.secret:
        yield Remark("auth.jwt.algorithms", "HS256 needs a secret", "add secret: ${NAME}")
    elif others and not public:
        yield Remark("auth.jwt.algorithms", f"{others[0]} needs jwks or public_key", "write [HS256]")
    elif public and not others:
        message = "it is for algorithms with public keys, and none is listed"
        yield Remark(f"auth.jwt.{public[0]}", message, f"write algorithms: [{listed}, RS256]")


def read_pem(jwt: Jwt) -> Key:
    """Return the key of the PEM file."""
    setting = "auth.jwt.public_key"
    try:
        return read_public_key(read_file(setting, jwt.public_key, LARGEST_PEM), jwt.algorithms)
    except Unusable as error:
        raise refusal(Remark(setting, f"it {error}", file=jwt.public_key)) from None


def read_document(jwt: Jwt, remarks: list[Remark]) -> Keyring:
    """Return the keys of the JWKS file."""
    setting = "auth.jwt.jwks"
    try:
        keys = read_key_set(read_file(setting, jwt.jwks, LARGEST_DOCUMENT), jwt.algorithms)
    except KeySetError as error:
        raise refusal(Remark(setting, str(error), file=jwt.jwks)) from None
    remarks.extend(Remark(setting, warning, file=jwt.jwks) for warning in keys.warnings)
    return Keyring(keys.by_kid, keys.only, nameless=not keys.by_kid)


def with_secret(ring: Keyring, jwt: Jwt) -> Keyring:
    """Return `ring` and the secret, which is alone only where no public keys are configured."""
    key = read_secret_key("auth.jwt.secret", jwt.secret)
    if not jwt.secret_kid:
        return Keyring(only=key, nameless=True)
    return Keyring({**ring.by_kid, jwt.secret_kid: key}, None if jwt.jwks else key)


def check_url(url: str) -> None:
    """Refuse a URL from which somebody else could give us keys."""
    try:
        read_key_source(url)
    except SettingError as error:
        raise refusal(Remark("auth.jwt.jwks", str(error))) from None


def is_wanted(settings: Auth) -> bool:
    """True if the settings say that clients must show a credential."""
    return bool(settings.keys) or has_tokens(settings.jwt)


def has_tokens(settings: Jwt) -> bool:
    """True if there is something to check tokens with."""
    return bool(settings.jwks or settings.public_key or settings.secret)


def is_url(text: str) -> bool:
    """True for a URL, False for a file."""
    return "://" in text
