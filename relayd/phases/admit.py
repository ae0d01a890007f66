"""Phase 1: is the head acceptable, and what is being asked for?"""

from __future__ import annotations

import re
from random import getrandbits

from relayd.config import Settings
from relayd.faults import HEAD_FAULTS, Fault, fault
from relayd.phases.routes import route_for
from relayd.records import Exchange

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def admit(exchange: Exchange, settings: Settings) -> Fault | None:
    """Name the exchange and its route; return a fault if the head cannot be served."""
    head = exchange.head
    given = head.request_id
    if given is not None and _REQUEST_ID.fullmatch(given):
        exchange.request_id = given.decode("ascii")
    else:
        exchange.request_id = f"req_{getrandbits(96):024x}"
    exchange.route = route_for(head.method, head.path, head.anthropic)
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
    return fault(HEAD_FAULTS[head.fault], detail)


def trace_parent(given: bytes | None) -> bytes:
    """Return the client's traceparent if it is one, else a new one (W3C Trace Context, level 1)."""
    if given is not None and _TRACEPARENT.fullmatch(given):
        return given
    return b"00-%032x-%016x-01" % (getrandbits(128) or 1, getrandbits(64) or 1)
