"""Phase 1: is the head acceptable, and what is the request called?"""

from __future__ import annotations

import re

from relayd._fast.head import random_hex
from relayd.config import Settings
from relayd.faults import HEAD_FAULTS, Fault, fault
from relayd.records import Exchange

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def admit(exchange: Exchange, settings: Settings) -> Fault | None:
    """Name the exchange; return a fault if its head cannot be served."""
    head = exchange.head
    name(exchange)
    if head.fault:
        return head_fault(exchange)
    if head.content_length > settings.max_body:
        return fault("body_too_large", f"{settings.max_body} bytes")
    return None


def name(exchange: Exchange) -> None:
    """Keep the client's request id and traceparent, or make them (W3C Trace Context, level 1)."""
    head = exchange.head
    drawn = random_hex(3)
    given, parent = head.request_id, head.traceparent
    known = given is not None and _REQUEST_ID.fullmatch(given)
    exchange.request_id = given if known else b"req_" + drawn[:24]  # type: ignore[assignment]
    known = parent is not None and _TRACEPARENT.fullmatch(parent)
    exchange.traceparent = parent if known else b"00-" + drawn[:32] + b"-" + drawn[32:] + b"-01"  # type: ignore[assignment]


def head_fault(exchange: Exchange) -> Fault:
    """Return the fault for what is wrong with the head."""
    head = exchange.head
    detail = head.method
    if head.bad_name is not None:
        detail = repr(head.bad_name[:64].decode("ascii", "backslashreplace"))
    return fault(HEAD_FAULTS[head.fault], detail)
