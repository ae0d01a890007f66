"""The runners themselves: what they must notice, and what they must not complain of."""

from __future__ import annotations

import pytest

from tests.conformance.cases import RequestCase
from tests.conformance.http_requests import Received, judge, split_statuses
from tests.conformance.http_responses import first_final
from tests.conformance.recorder import Recorded, Recorder, lint_head
from tests.conformance.relay import expand, sample_total

CLEAN = [b"POST /echo HTTP/1.1", b"Host: a", b"Content-Length: 3"]

UNCLEAN = [
    # what                          the request's lines
    ("two framings", [*CLEAN, b"Transfer-Encoding: chunked"]),
    ("two lengths", [*CLEAN, b"Content-Length: 3"]),
    ("two hosts", [*CLEAN, b"Host: b"]),
    ("no host", [CLEAN[0], CLEAN[2]]),
    ("a length in hex", [*CLEAN[:2], b"Content-Length: 0x3"]),
    ("an unknown coding", [*CLEAN[:2], b"Transfer-Encoding: gzip, chunked"]),
    ("a folded line", [*CLEAN, b" folded"]),
    ("a name that is no token", [*CLEAN, b"X A: b"]),
    ("a line without a colon", [*CLEAN, b"hello"]),
    ("a bare LF", [*CLEAN, b"X: a\nB: c"]),
    ("absolute form", [b"POST http://a/echo HTTP/1.1", *CLEAN[1:]]),
    ("a space in the target", [b"POST /e cho HTTP/1.1", *CLEAN[1:]]),
    ("another version", [b"POST /echo HTTP/1.2", *CLEAN[1:]]),
    ("hop-by-hop", [*CLEAN, b"Keep-Alive: timeout=5"]),
]


@pytest.mark.parametrize(("what", "lines"), UNCLEAN, ids=[what for what, _ in UNCLEAN])
def test_the_recorder_notices(what: str, lines: list[bytes]) -> None:
    assert lint_head(lines)


def test_the_recorder_accepts_clean_requests() -> None:
    assert lint_head(CLEAN) == []
    assert lint_head([b"OPTIONS * HTTP/1.1", b"Host: a", b"Connection: close", b"X-A: \xe9"]) == []


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESPONSES = [
    # bytes                                                          first method  statuses
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"GET", [200]),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 400 B\r\n\r\n", b"GET", [200, 400]),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nHTTP/1.1 204 N\r\n\r\n", b"HEAD", [200, 204]),
    (b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end", b"GET", [100, 200]),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200",
        b"GET",
        [200, 200],
    ),
    (b"hello", b"GET", [-1]),
    (b"", b"GET", []),
]


@pytest.mark.parametrize(("data", "method", "statuses"), RESPONSES)
def test_rows_of_responses_are_taken_apart(data: bytes, method: bytes, statuses: list[int]) -> None:
    assert split_statuses(data, method) == statuses


def _case(**changes: object) -> RequestCase:
    fields: dict[str, object] = {
        "name": "x",
        "level": "MUST",
        "expect": "reject-400",
        "statuses": frozenset({400}),
        "also_rfc": frozenset(),
        "responses": 1,
        "never_forward": [b"/smuggled"],
        "segments": [(0.0, b"GET / HTTP/1.1\r\n\r\n")],
        "half_closes": False,
        "is_slow": False,
        "auth_at": None,
    }
    return RequestCase(**{**fields, **changes})  # type: ignore[arg-type]


REFUSAL = b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"


def test_a_refusal_passes_if_the_connection_is_closed() -> None:
    assert judge(_case(), Received(REFUSAL, is_closed=True), Recorder()).is_ok
    assert not judge(_case(), Received(REFUSAL, is_closed=False), Recorder()).is_ok


def test_what_got_through_is_a_failure_whatever_the_client_was_told() -> None:
    recorder = Recorder()
    recorder.requests.append(Recorded(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
    assert not judge(_case(), Received(REFUSAL, is_closed=True), recorder).is_ok


def test_silence_is_a_failure_unless_the_case_is_slow() -> None:
    assert not judge(_case(), Received(), Recorder()).is_ok
    assert judge(_case(is_slow=True), Received(), Recorder()).is_ok


def test_a_second_answer_is_a_failure() -> None:
    assert not judge(_case(), Received(REFUSAL * 2, is_closed=True), Recorder()).is_ok


def test_what_only_the_rfc_allows_is_marked_but_fails() -> None:
    refused_otherwise = Received(REFUSAL.replace(b"400", b"422"), is_closed=True)
    verdict = judge(_case(also_rfc=frozenset({422})), refused_otherwise, Recorder())
    assert not verdict.is_ok
    assert verdict.is_allowed_by_rfc


def test_the_first_final_response_is_found_behind_interim_ones() -> None:
    data = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokX"
    seen = first_final(data, "GET", is_closed=False)
    assert (seen.status, seen.body, seen.is_complete, seen.extra) == (200, b"ok", True, b"X")


def test_a_body_without_framing_is_whole_only_once_closed() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\nok"
    assert not first_final(data, "GET", is_closed=False).is_complete
    assert first_final(data, "GET", is_closed=True).is_complete


def test_repetitions_are_written_out() -> None:
    assert expand('{"a": "@@x*3@@"}') == '{"a": "xxx"}'


def test_samples_are_summed_by_the_labels_asked_for() -> None:
    text = "# TYPE a counter\n" + "".join(f'a_total{{t="{t}",w="{w}"}} 2\n' for t in "xy" for w in "12")
    assert sample_total(text, 'a_total{t="x"}') == 4
    assert sample_total(text, "a_total") == 8
