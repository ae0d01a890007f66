"""Keys as they are published and configured: JWKS documents, PEM files, secrets.

A key that this relayd cannot use is left out, with a word about it: issuers publish keys for encryption and
for other algorithms beside those that sign.  A document that no honest issuer publishes is refused as a
whole, so that the last good one stays: a secret among public keys, one name for two keys, an RSA exponent
with which everybody can sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import InvalidKeyError

from relayd.auth.jwt import ALGORITHMS, Key
from relayd.auth.strict import StrictError, decode_base64url, decode_object
from relayd.readers import Remark, Secret, SettingError, decode_secret, read_jwt_secret, refusal

LARGEST_DOCUMENT = 256 << 10  # bytes
MOST_KEYS = 100
LONGEST_KID = 255
RSA_BITS = range(2048, 8193)  # RFC 7518 3.3 for the least; more costs milliseconds a token
LARGEST_EXPONENT = (1 << 32) - 1


class KeySetError(Exception):
    """A document that is refused as a whole; the message says why."""


class Unusable(Exception):
    """A single key that is left out; the message says why."""


class KeySet(NamedTuple):
    """The usable keys of one document."""

    by_kid: dict[str, Key]
    only: Key | None  # the document's one key, if it has but one
    digest: bytes  # of the document
    warnings: list[str]


def read_key_set(document: bytes, algorithms: Sequence[str]) -> KeySet:
    """Return the keys of a JWKS document that are for one of `algorithms`.

    Raises:
        KeySetError: it is none, or no honest one, or none of its keys can be used.
    """
    entries = entries_of(document)
    by_kid: dict[str, Key] = {}
    only: Key | None = None
    warnings = []
    for number, entry in enumerate(entries, 1):
        try:
            key = read_key(entry, algorithms)
            if len(entries) == 1:
                only = key
            if "kid" in entry:
                by_kid[entry["kid"]] = key
            elif only is None:
                raise Unusable("has no kid, and is not alone")
        except Unusable as error:
            warnings.append(f"key {number} of {len(entries)} is left out: it {error}")
    if not by_kid and only is None:
        raise KeySetError("; ".join(["it has no key that can be used", *warnings[:3]]))
    return KeySet(by_kid, only, hashlib.sha256(document).digest(), warnings)


def entries_of(document: bytes) -> list[dict[str, Any]]:
    """Return the entries of a document that an honest issuer may publish."""
    if len(document) > LARGEST_DOCUMENT:
        raise KeySetError(f"it is larger than {LARGEST_DOCUMENT >> 10} KiB")
    try:
        entries = decode_object(document).get("keys")
    except StrictError as error:
        raise KeySetError(f"it is no JWKS document: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KeySetError('it is no JWKS document: "keys" is not a list of objects')
    if len(entries) > MOST_KEYS:
        raise KeySetError(f"it has more than {MOST_KEYS} keys")
    kids = [entry["kid"] for entry in entries if isinstance(entry.get("kid"), str)]
    if len(set(kids)) != len(kids):
        raise KeySetError("two of its keys have the same kid")
    if any(entry.get("kty") == "oct" or "k" in entry for entry in entries):
        raise KeySetError("it has a secret (kty oct) among public keys")
    return entries


def read_key(entry: dict[str, Any], algorithms: Sequence[str]) -> Key:
    """Return the key of one entry.

    Raises:
        Unusable: it is not for checking signatures by one of `algorithms`, or too weak.
        KeySetError: everybody could sign with it.
    """
    kid, use, operations = entry.get("kid", "-"), entry.get("use", "sig"), entry.get("key_ops", ["verify"])
    if not isinstance(kid, str) or not 0 < len(kid) <= LONGEST_KID:
        raise Unusable("has a kid that is no text of 1 to 255 characters")
    if use != "sig":
        raise Unusable("is not for signatures (use)")
    if not isinstance(operations, list) or "verify" not in operations:
        raise Unusable("is not for checking signatures (key_ops)")
    if "d" in entry:
        raise Unusable("is a private key, and everybody can read it")
    return check_key(entry_material(entry), entry.get("alg"), algorithms)


def entry_material(entry: dict[str, Any]) -> Any:
    """Return the public key object of one entry."""
    kind = entry.get("kty")
    try:
        if kind == "RSA":
            check_exponent(int.from_bytes(member(entry, "e")))
            return RSAAlgorithm.from_jwk({"kty": kind, "n": text(entry, "n"), "e": text(entry, "e")})
        if kind == "EC" and entry.get("crv") == "P-256":
            jwk = {"kty": kind, "crv": "P-256", "x": text(entry, "x"), "y": text(entry, "y")}
            return ECAlgorithm.from_jwk(jwk)
        if kind == "OKP" and entry.get("crv") == "Ed25519":
            return OKPAlgorithm.from_jwk({"kty": kind, "crv": "Ed25519", "x": text(entry, "x")})
    except (StrictError, InvalidKeyError, UnsupportedAlgorithm) as error:
        raise Unusable(f"cannot be read: {error}") from None
    except ValueError:
        raise Unusable("is not a key: its numbers do not fit each other") from None
    raise Unusable("is of a kind (kty, crv) that is not used here")


def text(entry: dict[str, Any], name: str) -> str:
    """Return a base64url member as it is, after checking it."""
    found = entry.get(name)
    if not isinstance(found, str) or not found or not found.isascii():
        raise StrictError(f"{name} is missing")
    decode_base64url(found.encode())
    return found


def member(entry: dict[str, Any], name: str) -> bytes:
    """Return the bytes of a base64url member."""
    return decode_base64url(text(entry, name).encode())


def check_exponent(exponent: int) -> None:
    """Refuse what is no RSA exponent: with 1, everything is its own signature."""
    if exponent < 3 or exponent % 2 == 0:
        raise KeySetError(f"it has an RSA key with the exponent {exponent if exponent < 100 else 'even'}")
    if exponent > LARGEST_EXPONENT:
        raise Unusable("has an exponent above 32 bits")


def check_key(material: Any, algorithm: object, algorithms: Sequence[str]) -> Key:
    """Return a Key of a public key object, for what it is for and, if it says so, for `algorithm` only."""
    fitting = "EdDSA" if isinstance(material, Ed25519PublicKey) else None
    if isinstance(material, RSAPublicKey):
        if material.public_numbers().n % 2 == 0:
            raise Unusable("has an even modulus")
        if material.key_size not in RSA_BITS:
            raise Unusable(f"has {material.key_size} bits; RSA keys need {RSA_BITS[0]} to {RSA_BITS[-1]}")
        fitting = "RS256"
    elif isinstance(material, EllipticCurvePublicKey) and isinstance(material.curve, SECP256R1):
        fitting = "ES256"
    if fitting is None:
        raise Unusable(f"is none of RSA, P-256 and Ed25519, the keys of {', '.join(ALGORITHMS)}")
    if algorithm not in (None, fitting):
        raise Unusable("is for an algorithm that is not used here (alg)")
    if fitting not in algorithms:
        raise Unusable(f"is for {fitting}, which auth.jwt.algorithms does not list")
    return Key(fitting, material)


def read_public_key(pem: bytes, algorithms: Sequence[str]) -> Key:
    """Return the key of a PEM file.

    Raises:
        Unusable: it is none, or cannot be used.
    """
    if b"PRIVATE KEY" in pem:
        raise Unusable("has a private key; relayd needs the public one: openssl pkey -pubout")
    try:
        material = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise Unusable("has no PEM public key (BEGIN PUBLIC KEY)") from None
    return check_key(material, None, algorithms)


def read_secret_key(setting: str, secret: Secret) -> Key:
    """Return the HS256 key of a secret.

    Raises:
        SettingError: it is too short, not what its prefix says, or a public key.
    """
    try:
        key = decode_secret(read_jwt_secret(secret.reveal()))
        ALGORITHMS["HS256"].prepare_key(key)
    except SettingError as error:
        raise refusal(Remark(setting, str(error))) from None
    except InvalidKeyError:
        message = "that is a key of another algorithm, which others may know"
        raise refusal(Remark(setting, message, "see auth.jwt.public_key")) from None
    return Key("HS256", key)
