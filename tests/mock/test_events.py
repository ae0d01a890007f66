"""What each engine sends, in which order."""

import json

import pytest

from tests.mock.running import ask, chat, message, running

TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
OPENAI_TOOLS = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
ANTHROPIC_TOOLS = {
    "tools": [{"name": "weather", "input_schema": TOOL["parameters"]}],
    "tool_choice": {"type": "any"},
}
USAGE = {"stream_options": {"include_usage": True}}

THREE = ["content"] * 3
FIVE = ["content"] * 5

CHAT = [
    # engine       what more the body says            events
    ("vllm", {}, ["role", *FIVE, "empty+stop", "[DONE]"]),
    ("vllm", {"max_tokens": 3}, ["role", "content", "content", "content+length", "[DONE]"]),
    ("vllm", {"max_tokens": 3, **USAGE}, ["role", "content", "content", "content+length", "usage", "[DONE]"]),
    ("sglang", {}, ["role", *FIVE, "empty+stop", "[DONE]"]),
    ("sglang", {"max_tokens": 3}, ["role", *THREE, "empty+length", "[DONE]"]),
    ("sglang", USAGE, ["role", *FIVE, "empty+stop", "usage", "[DONE]"]),
    ("openai", {}, ["role", *FIVE, "empty+stop", "[DONE]"]),
    ("openai", {"max_completion_tokens": 3}, ["role", *THREE, "empty+length", "[DONE]"]),
    ("openai", USAGE, ["role", *FIVE, "empty+stop", "usage", "[DONE]"]),
    ("anthropic", USAGE, ["role", *FIVE, "empty+stop", "usage", "[DONE]"]),
]


@pytest.mark.parametrize(("engine", "more", "kinds"), CHAT)
def test_chat(engine, more, kinds):
    with running(engine=engine) as mock:
        answer = ask(mock, "/v1/chat/completions", chat(stream=True, **more))
    assert answer.kinds == kinds
    assert answer.complete


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai"])
def test_chat_calls_a_tool(engine):
    with running(engine=engine) as mock:
        answer = ask(mock, "/v1/chat/completions", chat(stream=True, **OPENAI_TOOLS))
        whole = ask(mock, "/v1/chat/completions", chat(**OPENAI_TOOLS)).json()
    kinds = answer.kinds
    assert kinds[:2] == ["role", "call"]
    assert set(kinds[2:-2]) == {"arguments"}
    assert kinds[-2:] == ["empty+tool_calls", "[DONE]"]
    calls = [event["choices"][0]["delta"]["tool_calls"][0] for event in map(json.loads, answer.events[1:-2])]
    assert calls[0]["function"]["name"] == "weather"
    assert "city" in json.loads("".join(call["function"]["arguments"] for call in calls))
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert "city" in json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


def test_a_tool_the_client_named_ends_with_stop():
    named = {**OPENAI_TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    with running() as mock:
        assert (
            ask(mock, "/v1/chat/completions", chat(**named)).json()["choices"][0]["finish_reason"] == "stop"
        )
        assert ask(mock, "/v1/chat/completions", chat(stream=True, **named)).kinds[-2] == "empty+stop"


def test_a_tool_that_may_be_called_is_not():
    with running() as mock:
        kinds = ask(
            mock, "/v1/chat/completions", chat(stream=True, **{**OPENAI_TOOLS, "tool_choice": "auto"})
        ).kinds
    assert "call" not in kinds


@pytest.mark.parametrize(
    ("engine", "kinds"),
    [
        ("vllm", ["text", "text", "text+length", "usage", "[DONE]"]),
        ("sglang", ["text", "text", "text+length", "usage", "[DONE]"]),
        ("openai", ["text", "text", "text", "text+length", "usage", "[DONE]"]),
    ],
)
def test_completions(engine, kinds):
    body = {"model": "mock", "prompt": "once", "stream": True, "max_tokens": 3, **USAGE}
    with running(engine=engine) as mock:
        assert ask(mock, "/v1/completions", body).kinds == kinds


RESPONSE_TEXT = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 5,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai"])
def test_responses(engine):
    with running(engine=engine) as mock:
        answer = ask(mock, "/v1/responses", {"model": "mock", "input": "hello", "stream": True})
    assert answer.kinds == [*RESPONSE_TEXT, "response.completed"]
    events = [json.loads(data) for data in answer.events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert events[-1]["response"]["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    ("engine", "last"), [("vllm", "response.completed"), ("openai", "response.incomplete")]
)
def test_responses_that_ran_out_of_tokens(engine, last):
    body = {"model": "mock", "input": "hello", "stream": True, "max_output_tokens": 3}
    with running(engine=engine) as mock:
        answer = ask(mock, "/v1/responses", body)
    assert answer.kinds[-1] == last
    assert json.loads(answer.events[-1])["response"]["status"] == "incomplete"


def test_responses_call_a_function():
    body = {"model": "mock", "input": "hello", "stream": True, "tools": [{"type": "function", **TOOL}]}
    with running(engine="openai") as mock:
        answer = ask(mock, "/v1/responses", {**body, "tool_choice": "required"})
    kinds = answer.kinds
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert set(kinds[3:-3]) == {"response.function_call_arguments.delta"}
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


ANTHROPIC_TEXT = [
    "message_start",
    "content_block_start",
    "ping",
    *["content_block_delta"] * 5,
    "content_block_stop",
    "message_delta",
    "message_stop",
]


def test_messages_of_anthropic():
    with running(engine="anthropic") as mock:
        answer = ask(mock, "/v1/messages?beta=true", message(stream=True))
    assert answer.kinds == ANTHROPIC_TEXT
    names = [line[7:] for line in answer.body.decode().splitlines() if line.startswith("event: ")]
    assert names == ANTHROPIC_TEXT
    assert json.loads(answer.events[-2])["usage"]["output_tokens"] == 5
    assert answer.header("request-id")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_messages_of_other_engines_have_no_pings(engine):
    with running(engine=engine) as mock:
        answer = ask(mock, "/v1/messages", message(stream=True))
    assert answer.kinds == [kind for kind in ANTHROPIC_TEXT if kind != "ping"]


def test_messages_use_a_tool():
    with running(engine="anthropic") as mock:
        answer = ask(mock, "/v1/messages", message(stream=True, **ANTHROPIC_TOOLS))
        whole = ask(mock, "/v1/messages", message(**ANTHROPIC_TOOLS)).json()
    events = [json.loads(data) for data in answer.events]
    assert events[1]["content_block"]["type"] == "tool_use"
    pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert "city" in json.loads("".join(pieces))
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
    assert "city" in whole["content"][0]["input"]


def test_a_silent_anthropic_stream_is_pinged():
    with running(engine="anthropic", ttft_s=0.3, itl_s=0.0, ping_s=0.05) as mock:
        kinds = ask(mock, "/v1/messages", message(stream=True)).kinds
    before = kinds[: kinds.index("content_block_start")]
    assert before[0] == "message_start"
    assert before.count("ping") >= 2


def test_openai_says_usage_null_until_the_end():
    with running(engine="openai") as mock:
        asked = ask(mock, "/v1/chat/completions", chat(stream=True, **USAGE))
        unasked = ask(mock, "/v1/chat/completions", chat(stream=True))
    events = [json.loads(data) for data in asked.events[:-1]]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert all("usage" not in json.loads(data) for data in unasked.events[:-1])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_usage_in_every_event(engine):
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    with running(engine=engine) as mock:
        answer = ask(mock, "/v1/chat/completions", chat(stream=True, **options))
    counts = [json.loads(data)["usage"]["completion_tokens"] for data in answer.events[:-1]]
    assert counts == [0, 1, 2, 3, 4, 5, 5, 5]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_several_answers(path):
    body = chat(n=3, prompt="x")
    with running() as mock:
        whole = ask(mock, path, body).json()
        streamed = ask(mock, path, {**body, "stream": True})
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 15
    texts = {0: "", 1: "", 2: ""}
    for event in map(json.loads, streamed.events[:-1]):
        choice = event["choices"][0]
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert len(set(texts.values())) == 3
    assert all(texts.values())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streamed_or_not_says_the_same(path):
    body = chat(prompt="hello", seed=7, max_tokens=4)
    with running() as mock:
        whole = ask(mock, path, body).json()["choices"][0]
        events = ask(mock, path, {**body, "stream": True}).events[:-1]
    pieces = [json.loads(data)["choices"][0] for data in events]
    streamed = "".join(p.get("text") or p.get("delta", {}).get("content") or "" for p in pieces)
    assert streamed == (whole.get("text") or whole["message"]["content"])


def test_stop_strings_end_the_answer():
    with running(output_tokens=(64, 64)) as mock:
        text = ask(mock, "/v1/chat/completions", chat(seed=3)).json()["choices"][0]["message"]["content"]
        stop = text.split()[6]
        vllm = ask(mock, "/v1/chat/completions", chat(seed=3, stop=[stop])).json()["choices"][0]
    assert (vllm["finish_reason"], vllm["stop_reason"]) == ("stop", stop)
    assert stop not in vllm["message"]["content"]
    with running(engine="anthropic", output_tokens=(64, 64)) as mock:
        answer = ask(mock, "/v1/messages", message(stop_sequences=["e"])).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "e")


def test_benchmarks_get_the_length_they_ask_for():
    with running() as mock:
        body = chat(max_tokens=77, ignore_eos=True)
        assert ask(mock, "/v1/chat/completions", body).json()["usage"]["completion_tokens"] == 77
        body = chat(min_tokens=20)
        assert ask(mock, "/v1/chat/completions", body).json()["usage"]["completion_tokens"] == 20


def test_cached_tokens_are_reported():
    long = [{"role": "user", "content": "word " * 400}]
    with running() as mock:
        for expected in (False, True):
            usage = ask(mock, "/v1/chat/completions", chat(messages=long)).json()["usage"]
            assert bool(usage["prompt_tokens_details"]["cached_tokens"]) is expected
    with running(engine="anthropic") as mock:
        first, second = (ask(mock, "/v1/messages", message(messages=long)).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > 0
    assert second["cache_read_input_tokens"] + second["input_tokens"] == first["input_tokens"]


UNKNOWN = [
    ("vllm", "/v1/chat/completions", ("error", "type"), "NotFoundError"),
    ("vllm", "/v1/messages", ("error", "type"), "NotFoundError"),
    ("sglang", "/v1/chat/completions", ("type",), "NotFoundError"),
    ("openai", "/v1/chat/completions", ("error", "code"), "model_not_found"),
    ("openai", "/v1/embeddings", ("error", "code"), "model_not_found"),
    ("anthropic", "/v1/messages", ("error", "type"), "not_found_error"),
]


@pytest.mark.parametrize(("engine", "path", "where", "what"), UNKNOWN)
def test_an_unknown_model(engine, path, where, what):
    with running(engine=engine) as mock:
        answer = ask(mock, path, {**message(), "input": "x", "model": "other"})
    found = answer.json()
    for key in where:
        found = found[key]
    assert (answer.status, found) == (404, what)


BAD = [
    # what              path                    body
    ("not JSON", "/v1/chat/completions", b'{"model":'),
    ("not UTF-8", "/v1/chat/completions", b'{"model":"\xff"}'),
    ("not an object", "/v1/chat/completions", b"[]"),
    ("nothing", "/v1/chat/completions", b""),
    ("no messages", "/v1/chat/completions", b'{"model":"mock"}'),
    ("empty messages", "/v1/chat/completions", b'{"model":"mock","messages":[]}'),
    ("no limit", "/v1/messages", b'{"model":"mock","messages":[{"role":"user","content":"x"}]}'),
    ("a limit of zero", "/v1/completions", b'{"model":"mock","prompt":"x","max_tokens":0}'),
    ("a strange prompt", "/v1/completions", b'{"model":"mock","prompt":{"a":1}}'),
    ("too many answers", "/v1/completions", b'{"model":"mock","prompt":"x","n":100000}'),
    ("an unknown tool", "/v1/chat/completions",
     b'{"model":"mock","messages":[{}],"tools":[{"function":{"name":"a"}}],"tool_choice":{"function":{"name":"b"}}}'),
    ("deep nesting", "/v1/chat/completions", b'{"model":"mock","messages":' + b"[" * 100_000),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai", "anthropic"])
@pytest.mark.parametrize(("what", "path", "body"), BAD, ids=[row[0] for row in BAD])
def test_a_bad_body(what, path, body, engine):
    with running(engine=engine) as mock:
        answer = ask(mock, path, raw=body)
    error = answer.json()
    message_text = error["message"] if "message" in error else error["error"]["message"]
    assert (answer.status, bool(message_text)) == (400, True)


def test_a_prompt_that_is_too_long():
    with running(max_model_len=100) as mock:
        answer = ask(mock, "/v1/completions", {"prompt": "x" * 1000})
    assert answer.status == 400
    assert "maximum context length is 100 tokens" in answer.json()["error"]["message"]


def test_models():
    with running(models=("a", "b")) as mock:
        cards = ask(mock, "/v1/models").json()["data"]
        assert [(card["id"], card["owned_by"]) for card in cards] == [("a", "vllm"), ("b", "vllm")]
        assert ask(mock, "/v1/models/b").json()["id"] == "b"
        assert ask(mock, "/v1/models/c").status == 404
    with running(engine="anthropic") as mock:
        assert ask(mock, "/v1/models").json()["data"][0]["type"] == "model"


def test_any_model_will_do_when_told_so():
    with running(any_model=True) as mock:
        assert ask(mock, "/v1/chat/completions", chat(model="whatever")).json()["model"] == "whatever"


def test_a_stored_response_can_be_had_again():
    with running(engine="openai") as mock:
        first = ask(mock, "/v1/responses", {"model": "mock", "input": "hello"}).json()
        assert ask(mock, f"/v1/responses/{first['id']}").json() == first
        assert ask(mock, "/v1/responses/resp_none").status == 404
        follow = {"model": "mock", "input": "and?", "previous_response_id": first["id"]}
        assert ask(mock, "/v1/responses", follow).status == 200
        assert ask(mock, "/v1/responses", {**follow, "previous_response_id": "resp_none"}).status == 400


def test_a_seed_repeats_itself():
    def conversation() -> list[object]:
        with running(seed=42, output_tokens=(1, 50)) as mock:
            return [ask(mock, "/v1/chat/completions", chat()).json()["choices"] for _ in range(5)]

    assert conversation() == conversation()
