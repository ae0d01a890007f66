"""The official OpenAI and Anthropic clients, as they come from PyPI, sync and async.

What they show their users is what counts here: answers, the right class of exception with the request id
in it, retries that wait as they were told, and an exception, never a short answer, when a stream is cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.support.dialects import ANTHROPIC, BLOCK_START, OPENAI, RESPONSES, chat_usage
from tests.support.upstream import cut_stream, reply, stream
from tests.support.waiting import eventually
from tests.whole.conftest import Relay

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
WORDS = ["All ", "is ", "well 🙂"]
TEXT = "".join(WORDS)


def _openai(relay: Relay, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=relay.gateway.url + "/v1", api_key="k", max_retries=0, timeout=15, **options
    )


def _anthropic(relay: Relay) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=relay.gateway.url, api_key="k", max_retries=0, timeout=15)


def _in_async_openai(relay: Relay, use: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        options: dict[str, Any] = {"api_key": "k", "max_retries": 0, "timeout": 15}
        async with openai.AsyncOpenAI(base_url=relay.gateway.url + "/v1", **options) as client:
            return await use(client)

    return asyncio.run(run())


def _in_async_anthropic(relay: Relay, use: Callable[[anthropic.AsyncAnthropic], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        options: dict[str, Any] = {"api_key": "k", "max_retries": 0, "timeout": 15}
        async with anthropic.AsyncAnthropic(base_url=relay.gateway.url, **options) as client:
            return await use(client)

    return asyncio.run(run())


# Asking, in each of the ways there are.  All take a relay and return the text that came.


def chat_plain(relay: Relay) -> str:
    answer = _openai(relay).chat.completions.create(model="m", messages=HELLO)
    assert answer._request_id
    return answer.choices[0].message.content or ""


def chat_streamed(relay: Relay) -> str:
    text = ""
    with _openai(relay).chat.completions.create(model="m", messages=HELLO, stream=True) as events:
        for event in events:
            text += event.choices[0].delta.content or "" if event.choices else ""
    return text


def chat_plain_async(relay: Relay) -> str:
    async def use(client: openai.AsyncOpenAI) -> str:
        answer = await client.chat.completions.create(model="m", messages=HELLO)
        assert answer._request_id
        return answer.choices[0].message.content or ""

    return str(_in_async_openai(relay, use))


def chat_streamed_async(relay: Relay) -> str:
    async def use(client: openai.AsyncOpenAI) -> str:
        text = ""
        async for event in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
            text += event.choices[0].delta.content or "" if event.choices else ""
        return text

    return str(_in_async_openai(relay, use))


def responses_plain(relay: Relay) -> str:
    answer = _openai(relay).responses.create(model="m", input="hi")
    assert answer._request_id
    return answer.output_text


def responses_streamed(relay: Relay) -> str:
    text, is_complete = "", False
    for event in _openai(relay).responses.create(model="m", input="hi", stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
        is_complete |= event.type == "response.completed"
    if not is_complete:  # the client leaves it to its user to miss this
        raise openai.APIError("no response.completed", None, body=None)  # type: ignore[arg-type]
    return text


def responses_streamed_async(relay: Relay) -> str:
    async def use(client: openai.AsyncOpenAI) -> str:
        text = ""
        async for event in await client.responses.create(model="m", input="hi", stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
        return text

    return str(_in_async_openai(relay, use))


def messages_plain(relay: Relay) -> str:
    answer = _anthropic(relay).messages.create(model="m", max_tokens=64, messages=HELLO)
    assert answer._request_id
    return "".join(block.text for block in answer.content if block.type == "text")


def messages_streamed(relay: Relay) -> str:
    with _anthropic(relay).messages.stream(model="m", max_tokens=64, messages=HELLO) as events:
        return "".join(events.text_stream)


def messages_streamed_raw(relay: Relay) -> str:
    text = ""
    for event in _anthropic(relay).messages.create(model="m", max_tokens=64, messages=HELLO, stream=True):
        text += event.delta.text if event.type == "content_block_delta" else ""
    return text


def messages_plain_async(relay: Relay) -> str:
    async def use(client: anthropic.AsyncAnthropic) -> str:
        answer = await client.messages.create(model="m", max_tokens=64, messages=HELLO)
        assert answer._request_id
        return "".join(block.text for block in answer.content if block.type == "text")

    return str(_in_async_anthropic(relay, use))


def messages_streamed_async(relay: Relay) -> str:
    async def use(client: anthropic.AsyncAnthropic) -> str:
        async with client.messages.stream(model="m", max_tokens=64, messages=HELLO) as events:
            return "".join([text async for text in events.text_stream])

    return str(_in_async_anthropic(relay, use))


PLAIN = [
    (OPENAI, chat_plain),
    (OPENAI, chat_plain_async),
    (RESPONSES, responses_plain),
    (ANTHROPIC, messages_plain),
    (ANTHROPIC, messages_plain_async),
]
STREAMED = [
    (OPENAI, chat_streamed),
    (OPENAI, chat_streamed_async),
    (RESPONSES, responses_streamed),
    (RESPONSES, responses_streamed_async),
    (ANTHROPIC, messages_streamed),
    (ANTHROPIC, messages_streamed_raw),
    (ANTHROPIC, messages_streamed_async),
]
# An error event becomes the client's own exception; a missing last chunk that of the HTTP library below it.
CUT_ERRORS = {
    "openai": (openai.APIError, httpx2.HTTPError),
    "responses": (openai.APIError, httpx2.HTTPError),
    "anthropic": (anthropic.APIError, httpx2.HTTPError),
}


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or value.name


plainly = pytest.mark.parametrize(("dialect", "ask"), PLAIN, ids=_name)
streaming = pytest.mark.parametrize(("dialect", "ask"), STREAMED, ids=_name)


def _events(dialect: Any) -> list[str]:
    events: list[str] = dialect.events(*WORDS)
    if dialect is ANTHROPIC:
        events.insert(1, BLOCK_START)
    return events


@plainly
def test_plain_answers(relay: Relay, dialect: Any, ask: Callable[[Relay], str]) -> None:
    relay.upstream.play(reply(dialect.whole(TEXT)))
    assert ask(relay) == TEXT


@streaming
def test_streams(relay: Relay, dialect: Any, ask: Callable[[Relay], str]) -> None:
    relay.upstream.play(stream(*_events(dialect), gap=0.01))
    assert ask(relay) == TEXT


@streaming
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_cut_stream_raises(relay: Relay, dialect: Any, ask: Callable[[Relay], str], how: str) -> None:
    relay.upstream.play(cut_stream(*_events(dialect)[:4], how=how))
    with pytest.raises(CUT_ERRORS[dialect.name]):
        ask(relay)


@streaming
def test_a_stream_cut_inside_an_event_raises(relay: Relay, dialect: Any, ask: Callable[[Relay], str]) -> None:
    half = dialect.text("more")[:30]
    relay.upstream.play(cut_stream(*_events(dialect)[:4], half))
    with pytest.raises(CUT_ERRORS[dialect.name]):
        ask(relay)


@streaming
def test_a_stream_cut_before_its_first_word_is_saved(
    pair: Relay, dialect: Any, ask: Callable[[Relay], str]
) -> None:
    pair.upstreams[0].play(cut_stream(dialect.preamble))
    pair.upstreams[1].play(stream(*_events(dialect)))
    assert [ask(pair) for _ in range(2)] == [TEXT, TEXT]


@streaming
def test_an_overloaded_worker_inside_a_200_is_saved(
    pair: Relay, dialect: Any, ask: Callable[[Relay], str]
) -> None:
    pair.upstreams[0].play(stream(dialect.preamble, dialect.error(529, "busy")))
    pair.upstreams[1].play(stream(*_events(dialect)))
    assert [ask(pair) for _ in range(2)] == [TEXT, TEXT]


def test_usage_at_the_end_of_a_stream(relay: Relay) -> None:
    *events, terminator = OPENAI.events("a")
    stop, done = terminator.split("\n\n", 1)
    relay.upstream.play(stream(*events, stop + "\n\n", chat_usage(10, 3), done))
    options: Any = {"include_usage": True}
    answer = _openai(relay).chat.completions.create(
        model="m", messages=HELLO, stream=True, stream_options=options
    )
    usage = [event.usage for event in answer if event.usage]
    assert [(one.prompt_tokens, one.completion_tokens) for one in usage] == [(10, 3)]


def test_embeddings(relay: Relay) -> None:
    row = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    relay.upstream.play(reply({"object": "list", "model": "m", "data": [row], "usage": usage}))
    answer = _openai(relay).embeddings.create(model="m", input="hi", encoding_format="float")
    assert answer.data[0].embedding == [0.5, 0.25]


def test_models(relay: Relay) -> None:
    assert [model.id for model in _openai(relay).models.list()] == ["m"]


def test_transcriptions(relay: Relay) -> None:
    relay.upstream.play(reply({"text": "hello"}))
    answer = _openai(relay).audio.transcriptions.create(model="m", file=("a.wav", b"RIFF" * 1000))
    assert answer.text == "hello"
    assert b"RIFF" * 1000 in relay.upstream.requests[0].body


def test_counting_tokens(relay: Relay) -> None:
    relay.upstream.play(reply({"input_tokens": 7}))
    assert _anthropic(relay).messages.count_tokens(model="m", messages=HELLO).input_tokens == 7


def test_a_kept_response_is_fetched(relay: Relay) -> None:
    relay.upstream.play(reply(RESPONSES.whole("kept")))
    assert _openai(relay).responses.retrieve("resp_1").output_text == "kept"
    assert relay.upstream.requests[0].target == "/v1/responses/resp_1"


# Errors


OPENAI_CLASSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}
ANTHROPIC_CLASSES = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    409: anthropic.ConflictError,
    422: anthropic.UnprocessableEntityError,
    429: anthropic.RateLimitError,
    500: anthropic.InternalServerError,
    503: anthropic.InternalServerError,
    529: anthropic.InternalServerError,
}


@pytest.mark.parametrize(("status", "kind"), OPENAI_CLASSES.items())
@pytest.mark.parametrize("ask", [chat_plain, chat_streamed, chat_plain_async, responses_plain], ids=_name)
def test_openai_errors_have_their_class(relay: Relay, status: int, kind: Any, ask: Any) -> None:
    error = {"message": "so it is", "type": "t", "param": "p", "code": "c"}
    relay.upstream.play(reply({"error": error}, status))
    with pytest.raises(kind) as caught:
        ask(relay)
    assert caught.value.status_code == status
    assert (caught.value.code, caught.value.param) == ("c", "p")
    assert caught.value.request_id
    assert "so it is" in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), ANTHROPIC_CLASSES.items())
@pytest.mark.parametrize("ask", [messages_plain, messages_streamed, messages_plain_async], ids=_name)
def test_anthropic_errors_have_their_class(relay: Relay, status: int, kind: Any, ask: Any) -> None:
    error = {"type": "error", "error": {"type": "api_error", "message": "so it is"}, "request_id": "req_1"}
    relay.upstream.play(reply(error, status))
    with pytest.raises(kind) as caught:
        ask(relay)
    assert caught.value.status_code == status
    assert caught.value.request_id
    assert "so it is" in str(caught.value)


def test_relayds_own_errors_have_their_class(pair: Relay) -> None:
    for upstream in pair.upstreams:
        upstream.kill()
    with pytest.raises(openai.InternalServerError) as caught:
        chat_plain(pair)
    assert caught.value.code
    assert caught.value.request_id
    with pytest.raises(anthropic.InternalServerError) as told:
        messages_plain(pair)
    assert told.value.request_id
    assert isinstance(told.value.body, dict)
    assert told.value.body["error"]["type"]


@pytest.mark.parametrize("ask", [chat_streamed, chat_streamed_async], ids=_name)
def test_an_error_inside_a_stream_raises(relay: Relay, ask: Callable[[Relay], str]) -> None:
    relay.upstream.play(stream(*_events(OPENAI)[:3], OPENAI.error(500, "engine died")))
    with pytest.raises(openai.APIError, match="engine died"):
        ask(relay)


@pytest.mark.parametrize("ask", [messages_streamed, messages_streamed_async], ids=_name)
def test_an_error_inside_messages_raises(relay: Relay, ask: Callable[[Relay], str]) -> None:
    relay.upstream.play(stream(*_events(ANTHROPIC)[:3], ANTHROPIC.error(529, "engine died")))
    with pytest.raises(anthropic.APIStatusError, match="engine died"):
        ask(relay)


# Retries, which are the clients' own


@pytest.mark.parametrize(
    ("header", "value", "at_least_s"),
    [("retry-after-ms", "300", 0.3), ("retry-after", "0.4", 0.4), ("retry-after", "1", 1.0)],
)
def test_retry_after_is_obeyed(relay: Relay, header: str, value: str, at_least_s: float) -> None:
    relay.upstream.play(
        reply({"error": {"message": "slow down"}}, 429, (header, value)), reply(OPENAI.whole(TEXT))
    )
    began = time.monotonic()
    client = _openai(relay).with_options(max_retries=1)
    answer = client.chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert time.monotonic() - began >= at_least_s
    first, second = relay.upstream.requests
    assert second.at - first.at >= at_least_s
    assert (first.header("x-stainless-retry-count"), second.header("x-stainless-retry-count")) == ("0", "1")


def test_anthropic_obeys_as_well(relay: Relay) -> None:
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    relay.upstream.play(reply(error, 429, ("retry-after-ms", "300")), reply(ANTHROPIC.whole(TEXT)))
    client = _anthropic(relay).with_options(max_retries=1)
    answer = client.messages.create(model="m", max_tokens=64, messages=HELLO)
    assert answer.content
    first, second = relay.upstream.requests
    assert second.at - first.at >= 0.3


def test_a_client_that_is_told_not_to_retry_does_not(relay: Relay) -> None:
    relay.upstream.play(reply({"error": {"message": "no"}}, 500, ("x-should-retry", "false")))
    with pytest.raises(openai.InternalServerError):
        _openai(relay).with_options(max_retries=3).chat.completions.create(model="m", messages=HELLO)
    assert relay.requests == 1


# Leaving


def test_breaking_out_of_a_stream_ends_it_at_the_worker(relay: Relay) -> None:
    relay.upstream.play(stream(*OPENAI.events(*("word" for _ in range(500))), gap=0.01))
    with _openai(relay) as client:
        for event in client.chat.completions.create(model="m", messages=HELLO, stream=True):
            if event.choices[0].delta.content:
                break
    connection = relay.upstream.requests[0].connection
    eventually(lambda: connection.closed_at, 2)


def test_many_async_streams_at_once(relay: Relay) -> None:
    relay.upstream.play(stream(*_events(OPENAI), gap=0.01))

    async def one(client: openai.AsyncOpenAI) -> str:
        text = ""
        async for event in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
            text += event.choices[0].delta.content or ""
        return text

    async def use(client: openai.AsyncOpenAI) -> list[str]:
        return await asyncio.gather(*(one(client) for _ in range(50)))

    assert _in_async_openai(relay, use) == [TEXT] * 50
