"""Phase 1: does this address ask too often, and is the head acceptable?"""

from __future__ import annotations

from relayd._fast.head import HeadFault
from relayd.config import Settings
from relayd.faults import HEAD_FAULTS, Fault, fault
from relayd.limits.addresses import Addresses
from relayd.records import Exchange


def admit(exchange: Exchange, settings: Settings, addresses: Addresses) -> Fault | None:
    """Return a fault if the address must wait, or its head cannot be served."""
    head = exchange.head
    if addresses.needed:
        exchange.address = addresses.origin(exchange.client.address, head.forwarded_for)
        wait_ns = addresses.wait_ns(exchange.address, exchange.arrived_ns)
        if wait_ns:
            return address_fault(settings, wait_ns)
    if head.fault:
        return head_fault(exchange)
    if head.content_length > settings.max_body:
        return fault("body_too_large", f"{settings.max_body} bytes")
    return None


def address_fault(settings: Settings, wait_ns: int) -> Fault:
    """Return the fault of an address that must wait so long."""
    limit = settings.limits.per_address
    assert limit.rate is not None
    allowed = f"{limit.rate.units} in {limit.rate.period_s:g} s and {limit.burst} at once are allowed"
    return fault("address_rate", allowed, retry_after_s=wait_ns / 1e9)


def head_fault(exchange: Exchange) -> Fault:
    """Return the fault for what is wrong with the head."""
    head = exchange.head
    detail = head.method
    if head.bad_name is not None:
        detail = repr(head.bad_name[:64].decode("ascii", "backslashreplace"))
    return fault(HEAD_FAULTS[HeadFault(head.fault)], detail)
