"""What the settings of `auth`, and the files that they name, come to.

Read at the start and with every reload, wholly before any of it is taken over: what is wrong then is a
SettingError, and what was there before goes on.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

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
from relayd.readers import SettingError, is_loopback

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
    warnings: list[str] = []
    ring = read_ring(settings.jwt, warnings) if settings.jwt != Jwt() else Keyring()
    api_keys = read_keys(settings.keys) if settings.keys else NO_KEYS
    return Material(settings, ring, api_keys, warnings + api_keys.warnings)


def read_ring(jwt: Jwt, warnings: list[str]) -> Keyring:
    """Return the keys that are no URL's; add what an operator should know to `warnings`."""
    refuse_contradictions(jwt)
    if not jwt.audience:
        warnings.append(
            "auth.jwt.audience is not set: tokens that the issuer made for other services are good here, too"
        )
    ring = Keyring()
    if jwt.public_key:
        ring = Keyring(only=read_pem(jwt), nameless=True)
    elif is_url(jwt.jwks):
        check_url(jwt.jwks)
    elif jwt.jwks:
        ring = read_document(jwt, warnings)
    return with_secret(ring, jwt) if jwt.secret else ring


def refuse_contradictions(jwt: Jwt) -> None:
    """Refuse settings that cannot all be meant.

    Raises:
        SettingError: names two of them, or what is missing.
    """
    public = [name for name in ("jwks", "public_key") if getattr(jwt, name)]
    if not public and not jwt.secret:
        raise SettingError("auth.jwt: there is no key to check tokens with: set jwks, public_key or secret")
    if len(public) == 2 or (jwt.public_key and jwt.secret):
        raise SettingError(
            "auth.jwt.public_key: it is for one key alone; put several into a JWKS file (jwks)"
        )
    if bool(jwt.secret) != ("HS256" in jwt.algorithms):
        missing = "algorithms does not list HS256, which it is for" if jwt.secret else "HS256 needs one"
        raise SettingError(f"auth.jwt.secret: {missing}")
    if public and set(jwt.algorithms) <= {"HS256"}:
        raise SettingError(f"auth.jwt.{public[0]}: algorithms lists none that public keys are for: add RS256")
    if jwt.secret and public and not jwt.secret_kid:
        raise SettingError("auth.jwt.secret_kid: with other keys beside it, the secret needs a name")
    if jwt.secret_kid and not jwt.secret:
        raise SettingError("auth.jwt.secret_kid: there is no secret that it could name")
    if not jwt.tenant_claim:
        raise SettingError("auth.jwt.tenant_claim: without it nobody could be told from anybody")


def read_pem(jwt: Jwt) -> Key:
    """Return the key of the PEM file."""
    try:
        return read_public_key(read_file("auth.jwt.public_key", jwt.public_key, LARGEST_PEM), jwt.algorithms)
    except Unusable as error:
        raise SettingError(f"auth.jwt.public_key: {jwt.public_key}: it {error}") from None


def read_document(jwt: Jwt, warnings: list[str]) -> Keyring:
    """Return the keys of the JWKS file."""
    try:
        keys = read_key_set(read_file("auth.jwt.jwks", jwt.jwks, LARGEST_DOCUMENT), jwt.algorithms)
    except KeySetError as error:
        raise SettingError(f"auth.jwt.jwks: {jwt.jwks}: {error}") from None
    warnings.extend(f"auth.jwt.jwks: {jwt.jwks}: {warning}" for warning in keys.warnings)
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
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or parts.scheme not in ("https", "http"):
        raise SettingError("auth.jwt.jwks: that is not a URL: write https://HOST/PATH, or the path of a file")
    if parts.username is not None:
        raise SettingError("auth.jwt.jwks: a URL with a user name in it would end up in logs")
    if parts.scheme == "http" and not is_loopback(host):
        raise SettingError(f"auth.jwt.jwks: {url}: keys that come without https can be anybody's")


def is_wanted(settings: Auth) -> bool:
    """True if the settings say that clients must show a credential."""
    return bool(settings.keys) or has_tokens(settings.jwt)


def has_tokens(settings: Jwt) -> bool:
    """True if there is something to check tokens with."""
    return bool(settings.jwks or settings.public_key or settings.secret)


def is_url(text: str) -> bool:
    """True for a URL, False for a file."""
    return "://" in text
