"""Keys from a URL: fetched beside the requests, kept while the URL does not answer.

What makes a fetch:

* the time: at the start, and when the keys are `max_age` old.  So a key that its issuer has withdrawn is
  refused soon after, even if no token with a new one ever comes;
* a token with a kid that is not known (a new key is used before we have heard of it).  Anybody can make those
  up, so they may ask for one fetch in COOL_DOWN_S, all together; those who come while one runs wait for the
  same.  A kid that a fetch has not brought is not asked for again for a while.

A fetch that fails changes nothing: the last good keys count for `stale_for` more.  Before the first good one
there are no keys, and nobody is let in.

Everything happens on the loop's thread.  `clock` is monotonic seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from relayd.auth.key_set import LONGEST_KID, KeySet, KeySetError, read_key_set
from relayd.config import Jwt
from relayd.net import FetchError

log = logging.getLogger("relayd")

FETCH_S = 2.0  # how long a fetch may take
COOL_DOWN_S = 30.0  # between fetches because of unknown kids, and after a failure
FIRST_RETRY_S = 5.0  # after a failure, while there are no keys yet
MISSING_FOR_S = COOL_DOWN_S  # how long a kid that a fetch has not brought is not asked for again
MOST_MISSING = 1000  # such kids that are remembered, the latest
MOST_WAITING = 1000  # requests that wait for a fetch; further ones are told now what is known now
TOLD_AT_ONCE = 20  # of those who wait, before others on the loop have their turn


class Fetch(Protocol):
    """A GET: relayd.net.fetch, or what a test has instead."""

    def __call__(self, url: str, *, timeout_s: float) -> Awaitable[tuple[int, bytes]]: ...


class KeySource:
    """The keys that one URL has, as far as is known."""

    def __init__(
        self,
        settings: Jwt,
        fetch: Fetch,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = settings.jwks
        self.algorithms = settings.algorithms
        self.keys: KeySet | None = None
        self.fetches = 0
        self.failures = 0
        self.failure = ""  # why the last fetch brought nothing, if it did not
        self._fetch = fetch
        self._on_change = on_change
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], None]] = []
        self._asked: set[str] = set()  # kids that those who wait have named
        self._missing: dict[str, float] = {}  # kid: until when it is not asked for, the oldest first
        self._fetched_at = 0.0  # when the keys were fetched
        self._next_asked_at = clock()  # when a kid may be asked for
        self._due_at = clock()
        self.set_times(settings)

    def set_times(self, settings: Jwt) -> None:
        """Take over what can change while the keys stay."""
        self._max_age_s = max(settings.max_age, COOL_DOWN_S)
        self._stale_for_s = max(settings.stale_for, COOL_DOWN_S)
        if self.keys is not None:
            self._due_at = min(self._due_at, self._fetched_at + self._max_age_s)

    @property
    def age_s(self) -> float:
        """Seconds since the keys were fetched; 0 before that."""
        return self._clock() - self._fetched_at if self.keys is not None else 0.0

    def poll(self) -> None:
        """Start a fetch if it is time for one, and drop keys that are too old."""
        if self.keys is not None and self.age_s > self._max_age_s + self._stale_for_s:
            log.warning("auth.jwt.jwks: the keys are too old to be used: %s", self.failure)
            self._take(None)
        if self._task is None and self._clock() >= self._due_at:
            self._start()

    def may_bring(self, kid: str | None) -> bool:
        """True if `ask` would start or join a fetch that may bring `kid`, which is not known now."""
        if self.keys is None or not kid or len(kid) > LONGEST_KID:
            return self.keys is None and self._may_ask()
        if self._missing.get(kid, 0.0) > self._clock() or not self._may_ask():
            return False
        if len(self._asked) < MOST_MISSING:
            self._asked.add(kid)
        return True

    def ask(self, then: Callable[[], None]) -> bool:
        """Start or join a fetch; True if `then` will be called when it has ended, however it ends."""
        if not self._may_ask():
            return False
        if self._task is None:
            self._next_asked_at = self._clock() + COOL_DOWN_S
            self._start()
        self._waiting.append(then)
        return True

    def _may_ask(self) -> bool:
        if self._task is not None:
            return len(self._waiting) < MOST_WAITING
        if self.keys is None:
            return self._clock() >= self._due_at
        return self._clock() >= self._next_asked_at

    async def refresh(self) -> None:
        """Fetch, or wait for the fetch that is under way; how it went, `failure` says."""
        await asyncio.wait([self._task or self._start()])

    def close(self) -> None:
        """Stop; those who wait are told."""
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> asyncio.Task[None]:
        self.fetches += 1
        self._task = asyncio.get_running_loop().create_task(self._try_fetch())
        self._task.add_done_callback(self._ended)
        return self._task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(type(error).__name__)
        self._asked.clear()
        waiting, self._waiting = self._waiting, []
        self._tell(waiting)

    def _tell(self, waiting: list[Callable[[], None]]) -> None:
        for then in waiting[:TOLD_AT_ONCE]:
            then()
        if waiting[TOLD_AT_ONCE:]:
            asyncio.get_running_loop().call_soon(self._tell, waiting[TOLD_AT_ONCE:])

    async def _try_fetch(self) -> None:
        self._due_at = self._clock() + (COOL_DOWN_S if self.keys is not None else FIRST_RETRY_S)
        try:
            async with asyncio.timeout(FETCH_S):
                status, body = await self._fetch(self.url, timeout_s=FETCH_S)
            if status != 200:
                raise KeySetError(f"the answer is {status}")
            keys = read_key_set(body, self.algorithms)
        except (FetchError, KeySetError, TimeoutError) as error:
            self._fail(str(error) or f"no answer within {FETCH_S:g} s")
            return
        self.failure = ""
        self._fetched_at = self._clock()
        self._due_at = self._fetched_at + self._max_age_s
        self._take(keys)
        self._remember_missing(keys)

    def _fail(self, why: str) -> None:
        self.failures += 1
        self.failure = why
        shown, _, _ = self.url.partition("?")  # what follows may be a secret
        log.warning("auth.jwt.jwks: %s: %s", shown, why)

    def _take(self, keys: KeySet | None) -> None:
        changed = (self.keys.digest if self.keys else None) != (keys.digest if keys else None)
        self.keys = keys
        if changed:
            for warning in keys.warnings if keys else ():
                log.warning("auth.jwt.jwks: %s", warning)
            self._missing.clear()
            self._on_change()

    def _remember_missing(self, keys: KeySet) -> None:
        until = self._clock() + MISSING_FOR_S
        for kid in self._asked - keys.by_kid.keys():
            self._missing.pop(kid, None)
            self._missing[kid] = until
        while len(self._missing) > MOST_MISSING:
            del self._missing[next(iter(self._missing))]
