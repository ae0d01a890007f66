"""The address that asks is found behind proxies, and counted as one customer's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd.config import PerAddress
from relayd.limits.addresses import Addresses, read_address
from relayd.readers import RateOf

NOW = 10**15
S = 1_000_000_000
PROXIES = ("10.0.0.0/8", "fd00::/8")


def addresses(*trusted: str, rate: RateOf | None = None, burst: int = 2) -> Addresses:
    return Addresses(trusted, PerAddress(rate=rate, burst=burst), NOW)


@pytest.mark.parametrize(
    ("peer", "forwarded", "origin"),
    [
        ("9.9.9.9", None, "9.9.9.9"),
        ("9.9.9.9", b"1.1.1.1", "9.9.9.9"),  # not a proxy of ours: it may write what it likes
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", b"1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", b"6.6.6.6, 1.1.1.1", "1.1.1.1"),  # the client's own claim stands before
        ("10.0.0.1", b"6.6.6.6,1.1.1.1,10.0.0.2", "1.1.1.1"),
        ("10.0.0.1", b"10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", b"1.1.1.1:4711", "1.1.1.1"),
        ("10.0.0.1", b"[2001:db8::1]:443", "2001:db8::1"),
        ("10.0.0.1", b"2001:db8::1", "2001:db8::1"),
        ("fd00::1", b"1.1.1.1", "1.1.1.1"),
        ("::ffff:10.0.0.1", b"1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", b"unknown", "10.0.0.1"),
        ("10.0.0.1", b"1.1.1.1, _hidden, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("10.0.0.1", b",,,", "10.0.0.1"),
        ("10.0.0.1", b"\xff\xfe", "10.0.0.1"),
        ("unix", b"1.1.1.1", "unix"),
    ],
)
def test_who_asks(peer, forwarded, origin):
    assert addresses(*PROXIES).origin(peer, forwarded) == origin


@pytest.mark.parametrize(
    ("peer", "forwarded", "origin"),
    [
        ("unix", b"1.1.1.1", "1.1.1.1"),
        ("unix", b"6.6.6.6, 1.1.1.1, 10.0.0.2", "1.1.1.1"),
        ("unix", b"6.6.6.6, unix", "unix"),
        ("unix", None, "unix"),
        ("9.9.9.9", b"unix", "9.9.9.9"),
    ],
)
def test_a_proxy_on_a_socket_may_be_named(peer, forwarded, origin):
    known = addresses("unix", "10.0.0.0/8", rate=RateOf(1, 1.0), burst=1)
    assert known.origin(peer, forwarded) == origin
    assert [known.wait_ns(origin, NOW) > 0 for _ in range(2)] == [False, origin != "unix"]


def test_nobody_is_believed_unless_named():
    assert addresses().origin("10.0.0.1", b"1.1.1.1") == "10.0.0.1"
    assert not addresses().trusts("10.0.0.1")


def test_only_so_many_hops_are_looked_at():
    long = b"6.6.6.6, " + b"10.0.0.2, " * 10_000 + b"10.0.0.3"
    assert addresses(*PROXIES).origin("10.0.0.1", long) == "10.0.0.2"


@given(st.binary(max_size=200))
def test_any_list_has_an_origin(forwarded):
    known = addresses(*PROXIES)
    assert read_address(known.origin("10.0.0.1", forwarded)) is not None


def test_a_hundred_a_second_and_a_hundred_at_once():
    known = addresses(rate=RateOf(100, 1.0), burst=100)
    assert [known.wait_ns("1.1.1.1", NOW) for _ in range(101)] == [0] * 100 + [10_000_000]
    assert known.wait_ns("1.1.1.2", NOW) == 0
    later = [known.wait_ns("1.1.1.1", NOW + ms * 1_000_000) == 0 for ms in range(1, 1001)]
    assert sum(later) == 100


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("1.2.3.4", "::ffff:1.2.3.4", True),
        ("1.2.3.4", "1.2.3.5", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_is_one_customer(one, other, same):
    known = addresses(rate=RateOf(1, 3600.0), burst=1)
    assert known.wait_ns(one, NOW) == 0
    assert (known.wait_ns(other, NOW) > 0) is same


def test_what_has_no_address_is_not_counted():
    known = addresses(rate=RateOf(1, 3600.0), burst=1)
    assert [known.wait_ns("unix", NOW) for _ in range(5)] == [0] * 5


def test_without_a_limit_nobody_waits():
    known = addresses()
    assert [known.wait_ns("1.1.1.1", NOW) for _ in range(500)] == [0] * 500


def test_more_addresses_than_there_is_room_for_are_served_all_the_same():
    known = addresses(rate=RateOf(1, 86400.0), burst=1)
    for number in range(70_000):
        assert known.wait_ns(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", NOW) == 0
    assert known.buckets is not None
    assert known.buckets.forgotten > 0
