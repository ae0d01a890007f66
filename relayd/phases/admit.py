"""Phase 1: is the head acceptable?"""

from __future__ import annotations

from relayd._fast.head import HeadFault
from relayd.config import Settings
from relayd.faults import HEAD_FAULTS, Fault, fault
from relayd.records import Exchange


def admit(exchange: Exchange, settings: Settings) -> Fault | None:
    """Return a fault if the head cannot be served."""
    head = exchange.head
    if head.fault:
        return head_fault(exchange)
    if head.content_length > settings.max_body:
        return fault("body_too_large", f"{settings.max_body} bytes")
    return None


def head_fault(exchange: Exchange) -> Fault:
    """Return the fault for what is wrong with the head."""
    head = exchange.head
    detail = head.method
    if head.bad_name is not None:
        detail = repr(head.bad_name[:64].decode("ascii", "backslashreplace"))
    return fault(HEAD_FAULTS[HeadFault(head.fault)], detail)
