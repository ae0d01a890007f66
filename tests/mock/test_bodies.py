"""No body, however strange, gets anything but an answer."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mock.running import Running, read_answer, request, running

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens",
)  # fmt: skip

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 2, 70, 10**9, 2**70])
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(
        ["mock", "auto", "required", "none", "function", "any", "tool", "object", "f", "base64"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "function", "text", "content", "f"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.just("hello") | ODD}), max_size=3
)
PARAMETERS = st.fixed_dictionaries({}, optional={"type": ODD, "enum": ODD, "items": ODD, "properties": ODD})
FUNCTION = st.fixed_dictionaries({"name": st.just("f") | ODD, "parameters": PARAMETERS | ODD})
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "name": st.just("f")},
        optional={"function": FUNCTION, "parameters": PARAMETERS, "input_schema": PARAMETERS},
    ),
    max_size=2,
)

BODY = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("mock") | ODD,
        "messages": MESSAGES | ODD,
        "prompt": ODD,
        "input": ODD | MESSAGES,
        "stream": st.booleans() | ODD,
        "max_tokens": st.integers(1, 5) | ODD,
        "max_output_tokens": st.integers(1, 5) | ODD,
        "min_tokens": ODD,
        "n": st.integers(1, 3) | ODD,
        "stop": ODD,
        "stop_sequences": ODD,
        "seed": ODD,
        "tools": TOOLS | ODD,
        "tool_choice": st.sampled_from(["auto", "required", {"type": "any"}, {"name": "f"}]) | ODD,
        "stream_options": ODD,
        "dimensions": ODD,
        "encoding_format": ODD,
        "metadata": ODD,
        "system": ODD,
        "instructions": ODD,
    },
)


def test_every_body_is_answered():
    with running(output_tokens=(1, 20)) as vllm, running(engine="openai") as openai:
        mocks = {"vllm": vllm, "openai": openai}

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(sorted(mocks)), st.sampled_from(PATHS), BODY)
        def one(engine: str, path: str, body: object) -> None:
            answered(mocks[engine], path, body)

        one()


def test_half_a_character_is_no_text():
    half = r'"\ud800"'
    body = (
        f'{{"model":"mock","max_tokens":5,"prompt":{half},"input":{half},"messages":[{{"content":{half}}}]}}'
    )
    with running() as mock:
        for path in PATHS:
            with mock.connect() as sock:
                sock.sendall(request(path, raw=body.encode()))
                answer, _ = read_answer(sock)
            assert answer is not None
            assert answer.status == 400


def answered(mock: Running, path: str, body: object) -> None:
    with mock.connect() as sock:
        sock.sendall(request(path, raw=json.dumps(body).encode()))
        answer, _ = read_answer(sock)
    assert answer is not None
    assert answer.complete
    assert answer.status in (200, 400, 404), answer.body
