"""Every way to fail, in one table.

A Fault is an expected failure: it has a stable code, a status, words that a person can act on, and says
whose fault it is and whether trying again can help.  Phases return faults; only what cannot happen is an
exception.  How a fault looks on the wire is its dialect's business (`dialects/`).
"""

from __future__ import annotations

from typing import NamedTuple

from relayd._fast.head import HeadFault
from relayd._fast.leg import LegOutcome


class FaultKind(NamedTuple):
    """One row of the table: everything about a failure that does not depend on the request."""

    code: str
    status: int
    whose: str  # "client", "worker" or "relayd"
    text: str


class Fault(NamedTuple):
    """One failure: its kind, the sentence for this request, and what waiting would help."""

    kind: FaultKind
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.kind.status

    @property
    def code(self) -> str:
        """The stable code."""
        return self.kind.code


KINDS = {
    kind.code: kind
    for kind in (
        # The head of a request.
        FaultKind("method_not_allowed", 405, "client", "the method {detail} is not served here"),
        FaultKind("http_version", 505, "client", "only HTTP/1.1 and HTTP/1.0 are served here"),
        FaultKind(
            "bad_target",
            400,
            "client",
            "the request target must be a plain path: visible ASCII, from '/', without '..' segments",
        ),
        FaultKind("bad_host", 400, "client", "one Host header with a name or address is needed"),
        FaultKind("bad_header", 400, "client", "the header {detail} is malformed"),
        FaultKind(
            "bad_wish",
            400,
            "client",
            "the header {detail} is not understood: X-Relayd-Timeout-Ms is a number from 1 to 604800000, "
            "X-Relayd-Priority is critical, interactive, default or batch",
        ),
        FaultKind("bad_length", 400, "client", "the length of the body is not clear from the head"),
        FaultKind("transfer_coding", 501, "client", "the only transfer coding served here is chunked"),
        FaultKind(
            "bad_credential",
            400,
            "client",
            "at most one Authorization header with one credential may be sent",
        ),
        FaultKind("expectation", 417, "client", "the only expectation served here is 100-continue"),
        FaultKind("loop_detected", 508, "client", "this request has been through this relayd before"),
        FaultKind("bad_request", 400, "client", "the request is not valid HTTP: {detail}"),
        FaultKind("head_too_large", 431, "client", "the request's head is too large: {detail}"),
        FaultKind("head_timeout", 408, "client", "the request's head did not arrive in time"),
        # The body of a request.
        FaultKind("body_timeout", 408, "client", "the request's body stopped arriving"),
        FaultKind("body_too_large", 413, "client", "the request's body is larger than {detail} (max_body)"),
        FaultKind("bad_body", 400, "client", "the request's body {detail}"),
        FaultKind("bad_query", 400, "client", "the query {detail}"),
        FaultKind("body_coding", 415, "client", "the body's coding {detail} is not read here"),
        # Who asks.
        FaultKind(
            "credential_missing",
            401,
            "client",
            "a credential is needed: send it as Authorization: Bearer, x-api-key or api-key",
        ),
        FaultKind("credential_invalid", 401, "client", "the credential is not valid"),
        FaultKind("credentials_tried", 429, "client", "too many wrong credentials from this address"),
        FaultKind("keys_missing", 503, "relayd", "the keys that tokens are checked with are not there yet"),
        # Limits.
        FaultKind("address_rate", 429, "client", "too many requests from this address: {detail}"),
        FaultKind("requests_rate", 429, "client", "too many requests: {detail} are allowed"),
        FaultKind("tokens_rate", 429, "client", "too many tokens: {detail} are allowed"),
        FaultKind("concurrency", 429, "client", "too many requests at the same time: {detail} are allowed"),
        FaultKind("quota_exhausted", 429, "client", "API quota exhausted: {detail} are allowed"),
        # What is asked for.
        FaultKind("model_not_found", 404, "client", "the model {detail} is not served here"),
        FaultKind("model_forbidden", 403, "client", "the model {detail} is not allowed with this credential"),
        FaultKind("path_not_found", 404, "client", "the path {detail} is not served here"),
        FaultKind("path_forbidden", 403, "client", "the path {detail} is not allowed with this credential"),
        # Choosing a worker.
        FaultKind("no_worker", 503, "relayd", "no worker can take this request now"),
        FaultKind("overloaded", 503, "relayd", "too much is being held in memory; try again shortly"),
        FaultKind("draining", 503, "relayd", "this relayd is shutting down"),
        # Getting an answer.
        FaultKind("connect_failed", 502, "worker", "the worker {worker} cannot be reached: {detail}"),
        FaultKind("connect_timeout", 504, "worker", "the worker {worker} {detail}"),
        FaultKind("tls_error", 502, "worker", "no TLS connection to the worker {worker}: {detail}"),
        FaultKind("worker_reset", 502, "worker", "the worker {worker} {detail}"),
        FaultKind("bad_answer", 502, "worker", "the worker {worker} {detail}"),
        FaultKind("worker_error", 502, "worker", "the worker {worker} {detail}"),
        FaultKind("answer_cut", 502, "worker", "the worker {worker} {detail}"),
        FaultKind("first_token_timeout", 504, "worker", "the worker {worker} {detail} (first_token)"),
        FaultKind("idle_timeout", 504, "worker", "the worker {worker} {detail} (idle)"),
        FaultKind("total_timeout", 504, "worker", "the request {detail} (total)"),
        FaultKind(
            "deadline", 504, "worker", "there was no whole answer within the client's X-Relayd-Timeout-Ms"
        ),
        # Ours.
        FaultKind("internal", 500, "relayd", "relayd failed on this request; its log says why"),
    )
}

# HeadFault -> code; the detail, where the text wants one, is the field's name or the method.
HEAD_FAULTS = {
    HeadFault.HEAD_BAD_METHOD: "method_not_allowed",
    HeadFault.HEAD_BAD_VERSION: "http_version",
    HeadFault.HEAD_BAD_TARGET: "bad_target",
    HeadFault.HEAD_BAD_HOST: "bad_host",
    HeadFault.HEAD_BAD_NAME: "bad_header",
    HeadFault.HEAD_BAD_VALUE: "bad_header",
    HeadFault.HEAD_BAD_LENGTH: "bad_length",
    HeadFault.HEAD_BAD_CODING: "transfer_coding",
    HeadFault.HEAD_BAD_CREDENTIAL: "bad_credential",
    HeadFault.HEAD_BAD_EXPECT: "expectation",
    HeadFault.HEAD_LOOP: "loop_detected",
    HeadFault.HEAD_BAD_WISH: "bad_wish",
}


class LegRow(NamedTuple):
    """How the rest of relayd looks at a leg's outcome."""

    label: str  # in metrics and logs
    code: str  # of the fault that a client gets if there is no other target
    counts: bool  # against the worker
    retry: bool  # may another target be tried, if nothing was committed
    unreached: bool = False  # no HTTP answer came at all


LEG_OUTCOMES = {
    LegOutcome.LEG_COMPLETE: LegRow("complete", "", False, False),
    LegOutcome.LEG_CANCELLED: LegRow("cancelled", "", False, False),
    LegOutcome.LEG_CONNECT: LegRow("connect", "connect_failed", True, True, True),
    LegOutcome.LEG_CONNECT_TIMEOUT: LegRow("connect_timeout", "connect_timeout", True, True, True),
    LegOutcome.LEG_TLS: LegRow("tls", "tls_error", True, True, True),
    LegOutcome.LEG_RESET: LegRow("reset", "worker_reset", True, True, True),
    LegOutcome.LEG_BAD_ANSWER: LegRow("bad_answer", "bad_answer", True, True, True),
    LegOutcome.LEG_REJECTED: LegRow("rejected", "worker_error", True, True),
    LegOutcome.LEG_ERROR_EVENT: LegRow("error_event", "worker_error", True, True),
    LegOutcome.LEG_CUT: LegRow("cut", "answer_cut", True, True),
    LegOutcome.LEG_FIRST_TOKEN_TIMEOUT: LegRow("first_token_timeout", "first_token_timeout", True, True),
    LegOutcome.LEG_IDLE_TIMEOUT: LegRow("idle_timeout", "idle_timeout", True, True),
    LegOutcome.LEG_TOTAL_TIMEOUT: LegRow("total_timeout", "total_timeout", False, False),
}


# The same rows by number: a leg's end is looked up for every request.
LEG_ROWS = tuple(LEG_OUTCOMES.get(outcome, LEG_OUTCOMES[LegOutcome.LEG_CANCELLED]) for outcome in LegOutcome)


def fault(
    code: str,
    detail: str = "",
    *,
    worker: str = "",
    param: str | None = None,
    retry_after_s: float | None = None,
) -> Fault:
    """Return the fault `code` with its sentence filled in."""
    kind = KINDS[code]
    return Fault(kind, kind.text.format(detail=detail, worker=worker), param, retry_after_s)
