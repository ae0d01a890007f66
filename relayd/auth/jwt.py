"""Is this token good, and whose is it?

PyJWT checks signatures; everything around them is read here, over the bytes as they came and in one way only
(`strict.py`).  Two rules carry the rest (RFC 8725):

* The key decides, not the token.  A token names a key by its `kid`, which is looked up and used for nothing
  else; the key has one algorithm, and `alg` must be its name.
* Nothing in a token is followed.  A header that brings a key, an address or an extension is refused.

Nothing here raises, whatever the bytes are, and nothing here knows where keys come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jwt.algorithms import Algorithm, ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from relayd.auth.base import DEFAULT_TIER, LONGEST_CREDENTIAL, Granted, Refused, Tenant, is_tenant_name
from relayd.auth.strict import StrictError, decode_base64url, decode_object
from relayd.config import Jwt
from relayd.readers import SettingError, read_name

ALGORITHMS: dict[str, Algorithm] = {
    "RS256": RSAAlgorithm(RSAAlgorithm.SHA256),
    "HS256": HMACAlgorithm(HMACAlgorithm.SHA256),
    "ES256": ECAlgorithm(ECAlgorithm.SHA256),
    "EdDSA": OKPAlgorithm(),
}
# What brings keys or addresses, changes how the rest is read, or belongs to encrypted tokens.
REFUSED_MEMBERS = frozenset({"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"})
TYPES = ("jwt", "at+jwt")


class Key:
    """A key and the one algorithm that it is for."""

    __slots__ = ("algorithm", "material")

    def __init__(self, algorithm: str, material: Any) -> None:
        self.algorithm = algorithm
        self.material = material  # as ALGORITHMS[algorithm].verify takes it: bytes, or a public key object

    def __repr__(self) -> str:
        return f"Key({self.algorithm})"

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """True if `signature` is this key's, of `message`; secrets are compared in constant time."""
        return ALGORITHMS[self.algorithm].verify(message, self.material, signature)


class Keyring(NamedTuple):
    """The keys that count now."""

    by_kid: Mapping[str, Key] = {}
    only: Key | None = None  # the one key, where there is but one: it needs no kid
    nameless: bool = False  # and it has no name either, so that any kid may mean it

    def find(self, kid: str | None) -> Key | None:
        """Return the key that `kid` means, if there is one."""
        if self.only is not None and (kid is None or self.nameless):
            return self.only
        return self.by_kid.get(kid) if kid is not None else None


class Jws(NamedTuple):
    """A token taken apart; nothing in it is to be believed before its signature is checked."""

    algorithm: str
    kid: str | None
    signed: bytes
    payload: bytes
    signature: bytes


def take_apart(token: bytes) -> Jws | Refused:
    """Return the parts of a compact token, or why it is none."""
    if len(token) > LONGEST_CREDENTIAL:
        return Refused("too_long")
    if token.count(b".") != 2:
        return Refused("malformed")
    signed, _, signature_text = token.rpartition(b".")
    header_text, _, payload_text = signed.partition(b".")
    try:
        header_bytes, payload, signature = map(decode_base64url, (header_text, payload_text, signature_text))
    except StrictError:
        return Refused("bad_encoding")
    try:
        header = decode_object(header_bytes)
    except StrictError:
        return Refused("bad_json")
    return read_header(header, signed, payload, signature)


def read_header(header: dict[str, Any], signed: bytes, payload: bytes, signature: bytes) -> Jws | Refused:
    """Return the parts of a token whose header has nothing against it."""
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str):
        return Refused("bad_algorithm")
    if not REFUSED_MEMBERS.isdisjoint(header):
        return Refused("bad_header")
    if "kid" in header and not isinstance(kid, str):
        return Refused("bad_header")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        return Refused("bad_type")
    return Jws(algorithm, kid, signed, payload, signature)


def judge(token: Jws, key: Key, rules: Jwt, now: float) -> Granted | Refused:
    """Return whose token it is, or why it is refused; `now` is the wall clock's, in seconds."""
    if token.algorithm != key.algorithm:
        return Refused("bad_algorithm")
    if not key.has_signed(token.signed, token.signature):
        return Refused("bad_signature")
    try:
        claims = decode_object(token.payload)
    except StrictError:
        return Refused("bad_json")
    refused = refuse_times(claims, rules, now) or refuse_parties(claims, rules)
    if refused is not None:
        return refused
    tenant = read_tenant(claims, rules)
    if isinstance(tenant, Refused):
        return tenant
    return Granted(tenant, claims["exp"] + rules.leeway)


def refuse_times(claims: dict[str, Any], rules: Jwt, now: float) -> Refused | None:
    """Return why the token is not for `now`, or None.  RFC 7519 4.1.4: on or after exp it is over."""
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if "exp" not in times or not all(is_number(time) for time in times.values()):
        return Refused("bad_claim")
    if now >= times["exp"] + rules.leeway:
        return Refused("expired")
    if rules.max_lifetime and times["exp"] > now + rules.max_lifetime + rules.leeway:
        return Refused("too_far")
    if max(times.get("nbf", 0), times.get("iat", 0)) > now + rules.leeway:
        return Refused("not_yet_valid")
    return None


def refuse_parties(claims: dict[str, Any], rules: Jwt) -> Refused | None:
    """Return why the token is not from the issuer or not for this audience, or None.

    Texts are equal or not: no part of one, no other spelling of a URL.
    """
    if rules.issuer and claims.get("iss") != rules.issuer:
        return Refused("wrong_issuer")
    if not rules.audience:
        return None
    audience = claims.get("aud")
    listed = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(one, str) for one in listed) or rules.audience not in listed:
        return Refused("wrong_audience")
    return None


def read_tenant(claims: dict[str, Any], rules: Jwt) -> Tenant | Refused:
    """Return the tenant that the claims tell of.

    A list of models that cannot be read is refused: it was meant to bound what the token is for.
    """
    name, tier = claims.get(rules.tenant_claim), read_tier(claims.get(rules.tier_claim))
    if not is_tenant_name(name):
        return Refused("bad_tenant")
    if rules.models_claim not in claims:
        return Tenant(name, tier)
    models = claims[rules.models_claim]
    if isinstance(models, str):
        models = models.split()
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        return Refused("bad_claim")
    return Tenant(name, tier, frozenset(models))


def read_tier(tier: object) -> str:
    """Return a tier's name; what is none means the default."""
    try:
        return read_name(tier) if isinstance(tier, str) else DEFAULT_TIER
    except SettingError:
        return DEFAULT_TIER


def is_number(value: object) -> bool:
    """True for a JSON number; True and False are none, although Python counts with them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
