"""Who is asking?

A credential comes in `Authorization: Bearer`, or in `x-api-key` or Azure's `api-key`; wherever it comes, it
may be an API key or a token, because SDKs put what they were given where they always put it. `Authorization`
decides where there are both.

What was found good is remembered by the hash of the whole header until it ends, so that a signature is
checked once and not with every request.  Nothing else is: a refusal is found anew each time, and what is
remembered is forgotten when keys change.  With neither tokens nor keys configured everybody is refused;
whether to ask at all is the caller's decision (`material.is_wanted`).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable
from hmac import compare_digest

from relayd.auth.base import LONGEST_CREDENTIAL, REASONS, WAIT, Granted, Refused, Tenant, Wait
from relayd.auth.jwks import Fetch, KeySource
from relayd.auth.jwt import Keyring, judge, take_apart
from relayd.auth.material import Material, has_tokens, is_url, read_material
from relayd.config import Auth
from relayd.records import Client

MOST_REMEMBERED = 10_000  # good credentials; the oldest make room
LONGEST_KEPT = 4 << 10  # bytes of a credential that a connection keeps
LONGEST_HEADER = LONGEST_CREDENTIAL + 64  # "Bearer " and some spaces before it
BEARER = re.compile(rb"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)  # RFC 6750 2.1: one b64token
VISIBLE = re.compile(rb"[!-~]+")
MISSING = Refused("missing")
LOOK_EVERY_S = 1.0  # how often `run` looks whether keys are to be fetched


class Authenticator:
    """Says whose credential it is.

    Made once for a gateway, used on the loop's thread. `clock` is monotonic seconds; the wall clock's time
    comes with each question.  Whoever made it keeps `run()` running, so that keys from a URL stay fresh.
    """

    def __init__(self, settings: Auth, *, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files that `settings` name.

        Raises:
            SettingError: one of them, or a setting, cannot be used.
        """
        self.hits = 0
        self.misses = 0
        self.refused = dict.fromkeys(REASONS, 0)
        self.source: KeySource | None = None
        self._fetch = fetch
        self._clock = clock
        self._granted: dict[bytes, Granted] = {}
        self.adopt(read_material(settings))

    # --- asked with every request -----------------------------------------------------------------------

    def check(
        self, authorization: bytes | None, api_key: bytes | None, now: float, client: Client | None = None
    ) -> Tenant | Refused | Wait:
        """Return whose credential it is, why it is refused, or WAIT: then see `when_known`.

        The arguments are the values of the headers, without space around them, or None; `now` is the wall
        clock's time in seconds; `client` whose connection it came on.  Never raises, whatever the bytes are.
        """
        header = authorization if authorization is not None else api_key
        if header is None:
            return self._refuse(MISSING)
        if len(header) > LONGEST_HEADER:
            return self._refuse(Refused("too_long"))
        if client is not None and is_same(client, header, authorization is not None):
            digest = client.digest
        else:
            digest = digest_of(header, authorization is not None)
            if client is not None:
                note_last(client, header, authorization is not None, digest)
        granted = self._granted.get(digest)
        if granted is not None:
            if now < granted.ends_at:
                self.hits += 1
                return granted.tenant
            del self._granted[digest]
        self.misses += 1
        verdict = self._look_at(header, authorization is not None, now)
        if isinstance(verdict, Granted):
            self._remember(digest, verdict)
            return verdict.tenant
        return self._refuse(verdict) if isinstance(verdict, Refused) else verdict

    def knows(self, authorization: bytes | None, api_key: bytes | None, now: float) -> bool:
        """True if this credential was found good before, so that looking at it costs next to nothing."""
        header = authorization if authorization is not None else api_key
        if header is None or len(header) > LONGEST_HEADER:
            return False
        granted = self._granted.get(digest_of(header, authorization is not None))
        return granted is not None and now < granted.ends_at

    def when_known(self, then: Callable[[], None]) -> bool:
        """After WAIT: call `then` once when there is more to know, and return True; then ask again.

        False: there is nothing to wait for, and the credential is refused.
        """
        return self.source is not None and self.source.ask(then)

    # --- life -------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """False until the first keys are there."""
        return self.source is None or self.source.keys is not None

    @property
    def remembered(self) -> int:
        """How many credentials are remembered."""
        return len(self._granted)

    @property
    def keys_age_s(self) -> float:
        """Seconds since the keys were fetched; 0 where there is no URL, or no keys yet."""
        return self.source.age_s if self.source is not None else 0.0

    async def run(self) -> None:
        """Keep keys from a URL fresh until cancelled; ask once a second, since a reload may bring a URL."""
        while True:
            self.poll()
            await asyncio.sleep(LOOK_EVERY_S)

    def poll(self) -> None:
        """Start a fetch of the keys if one is due.  On the loop."""
        if self.source is not None:
            self.source.poll()

    def adopt(self, material: Material) -> None:
        """Take over what `read_material` has read, perhaps on another thread; keys from the same URL stay."""
        jwt = material.settings.jwt
        self.warnings = material.warnings
        self._rules = jwt
        self._ring_of_settings = material.ring
        self._api_keys = material.api_keys
        old, wanted = self.source, is_url(jwt.jwks)
        if old is not None and wanted and (old.url, old.algorithms) == (jwt.jwks, jwt.algorithms):
            old.set_times(jwt)
        else:
            self.source = KeySource(jwt, self._fetch, self._keys_changed, self._clock) if wanted else None
            if old is not None:
                old.close()
        self._keys_changed()

    def close(self) -> None:
        """Stop fetching."""
        if self.source is not None:
            self.source.close()

    # --- looking at what is not remembered --------------------------------------------------------------

    def _look_at(self, header: bytes, is_authorization: bool, now: float) -> Granted | Refused | Wait:
        credential = bearer_of(header) if is_authorization else key_of(header)
        if isinstance(credential, Refused):
            return credential
        known = self._api_keys.find(credential, now)
        if isinstance(known, Granted) or known.reason != "unknown_key":
            return known
        if not has_tokens(self._rules) or (self._api_keys.by_digest and credential.count(b".") != 2):
            return known
        return self._look_at_token(credential, now)

    def _look_at_token(self, token: bytes, now: float) -> Granted | Refused | Wait:
        jws = take_apart(token)
        if isinstance(jws, Refused):
            return jws
        key = self._ring.find(jws.kid)
        if key is not None:
            return judge(jws, key, self._rules, now)
        if jws.kid is None and self._ring.by_kid:
            return Refused("no_kid")
        if self.source is not None and self.source.may_bring(jws.kid):
            return WAIT
        return Refused("unknown_kid" if self.ready else "no_keys")

    def _refuse(self, refused: Refused) -> Refused:
        self.refused[refused.reason] += 1
        return refused

    def _remember(self, digest: bytes, granted: Granted) -> None:
        if len(self._granted) >= MOST_REMEMBERED:
            del self._granted[next(iter(self._granted))]
        self._granted[digest] = granted

    def _keys_changed(self) -> None:
        self._granted.clear()
        fetched = self.source.keys if self.source is not None else None
        own = self._ring_of_settings
        if fetched is None:
            self._ring = own
        elif own.by_kid:
            self._ring = Keyring({**fetched.by_kid, **own.by_kid})
        else:
            self._ring = Keyring(fetched.by_kid, fetched.only, nameless=not fetched.by_kid)


def is_same(client: Client, header: bytes, is_authorization: bool) -> bool:
    """True if the client's last credential came in the same header and was this one, byte for byte.

    Finding that out takes 1,600 instructions, hashing it again 11,400.  In constant time, because a balancer
    in front of relayd sends requests of several clients over one connection.
    """
    if client.credential is None or client.in_authorization != is_authorization:
        return False
    return compare_digest(client.credential, header)


def note_last(client: Client, header: bytes, is_authorization: bool, digest: bytes) -> None:
    """Keep a client's last credential, unless it is long: there are many connections."""
    client.credential = header if len(header) <= LONGEST_KEPT else None
    client.in_authorization = is_authorization
    client.digest = digest


def digest_of(header: bytes, is_authorization: bool) -> bytes:
    """Return what a credential is remembered by: the same bytes mean something else in another header."""
    digest = hashlib.sha256(header).digest()
    return digest if is_authorization else digest + b"k"


def bearer_of(header: bytes) -> bytes | Refused:
    """Return the one credential of an Authorization header."""
    match = BEARER.fullmatch(header)
    if match is None:
        return Refused("malformed" if header[:7].lower() == b"bearer " else "bad_scheme")
    return match[1] if len(match[1]) <= LONGEST_CREDENTIAL else Refused("too_long")


def key_of(header: bytes) -> bytes | Refused:
    """Return the credential of an x-api-key header."""
    if len(header) > LONGEST_CREDENTIAL:
        return Refused("too_long")
    return header if VISIBLE.fullmatch(header) else Refused("malformed")
