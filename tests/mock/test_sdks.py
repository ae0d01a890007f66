"""The official SDKs, unmodified, against every engine: what they parse is what the engines send."""

import asyncio
import time

import anthropic
import httpx2
import openai
import pytest

from tests.mock.running import running

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": TOOL}}]

ENGINES = ["vllm", "sglang", "openai"]


def openai_client(mock, **more):
    return openai.OpenAI(base_url=f"{mock.url}/v1", api_key="k", max_retries=0, timeout=10, **more)


def anthropic_client(mock, **more):
    return anthropic.Anthropic(base_url=mock.url, api_key="k", max_retries=0, timeout=10, **more)


@pytest.mark.parametrize("engine", ENGINES)
def test_openai_chat(engine):
    with running(engine=engine) as mock, openai_client(mock) as client:
        whole = client.chat.completions.create(model="mock", messages=HELLO, seed=1)
        chunks = list(
            client.chat.completions.create(
                model="mock", messages=HELLO, seed=1, stream=True, stream_options={"include_usage": True}
            )
        )
    assert whole.choices[0].message.content
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        == whole.choices[0].message.content
    )
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 5
    assert whole._request_id


@pytest.mark.parametrize("engine", ENGINES)
def test_openai_chat_with_tools(engine):
    with running(engine=engine) as mock, openai_client(mock) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": CHAT_TOOLS, "tool_choice": "required"}
        whole = client.chat.completions.create(**asked)
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion()
    for answer in (whole, final):
        call = answer.choices[0].message.tool_calls[0]
        assert (call.function.name, "city" in call.function.arguments) == ("weather", True)
        assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("engine", ENGINES)
def test_openai_responses(engine):
    with running(engine=engine) as mock, openai_client(mock) as client:
        whole = client.responses.create(model="mock", input="hello")
        with client.responses.stream(model="mock", input="hello") as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        called = client.responses.create(
            model="mock", input="hello", tool_choice="required",
            tools=[{"type": "function", "name": "weather", "parameters": TOOL, "strict": False}],
        )  # fmt: skip
        again = client.responses.retrieve(whole.id)
    assert whole.output_text
    assert (whole.status, final.status, kinds[-1]) == ("completed", "completed", "response.completed")
    assert final.usage.output_tokens == 5
    assert called.output[0].name == "weather"
    assert again.output_text == whole.output_text


@pytest.mark.parametrize("engine", ENGINES)
def test_openai_completions_embeddings_models(engine):
    with running(engine=engine) as mock, openai_client(mock) as client:
        whole = client.completions.create(model="mock", prompt="once", seed=1)
        pieces = list(client.completions.create(model="mock", prompt="once", seed=1, stream=True))
        by_default = client.embeddings.create(model="mock", input=["a", "b"])
        as_floats = client.embeddings.create(model="mock", input=["a", "b"], encoding_format="float")
        names = [model.id for model in client.models.list()]
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert len(by_default.data[1].embedding) == 256
    assert by_default.data[1].embedding == pytest.approx(as_floats.data[1].embedding, abs=1e-6)
    assert names == ["mock"]


@pytest.mark.parametrize("engine", ENGINES)
def test_openai_async(engine):
    async def talk(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=10) as client:
            whole = await client.chat.completions.create(model="mock", messages=HELLO, seed=1)
            stream = await client.chat.completions.create(model="mock", messages=HELLO, seed=1, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            response = await client.responses.create(model="mock", input="hello")
            return whole.choices[0].message.content, text, response.output_text

    with running(engine=engine) as mock:
        whole, text, response = asyncio.run(talk(mock.url))
    assert whole == text
    assert response


@pytest.mark.parametrize("engine", ["anthropic", "vllm", "sglang"])
def test_anthropic_messages(engine):
    with running(engine=engine) as mock, anthropic_client(mock) as client:
        whole = client.messages.create(model="mock", max_tokens=50, messages=HELLO)
        with client.messages.stream(model="mock", max_tokens=3, messages=HELLO) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        counted = client.messages.count_tokens(model="mock", messages=HELLO)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("end_turn", 5)
    assert final.content[0].text == text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 3)
    assert counted.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("engine", ["anthropic", "vllm", "sglang"])
def test_anthropic_tools(engine):
    with running(engine=engine) as mock, anthropic_client(mock) as client:
        asked = {
            "model": "mock", "max_tokens": 50, "messages": HELLO, "tool_choice": {"type": "any"},
            "tools": [{"name": "weather", "input_schema": TOOL}],
        }  # fmt: skip
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
    for answer in (whole, final):
        assert answer.stop_reason == "tool_use"
        assert isinstance(answer.content[0].input["city"], str)


def test_anthropic_async():
    async def talk(url):
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0, timeout=10) as client:
            whole = await client.messages.create(model="mock", max_tokens=50, messages=HELLO)
            async with client.messages.stream(model="mock", max_tokens=50, messages=HELLO) as stream:
                final = await stream.get_final_message()
            models = await client.models.list()
            return whole, final, [model.id for model in models.data]

    with running(engine="anthropic") as mock:
        whole, final, names = asyncio.run(talk(mock.url))
    assert whole._request_id.startswith("req_")
    assert final.usage.output_tokens == 5
    assert names == ["mock"]


def test_errors_have_the_right_class():
    with running(engine="openai") as mock, openai_client(mock) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="other", messages=HELLO)
        assert (caught.value.code, bool(caught.value.request_id)) == ("model_not_found", True)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(
                model="mock", messages=HELLO, extra_headers={"x-mock-fault": "rate_limit=1"}
            )
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(
                model="mock", messages=HELLO, extra_headers={"x-mock-fault": "status=503"}
            )
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(
                model="mock", messages=HELLO, extra_headers={"x-mock-fault": "close"}
            )
    with running(engine="anthropic") as mock, anthropic_client(mock) as client:
        asked = {"model": "mock", "max_tokens": 50, "messages": HELLO}
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(**{**asked, "model": "other"})
        assert missing.value.request_id
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(**asked, extra_headers={"x-mock-fault": "status=529"})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", ["error=2", "reset=2", "cut=2"])
def test_a_spoilt_openai_stream_raises(engine, fault):
    with running(engine=engine) as mock, openai_client(mock) as client:
        stream = client.chat.completions.create(
            model="mock", messages=HELLO, stream=True, extra_headers={"x-mock-fault": fault}
        )
        with pytest.raises(openai.APIError):
            list(stream)


@pytest.mark.parametrize("fault", ["error=4", "error=0", "reset=4", "cut=4"])
def test_a_spoilt_anthropic_stream_raises(fault):
    with running(engine="anthropic") as mock, anthropic_client(mock) as client:
        stream = client.messages.create(
            model="mock", max_tokens=50, messages=HELLO, stream=True, extra_headers={"x-mock-fault": fault}
        )
        # The SDK wraps what the server says went wrong, and lets what the connection says through.
        with pytest.raises(anthropic.APIError if fault.startswith("error") else httpx2.TransportError):
            list(stream)


def test_retry_after_is_obeyed():
    with running(engine="openai") as mock:
        mock.do(lambda server: server.chances.append(_once(server)))
        with openai.OpenAI(base_url=f"{mock.url}/v1", api_key="k", max_retries=1, timeout=10) as client:
            began_at = time.monotonic()
            client.chat.completions.create(model="mock", messages=HELLO)
        assert time.monotonic() - began_at >= 0.3
        assert mock.do(lambda server: [entry.status for entry in server.stats.ledger]) == [429, 200]


class _once:
    """A chance that strikes the first request only."""

    name, value = "rate_limit", 0.3

    def __init__(self, server):
        self._server = server

    @property
    def probability(self):
        self._server.chances.clear()
        return 1.0
