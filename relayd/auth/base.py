"""What the room says of a credential: whose it is, why it is refused, or that it cannot be told yet.

A client hears the same of every refusal; the reason is for the log, the metrics and `relayd token verify`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import msgspec

LONGEST_CREDENTIAL = 8 << 10  # bytes; looked at before anything else is done with it
LONGEST_TENANT = 255  # characters; a tenant's name is a key of tables and a word of the log
DEFAULT_TIER = "default"

# Every reason to refuse a credential, and what it means.  The list is closed, so that it can label a metric.
REASONS = {
    "missing": "there is no credential",
    "too_long": "it is longer than 8 KiB",
    "bad_scheme": "Authorization does not say Bearer",
    "malformed": "it is neither a token nor a key, by its look",
    "unknown_key": "no API key has this hash",
    "key_expired": "the API key's time is over",
    "bad_encoding": "a part of the token is not base64url without padding",
    "bad_json": "a part of the token is not a JSON object, or one that two readers may read differently",
    "bad_header": "a member of the token's header has a wrong type, or is one that is refused, such as jku",
    "bad_type": "typ says that it is another kind of token",
    "bad_algorithm": "alg is not the algorithm of the key",
    "no_kid": "it does not say which of several keys has signed it",
    "unknown_kid": "no key has the name it gives",
    "no_keys": "the keys could not be had yet, or are too old by now",
    "bad_signature": "the key has not signed this",
    "bad_claim": "a claim is missing or has a wrong type",
    "expired": "exp has passed",
    "too_far": "exp is further away than max_lifetime",
    "not_yet_valid": "nbf or iat is in the future",
    "wrong_issuer": "iss is not the issuer",
    "wrong_audience": "aud is not, and does not contain, the audience",
    "bad_tenant": "the claim that says who asks is missing, empty, too long or not printable",
}


class Tenant(msgspec.Struct, frozen=True):
    """Who asks, and for what: all that is known of a client with a good credential."""

    name: str
    tier: str = DEFAULT_TIER
    models: frozenset[str] | None = None  # None: all of them


class Refused(NamedTuple):
    """A credential that is worth nothing, and which of REASONS says why."""

    reason: str


class Granted(NamedTuple):
    """A credential's tenant, and the wall-clock time in seconds from which it is worth nothing."""

    tenant: Tenant
    ends_at: float


class Wait:
    """It depends on keys that are being fetched: see Authenticator.when_known.  WAIT is the only one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "WAIT"


WAIT = Wait()


def is_tenant_name(name: object) -> TypeGuard[str]:
    """True for a text that can name a tenant: not empty, not too long, nothing that does not print."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_TENANT and name.isprintable()
