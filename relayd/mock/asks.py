"""What a request asks for, whatever dialect it is written in.

Only the fields that change the answer are decoded; the rest may be anything.  Every one
may be null, as clients send them.  A body that cannot be served is a `Refusal`, which the
engine words in its own way (`errors.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from relayd.mock.prefix import BYTES_PER_TOKEN, blocks_of

CACHED_ASKS = 256  # a load test repeats itself
CACHED_BODY_BYTES = 8192

IMAGE_TOKENS = 256  # an image costs about that with the common vision models
MESSAGE_TOKENS = 4  # role and separators of one message in the usual chat templates


class Refusal(Exception):
    """The engine will not do it: a status, a sentence, and what OpenAI calls its code."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


@dataclass(slots=True)
class Tool:
    """A function the answer has to call."""

    name: str
    schema: object
    named: bool  # the client chose this one, rather than any


@dataclass(slots=True)
class Ask:
    """One request, decoded."""

    model: str | None
    prompt: bytes  # all its text in order, with what separates it; identity for the prefix cache
    extra_tokens: int = 0  # what the prompt costs beside its text
    stream: bool = False
    choices: int = 1
    limit: int | None = None  # max_tokens, whatever it is called
    at_least: int = 0  # min_tokens
    ignore_eos: bool = False
    stops: list[str] = field(default_factory=list)
    tool: Tool | None = None
    usage: bool = False  # stream_options.include_usage
    continuous: bool = False  # stream_options.continuous_usage_stats
    obfuscation: bool = True  # stream_options.include_obfuscation
    seed: int | None = None
    texts: list[str] = field(default_factory=list)  # what to embed, one by one
    body: Any = None  # the decoded struct, for what has to be echoed
    prompt_tokens: int = 1  # the size of the prompt; never zero
    blocks: list[int] = field(default_factory=list)  # for the prefix cache

    def measure(self) -> Ask:
        """Fill in what follows from the prompt."""
        self.prompt_tokens = max(1, -(-len(self.prompt) // BYTES_PER_TOKEN) + self.extra_tokens)
        self.blocks = blocks_of(self.prompt)
        return self


class Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


Content = str | list[Part] | None


class Message(msgspec.Struct):
    role: str | None = None
    content: Content = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """What all bodies that ask for text have in common."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None


class ChatBody(Generation, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None


class CompletionBody(Generation, kw_only=True):
    prompt: Any = ""


class ResponsesItem(msgspec.Struct):
    content: Content = None
    arguments: str | None = None
    output: Any = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    input: str | list[ResponsesItem]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    temperature: float | None = None
    top_p: float | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    messages: list[Message]
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    system: Content = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    input: Any
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


_chat = msgspec.json.Decoder(ChatBody)
_completion = msgspec.json.Decoder(CompletionBody)
_responses = msgspec.json.Decoder(ResponsesBody)
_messages = msgspec.json.Decoder(MessagesBody)
_embedding = msgspec.json.Decoder(EmbeddingBody)


def decode(read: Callable[[bytes], Ask], data: bytes) -> Ask:
    """Return what the body `data` asks for, by way of one of the functions below.

    What it returns may be shared by several requests: nobody changes it.  Raises Refusal.
    """
    if len(data) <= CACHED_BODY_BYTES:
        return _decode_small(read, data)
    return read(data).measure()


@lru_cache(CACHED_ASKS)
def _decode_small(read: Callable[[bytes], Ask], data: bytes) -> Ask:
    return read(data).measure()


def chat(data: bytes) -> Ask:
    """Decode the body of /v1/chat/completions."""
    body: ChatBody = _decode(_chat, data)
    prompt, extra = _conversation(body.messages)
    ask = _generation(body, prompt, extra)
    if body.max_completion_tokens is not None:
        ask.limit = _positive(body.max_completion_tokens, "max_completion_tokens")
    if body.tools:
        ask.tool = _openai_tool(body.tools, body.tool_choice)
        ask.extra_tokens += _size(body.tools) // BYTES_PER_TOKEN
    return ask


def completion(data: bytes) -> Ask:
    """Decode the body of /v1/completions, where several prompts are several answers."""
    body: CompletionBody = _decode(_completion, data)
    texts, tokens = _texts(body.prompt, "prompt")
    ask = _generation(body, "\0".join(texts).encode(), tokens)
    ask.choices *= max(1, len(texts))
    return ask


def responses(data: bytes) -> Ask:
    """Decode the body of /v1/responses."""
    body: ResponsesBody = _decode(_responses, data)
    if isinstance(body.input, str):
        prompt, extra = body.input.encode(), MESSAGE_TOKENS
    else:
        prompt, extra = _items(body.input)
    if body.instructions:
        prompt = body.instructions.encode() + b"\0" + prompt
    ask = Ask(body.model, prompt, extra, stream=bool(body.stream), body=body)
    if body.max_output_tokens is not None:
        ask.limit = _positive(body.max_output_tokens, "max_output_tokens")
    _size([body.tools, body.tool_choice, body.metadata])  # all of which is repeated in the answer
    if body.stream_options:
        ask.obfuscation = body.stream_options.include_obfuscation is not False
    if body.tools:
        ask.tool = _openai_tool(body.tools, body.tool_choice)
        ask.extra_tokens += _size(body.tools) // BYTES_PER_TOKEN
    return ask


def messages(data: bytes) -> Ask:
    """Decode the body of /v1/messages."""
    ask = count(data)
    body: MessagesBody = ask.body
    if body.max_tokens is None:
        raise Refusal(400, "max_tokens: Field required", param="max_tokens")
    ask.limit = _positive(body.max_tokens, "max_tokens")
    return ask


def count(data: bytes) -> Ask:
    """Decode the body of /v1/messages/count_tokens: a message without a limit."""
    body: MessagesBody = _decode(_messages, data)
    prompt, extra = _conversation(body.messages)
    if body.system:
        system, more = _conversation([Message("system", body.system)])
        prompt, extra = system + prompt, extra + more
    ask = Ask(body.model, prompt, extra, stream=bool(body.stream), body=body)
    ask.stops = [text for text in body.stop_sequences or () if text]
    if body.tools:
        ask.tool = _anthropic_tool(body.tools, body.tool_choice)
        ask.extra_tokens += _size(body.tools) // BYTES_PER_TOKEN
    return ask


def embedding(data: bytes) -> Ask:
    """Decode the body of /v1/embeddings."""
    body: EmbeddingBody = _decode(_embedding, data)
    texts, tokens = _texts(body.input, "input")
    if body.dimensions is not None and not 1 <= body.dimensions <= 8192:
        raise Refusal(400, "dimensions must be from 1 to 8192", param="dimensions")
    return Ask(body.model, "\0".join(texts).encode(), tokens, limit=1, texts=texts, body=body)


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise Refusal(400, f"The body is not what this route takes: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"The body is not JSON: {error}") from None
    except RecursionError:
        raise Refusal(400, "The body is nested too deeply") from None


def _size(value: object) -> int:
    """Return how long `value` is as JSON; integers that JSON writers here cannot write are refused."""
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError as error:
        raise Refusal(400, f"The body cannot be read: {error}") from None


def _generation(body: Generation, prompt: bytes, extra_tokens: int) -> Ask:
    ask = Ask(body.model, prompt, extra_tokens, stream=bool(body.stream), seed=body.seed, body=body)
    if body.max_tokens is not None:
        ask.limit = _positive(body.max_tokens, "max_tokens")
    if body.n is not None:
        ask.choices = _positive(body.n, "n")
    if body.stop:
        ask.stops = [body.stop] if isinstance(body.stop, str) else [text for text in body.stop if text]
    ask.at_least = body.min_tokens or 0
    ask.ignore_eos = bool(body.ignore_eos)
    if options := body.stream_options:
        ask.usage = bool(options.include_usage)
        ask.continuous = bool(options.include_usage and options.continuous_usage_stats)
        ask.obfuscation = options.include_obfuscation is not False
    return ask


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise Refusal(400, f"{name} must be at least 1, got {value}", param=name)
    return value


def _conversation(messages: list[Message]) -> tuple[bytes, int]:
    """Return all the text, and the tokens beside it."""
    if not messages:
        raise Refusal(400, "messages must hold at least one message", param="messages")
    extra = MESSAGE_TOKENS * len(messages)
    texts = []
    for message in messages:
        content = message.content
        texts.append(message.role or "")
        if isinstance(content, str):
            texts.append(content)
        elif content:
            texts.extend(part.text for part in content if part.text)
            extra += IMAGE_TOKENS * sum("image" in (part.type or "") for part in content)
    return "\0".join(texts).encode(), extra


def _items(items: list[ResponsesItem]) -> tuple[bytes, int]:
    texts = [text for item in items for text in (item.arguments, item.output) if isinstance(text, str)]
    prompt, extra = _conversation([Message("", item.content) for item in items])
    return "\0".join([prompt.decode(), *texts]).encode(), extra


def _texts(value: Any, name: str) -> tuple[list[str], int]:
    """Return what a string, strings, tokens or lists of tokens say, and what they cost beside their text."""
    if isinstance(value, str):
        return [value], 0
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value, 0
        if all(isinstance(item, int) for item in value):
            return [" ".join(map(str, value))], 0
        if all(isinstance(item, list) for item in value):
            return [" ".join(map(str, item)) for item in value], 0
    raise Refusal(400, f"{name} must be a string, a list of strings, or lists of tokens", param=name)


def _openai_tool(tools: list[dict[str, Any]], choice: Any) -> Tool | None:
    """Return the function that `tool_choice` demands; with "auto" the mock answers in words."""
    functions = [tool.get("function", tool) for tool in tools if tool.get("type", "function") == "function"]
    functions = [function for function in functions if isinstance(function, dict) and function.get("name")]
    if choice in (None, "auto", "none") or not functions:
        return None
    if choice == "required":
        return Tool(str(functions[0]["name"]), functions[0].get("parameters"), named=False)
    if isinstance(choice, dict):
        named = choice.get("function", choice)
        name = named.get("name") if isinstance(named, dict) else None
        for function in functions:
            if function["name"] == name:
                return Tool(str(name), function.get("parameters"), named=True)
    raise Refusal(400, "tool_choice names no function in tools", param="tool_choice")


def _anthropic_tool(tools: list[dict[str, Any]], choice: dict[str, Any] | None) -> Tool | None:
    kind = choice.get("type") if choice else None
    if kind == "any":
        return Tool(str(tools[0].get("name")), tools[0].get("input_schema"), named=False)
    if choice and kind == "tool":
        for tool in tools:
            if tool.get("name") == choice.get("name"):
                return Tool(str(choice["name"]), tool.get("input_schema"), named=True)
        raise Refusal(400, "tool_choice: names no tool in tools", param="tool_choice")
    return None
