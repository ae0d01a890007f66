"""Whose address a request comes from, and whether it asks too often.

An address in X-Forwarded-For is worth nothing, except where a trusted proxy has written it: the list is read
from its end, and the first address that is no trusted proxy's is the one that asks.  An IPv6 customer has
2**64 addresses to choose from, so those are counted by their /64.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from relayd._fast.bucket import Buckets, Rate
from relayd.config import PerAddress
from relayd.readers import UNIX, RateOf

Address = IPv4Address | IPv6Address

SLOTS = 1 << 16  # addresses that are remembered while they are behind
HOPS_AT_MOST = 32  # addresses of X-Forwarded-For that are looked at
KNOWN_AT_MOST = 4096  # addresses whose keys are kept at hand
NS = 1_000_000_000


class Addresses:
    """Knows the trusted proxies and the buckets of everybody else."""

    def __init__(
        self, trusted: Sequence[str], limit: PerAddress, now_ns: int, failures: RateOf | None = None
    ) -> None:
        self.trusted = [ip_network(text) for text in trusted if text != UNIX]
        self.trusts_unix = UNIX in trusted
        self.buckets: Buckets | None = None
        if limit.rate is not None:
            rate = Rate(limit.rate.units, int(limit.rate.period_s * NS), limit.burst, now_ns)
            self.buckets = Buckets(rate, bytearray(SLOTS * Buckets.SLOT_SIZE))
        self.failures: Buckets | None = None  # of wrong credentials
        if failures is not None:
            rate = Rate(failures.units, int(failures.period_s * NS), failures.units, now_ns)
            self.failures = Buckets(rate, bytearray(SLOTS * Buckets.SLOT_SIZE))
        self.needed = bool(trusted) or self.buckets is not None or self.failures is not None
        self.key_of = lru_cache(KNOWN_AT_MOST)(partial(key_of, os.urandom(16)))
        self.trusts = lru_cache(KNOWN_AT_MOST)(self._trusts)

    def _trusts(self, text: str) -> bool:
        if text == UNIX:
            return self.trusts_unix
        address = read_address(text)
        return address is not None and any(address in network for network in self.trusted)

    def origin(self, peer: str, forwarded_for: bytes | None) -> str:
        """Return the address that asks: the peer's, or what trusted proxies say of theirs."""
        if forwarded_for is None or not self.trusts(peer):
            return peer
        found = peer
        for part in reversed(forwarded_for.decode("latin-1").split(",")[-HOPS_AT_MOST:]):
            address = read_address(part.strip())
            if address is None:
                break  # what stands before it is nobody's word
            found = str(address)
            if not self.trusts(found):
                break
        return found

    def wait_ns(self, address: str, now_ns: int) -> int:
        """Count one request of `address`; return 0, or how many nanoseconds it comes too early."""
        if self.buckets is None:
            return 0
        key = self.key_of(address)
        return 0 if key is None else self.buckets.take(key, 1, now_ns)

    def note_failure(self, address: str, now_ns: int) -> None:
        """Count a wrong credential of `address`."""
        key = self.key_of(address)
        if self.failures is not None and key is not None:
            self.failures.take(key, 1, now_ns)

    def failures_wait_ns(self, address: str, now_ns: int) -> int:
        """Return how long `address` must wait before it may try another credential; 0 if it need not."""
        key = self.key_of(address)
        if self.failures is None or key is None or self.failures.left(key, now_ns):
            return 0
        return self.failures.rate.period_ns // self.failures.rate.count


def read_address(text: str) -> Address | None:
    """Return an address as it stands in X-Forwarded-For, with or without a port, or None if it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def key_of(secret: bytes, text: str) -> bytes | None:
    """Return the bucket key of an address, the same for a whole IPv6 /64; None for what has no address.

    It is a keyed hash, so that nobody can choose addresses whose buckets push each other out.
    """
    address = read_address(text)
    if address is None:
        return None
    counted = address.packed if isinstance(address, IPv4Address) else address.packed[:8]
    return hashlib.blake2b(counted, digest_size=16, key=secret).digest()
