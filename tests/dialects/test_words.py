"""Errors, signs of life and judgements in the words of each dialect."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.leg import EventKind
from relayd._fast.sse import EventScanner, Terminator
from relayd.dialects.anthropic import Anthropic
from relayd.dialects.openai import OpenAI, data_of
from relayd.dialects.plain import Plain
from relayd.faults import KINDS, fault
from relayd.registry import plugins
from tests.support import sse
from tests.support.dialects import (
    ANTHROPIC,
    BLOCK_START,
    CHAT_STOP,
    MESSAGE_END,
    OPENAI,
    PING,
    RESPONSES,
    chat_usage,
)

PREAMBLE, CONTENT = EventKind.EVENT_PREAMBLE, EventKind.EVENT_CONTENT
CLIENT_ERROR, WORKER_ERROR = EventKind.EVENT_CLIENT_ERROR, EventKind.EVENT_WORKER_ERROR

DIALECTS = [make() for make in plugins("dialects").values()]
EVERY = pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])
OPENAI_SHAPED = pytest.mark.parametrize("dialect", [OpenAI(), Plain()], ids=["openai", "plain"])


# --- whatever the dialect -----------------------------------------------------------------------------


@EVERY
def test_is_found_by_its_name(dialect):
    assert type(dialect) is plugins("dialects")[dialect.name]


@EVERY
@pytest.mark.parametrize("code", KINDS)
def test_every_fault_has_a_body_and_an_event(dialect, code):
    failed = fault(code, 'a "detail"\nof <two> lines', worker="w1", param="model")
    body = dialect.error_body(failed, "req_7")
    said = json.loads(body)
    assert failed.message in said["error"]["message"]
    assert said["error"]["code"] == code
    assert "req_7" in body.decode()
    stream = sse.read(dialect.error_event(failed, "req_7"))
    assert len(stream.events) == 1
    assert not stream.unfinished
    assert stream.events[0].json()["error"] == said["error"]


@EVERY
def test_an_error_event_is_one_for_our_own_scan(dialect):
    scanner = EventScanner(Terminator.TERMINATOR_DONE)
    event = dialect.error_event(fault("answer_cut", "x", worker="w"), "r")
    assert scanner.feed(event) == len(event)
    assert (scanner.events, scanner.errored, scanner.at_boundary) == (1, True, True)


@EVERY
def test_an_error_event_is_judged_an_error(dialect):
    if isinstance(dialect, Plain):
        return  # it knows no events
    assert dialect.judge(dialect.error_event(fault("answer_cut", "x", worker="w"), "r")) in (
        WORKER_ERROR,
        CLIENT_ERROR,
    )


@EVERY
def test_a_sign_of_life_is_a_whole_event_that_says_nothing(dialect):
    stream = sse.read(dialect.keepalive)
    assert len(stream.events) == 1
    assert not stream.unfinished
    assert dialect.judge(dialect.keepalive) == PREAMBLE


@EVERY
@pytest.mark.parametrize("event", [b": comment\n\n", b":\n\n", b"event: x\n\n", b"\n\n", b"", b"id: 7\n\n"])
def test_what_has_no_data_says_nothing(dialect, event):
    assert dialect.judge(event) == PREAMBLE


@EVERY
@pytest.mark.parametrize(
    "data",
    [b"[DONE]", b"hello", b"{", b"7", b"[]", b'"x"', b"\xff", b"{}", b"[" * 100_000, b'{"x":' * 100_000, b""],
)
def test_what_is_not_understood_is_content(dialect, data):
    assert dialect.judge(b"data: " + data + b"\n\n") == CONTENT


@EVERY
@given(
    st.binary(max_size=60)
    | st.text(max_size=40).map(lambda text: b"data: " + text.encode("utf-8", "replace"))
)
def test_any_bytes_can_be_judged(dialect, data):
    assert dialect.judge(data) in (PREAMBLE, CONTENT, CLIENT_ERROR, WORKER_ERROR)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 600) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "type",
                    "code",
                    "status",
                    "choices",
                    "delta",
                    "content",
                    "finish_reason",
                    "text",
                    "content_block",
                    "response",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@EVERY
@given(JSON)
def test_any_json_can_be_judged(dialect, document):
    event = b"data: " + json.dumps(document).encode() + b"\n\n"
    assert dialect.judge(event) in (PREAMBLE, CONTENT, CLIENT_ERROR, WORKER_ERROR)


STRANGE = [
    {"type": []},
    {"type": {}},
    {"type": ["error"]},
    {"type": "error", "error": {"type": []}},
    {"error": {"type": {}}},
    {"error": {"code": []}},
    {"error": {"code": {}, "type": [], "status": []}},
    {"error": [7]},
    {"error": 7},
    {"choices": {}},
    {"choices": [[]]},
    {"choices": [7]},
    {"choices": [{"delta": []}]},
    {"choices": [{"delta": "x"}]},
    {"content_block": []},
    {"type": "content_block_start", "content_block": {"type": [], "text": {}}},
]


@EVERY
@pytest.mark.parametrize("document", STRANGE)
def test_json_of_a_strange_shape_can_be_judged(dialect, document):
    """A worker that sends it must not break the relay: what is not understood is somebody's content."""
    assert dialect.judge(b"data: " + json.dumps(document).encode() + b"\n\n") in (
        PREAMBLE, CONTENT, CLIENT_ERROR, WORKER_ERROR)  # fmt: skip


# --- OpenAI's -----------------------------------------------------------------------------------------


@OPENAI_SHAPED
def test_openai_errors_have_four_keys(dialect):
    said = json.loads(dialect.error_body(fault("bad_body", "has no model", param="model"), "req_7"))
    assert set(said) == {"error"}
    assert said["error"] == {
        "message": "the request's body has no model (request id req_7)",
        "type": "invalid_request_error",
        "param": "model",
        "code": "bad_body",
    }


@OPENAI_SHAPED
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad_body", "invalid_request_error"),
        ("body_too_large", "invalid_request_error"),
        ("head_timeout", "invalid_request_error"),
        ("no_worker", "server_error"),
        ("connect_failed", "server_error"),
        ("idle_timeout", "server_error"),
        ("internal", "server_error"),
    ],
)
def test_openai_types_go_by_status(dialect, code, kind):
    assert json.loads(dialect.error_body(fault(code), "r"))["error"]["type"] == kind


def test_openai_error_events_have_no_name():
    """Its SDKs read `data` alone, and raise when it has an `error`."""
    event = OpenAI().error_event(fault("answer_cut", "x", worker="w"), "r")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert sse.read(event).events[0].name == "message"


def test_openai_clients_take_a_comment_as_a_sign_of_life():
    assert OpenAI().keepalive.startswith(b":")


def chunk(**choice) -> str:
    """Return a chat chunk with one choice."""
    return "data: " + json.dumps({"id": "c", "choices": [{"index": 0, **choice}]}) + "\n\n"


OPENAI_EVENTS = [
    (OPENAI.preamble, PREAMBLE),
    (OPENAI.text("a"), CONTENT),
    (CHAT_STOP, CONTENT),
    (chat_usage(1, 2), PREAMBLE),
    ("data: [DONE]\n\n", CONTENT),
    (chunk(delta={"role": "assistant"}), PREAMBLE),
    (chunk(delta={"role": "assistant", "content": None}), PREAMBLE),
    (chunk(delta={"content": ""}), PREAMBLE),
    (chunk(delta={}), PREAMBLE),
    (chunk(delta=None), PREAMBLE),
    (chunk(delta={"role": "assistant"}, finish_reason=None, logprobs=None), PREAMBLE),
    (chunk(delta={"content": " "}), CONTENT),
    (chunk(delta={"reasoning_content": "hm"}), CONTENT),
    (chunk(delta={"reasoning": "hm"}), CONTENT),
    (chunk(delta={"refusal": "no"}), CONTENT),
    (chunk(delta={"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}), CONTENT),
    (chunk(delta={"tool_calls": []}), PREAMBLE),
    (chunk(delta={"function_call": {"name": "f"}}), CONTENT),
    (chunk(delta={"audio": {"id": "a"}}), CONTENT),
    (chunk(delta={}, finish_reason="length"), CONTENT),
    ('data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', CONTENT),
    ('data: {"choices":[{"index":0,"delta":{"content":""}}]}\n\n', PREAMBLE),
    ('data: {"choices":[{"delta":{"role":"\\"delta\\":{\\"content\\":\\"a"}}]}\n\n', PREAMBLE),
    ('data: {"error":{"code":500},"choices":[{"delta":{"content":"a"}}]}\n\n', WORKER_ERROR),
    ('data: {"choices":[{"delta":{"content":"', CONTENT),
    (chunk(text=""), PREAMBLE),
    (chunk(text="a"), CONTENT),
    ('data: {"choices":[{"delta":{"content":""}},{"delta":{"content":"b"}}]}\n\n', CONTENT),
    ('data: {"choices":null,"x":1}\n\n', CONTENT),
    ('data: {"choices":[],"error":null}\n\n', PREAMBLE),
    ('data: {"choices":\ndata: [{"delta":{"role":"assistant"}}]}\n\n', PREAMBLE),
    ('data:{"choices":[{"delta":{"role":"assistant"}}]}\r\n\r\n', PREAMBLE),
    (RESPONSES.preamble.split("\n\n")[0] + "\n\n", PREAMBLE),
    (RESPONSES.preamble.split("\n\n")[1] + "\n\n", PREAMBLE),
    (RESPONSES.text("a"), CONTENT),
    (RESPONSES.terminator, CONTENT),
    ('data: {"type":"response.queued"}\n\n', PREAMBLE),
    ('data: {"type":"response.output_item.added","item":{}}\n\n', PREAMBLE),
    ('data: {"type":"response.content_part.added"}\n\n', PREAMBLE),
    ('data: {"type":"response.incomplete"}\n\n', CONTENT),
    ('data: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n', WORKER_ERROR),
    (RESPONSES.error(500, "no"), WORKER_ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("event", "kind"), OPENAI_EVENTS)
def test_judges_openai_events(event, kind):
    assert OpenAI().judge(event.encode()) == kind


OPENAI_ERRORS = [
    ({"code": 500}, WORKER_ERROR),
    ({"code": 503}, WORKER_ERROR),
    ({"code": "500"}, WORKER_ERROR),
    ({}, WORKER_ERROR),
    ({"code": 429}, WORKER_ERROR),
    ({"code": 408}, WORKER_ERROR),
    ({"code": None}, WORKER_ERROR),
    ({"code": "server_error"}, WORKER_ERROR),
    ({"type": "server_error"}, WORKER_ERROR),
    ("text", WORKER_ERROR),
    ({"code": True}, WORKER_ERROR),
    ({"code": [400]}, WORKER_ERROR),
    ({"code": 600}, WORKER_ERROR),
    ({"code": 400}, CLIENT_ERROR),
    ({"code": "400"}, CLIENT_ERROR),
    ({"code": 404}, CLIENT_ERROR),
    ({"code": 422}, CLIENT_ERROR),
    ({"status": 400}, CLIENT_ERROR),
    ({"status": "401"}, CLIENT_ERROR),
    ({"type": "invalid_request_error"}, CLIENT_ERROR),
    ({"type": "BadRequestError"}, CLIENT_ERROR),
    ({"type": "not_found_error"}, CLIENT_ERROR),
    ({"type": "NotFoundError"}, CLIENT_ERROR),
    ({"code": "context_length_exceeded"}, CLIENT_ERROR),
    ({"code": "content_filter"}, CLIENT_ERROR),
]


@pytest.mark.parametrize(("error", "kind"), OPENAI_ERRORS)
def test_judges_whose_error_it_is(error, kind):
    event = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    assert OpenAI().judge(event) == kind


def test_digits_that_are_no_number_are_no_code():
    for code in ("\u0664\u0660\u0660", "\u00b2", "4" * 5000):
        event = b"data: " + json.dumps({"error": {"code": code}}, ensure_ascii=False).encode() + b"\n\n"
        assert OpenAI().judge(event) in (WORKER_ERROR, CLIENT_ERROR)


# --- the Responses API's ------------------------------------------------------------------------------


def test_responses_errors_are_events_that_its_sdk_raises_for():
    responses = plugins("dialects")["responses"]()
    failed = fault("answer_cut", "closed the connection", worker="w")
    event = sse.read(responses.error_event(failed, "req_7")).events[0]
    said = event.json()
    assert (event.name, said["type"]) == ("error", "error")
    assert said["code"] == said["error"]["code"] == "answer_cut"
    assert said["message"] == said["error"]["message"]
    assert json.loads(responses.error_body(failed, "req_7")) == json.loads(
        OpenAI().error_body(failed, "req_7")
    )


# --- Anthropic's --------------------------------------------------------------------------------------


def test_anthropic_errors_have_their_shape():
    said = json.loads(Anthropic().error_body(fault("bad_body", "has no model", param="model"), "req_7"))
    assert set(said) == {"type", "error", "request_id"}
    assert (said["type"], said["request_id"]) == ("error", "req_7")
    assert said["error"]["type"] == "invalid_request_error"
    assert said["error"]["message"] == "the request's body has no model"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad_body", "invalid_request_error"),
        ("body_too_large", "request_too_large"),
        ("head_timeout", "timeout_error"),
        ("no_worker", "overloaded_error"),
        ("connect_failed", "api_error"),
        ("idle_timeout", "timeout_error"),
        ("internal", "api_error"),
        ("method_not_allowed", "invalid_request_error"),
    ],
)
def test_anthropic_types_go_by_status(code, kind):
    assert json.loads(Anthropic().error_body(fault(code), "r"))["error"]["type"] == kind


def test_anthropic_events_are_named():
    event = sse.read(Anthropic().error_event(fault("answer_cut", "x", worker="w"), "r")).events[0]
    assert event.name == "error"
    ping = sse.read(Anthropic().keepalive).events[0]
    assert (ping.name, ping.json()) == ("ping", {"type": "ping"})


ANTHROPIC_EVENTS = [
    (ANTHROPIC.preamble, PREAMBLE),
    (PING, PREAMBLE),
    (BLOCK_START, PREAMBLE),
    (ANTHROPIC.text("a"), CONTENT),
    (MESSAGE_END.split("\n\n")[0] + "\n\n", CONTENT),
    (MESSAGE_END.split("\n\n")[1] + "\n\n", CONTENT),
    (MESSAGE_END.split("\n\n")[2] + "\n\n", CONTENT),
    ('data: {"type":"content_block_start","content_block":{"type":"text","text":"a"}}\n\n', CONTENT),
    (
        'data: {"type":"content_block_start","content_block":{"type":"tool_use","id":"t","name":"f"}}\n\n',
        CONTENT,
    ),
    ('data: {"type":"content_block_start","content_block":null}\n\n', CONTENT),
    ('data: {"type":"error","error":{"type":"overloaded_error"}}\n\n', WORKER_ERROR),
    ('data: {"type":"error","error":{"type":"api_error"}}\n\n', WORKER_ERROR),
    ('data: {"type":"error","error":{"type":"rate_limit_error"}}\n\n', WORKER_ERROR),
    ('data: {"type":"error","error":{"type":"timeout_error"}}\n\n', WORKER_ERROR),
    ('data: {"type":"error"}\n\n', WORKER_ERROR),
    ('data: {"type":"error","error":null}\n\n', WORKER_ERROR),
    ('data: {"type":"error","error":{"type":"invalid_request_error"}}\n\n', CLIENT_ERROR),
    ('data: {"type":"error","error":{"type":"not_found_error"}}\n\n', CLIENT_ERROR),
    ('data: {"type":"error","error":{"type":"permission_error"}}\n\n', CLIENT_ERROR),
    ('data: {"type":"something_new"}\n\n', CONTENT),
]


@pytest.mark.parametrize(("event", "kind"), ANTHROPIC_EVENTS)
def test_judges_anthropic_events(event, kind):
    assert Anthropic().judge(event.encode()) == kind
    assert Anthropic().judge(event.replace("\n", "\r\n").encode()) == kind


# --- nobody's -----------------------------------------------------------------------------------------


def test_a_path_that_is_not_known_has_only_content():
    for event in (OPENAI.preamble, OPENAI.error(500, "no"), ANTHROPIC.preamble, "data: x\n\n"):
        assert Plain().judge(event.encode()) == CONTENT


# --- reading an event ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data: a\rdata: b\r\r", b"a\nb"),
        (b"event: x\ndata: a\n\n", b"a"),
        (b": c\n\n", None),
        (b"event: x\n\n", None),
        (b"data:\n\n", b""),
        (b"\ndata: a\n\n", b"a"),
        (b"database: a\n\n", None),
    ],
)
def test_reads_the_data_of_an_event(event, data):
    assert data_of(event) == data
