"""Phase 2: who is asking?"""

from __future__ import annotations

from relayd.auth.authenticator import Authenticator
from relayd.auth.base import Refused, Tenant, Wait
from relayd.faults import Fault, fault
from relayd.limits.addresses import Addresses
from relayd.records import Exchange


def authenticate(
    exchange: Exchange, authenticator: Authenticator, addresses: Addresses, now_ns: int, now_wall: float
) -> Fault | Wait | None:
    """Note the tenant; return a fault if the credential is nobody's, or WAIT while its key is fetched.

    An address that has sent too many wrong ones is not listened to for a while, except with a credential
    that is known already: checking a signature costs much more than sending one.
    """
    head = exchange.head
    tired_ns = addresses.failures_wait_ns(exchange.address, now_ns)
    if tired_ns and not authenticator.knows(head.authorization, head.api_key, now_wall):
        return fault("credentials_tried", retry_after_s=tired_ns / 1e9)
    verdict = authenticator.check(head.authorization, head.api_key, now_wall, exchange.client)
    if isinstance(verdict, Tenant):
        exchange.tenant = verdict.name
        exchange.tier = verdict.tier
        exchange.allowed = verdict.models
        return None
    return refusal(exchange, verdict, addresses, now_ns) if isinstance(verdict, Refused) else verdict


def refusal(exchange: Exchange, verdict: Refused, addresses: Addresses, now_ns: int) -> Fault:
    """Return the fault of a refused credential; why it was refused is not the client's to know."""
    if verdict.reason == "missing":
        return fault("credential_missing")
    if verdict.reason == "no_keys":
        return fault("keys_missing", retry_after_s=1.0)
    addresses.note_failure(exchange.address, now_ns)
    return fault("credential_invalid")
