"""Phase 4: what is in the body that relayd must know?

Only a view is decoded: the model, whether a stream is wanted, and the few numbers that say how much work it
is.  The bytes that go to the worker are the client's own.  A compressed body is decoded as a bounded copy.
"""

from __future__ import annotations

import re
import zlib
from typing import Any
from urllib.parse import unquote

import msgspec

from relayd._fast.splice import find_value
from relayd.faults import Fault, fault
from relayd.records import Exchange, Facts

BYTES_PER_TOKEN = 4
OUTPUT_UNKNOWN = 256  # tokens expected of a request that sets no bound
LARGEST_BOUND = 1 << 31
ONE_MODEL = b"/v1/models/"
MULTIPART_WINDOW = 1 << 20  # bytes of a form in which its model is looked for
_ASK_FOR_USAGE = b'{"stream_options":{"include_usage":true},'


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    stream_options: Any = msgspec.UNSET


_decode = msgspec.json.Decoder(_Body).decode

# Every repetition has a bound: a client chooses the text.
_FORM_MODEL = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="?model"?(?:[; \t][^\r\n]{0,200})?\r\n'
    rb"(?:[^\r\n]{1,200}\r\n){0,8}\r\n"
    rb"([^\r\n]{0,256})\r\n",
    re.IGNORECASE,
)


def has_seen_enough(exchange: Exchange) -> bool:
    """True when `decode` can say what it will ever say."""
    if exchange.route.body == "json":
        return exchange.body.complete
    if exchange.route.body == "multipart":
        body = exchange.body
        if body.complete or body.size >= MULTIPART_WINDOW:
            return True
        if body.size - exchange.searched < body.size // 8:
            return False  # looking again at every few bytes would cost the square of the form's size
        exchange.searched = body.size
        return bool(_FORM_MODEL.search(body.whole()))
    return True


def decode(exchange: Exchange, max_body: int) -> Fault | None:
    """Note the model and the size of the work; return a fault if the body cannot be read."""
    kind = exchange.route.body
    if kind != "json":
        exchange.strip_usage = False
    if kind == "none":
        if exchange.head.path.startswith(ONE_MODEL):
            exchange.model = unquote(exchange.head.path[len(ONE_MODEL) :].decode("ascii"))
        return None
    if kind == "multipart":
        found = _FORM_MODEL.search(exchange.body.whole())
        exchange.model = found[1].decode("utf-8", "replace") if found else ""
        exchange.facts = Facts(exchange.model, exchange.body.size // BYTES_PER_TOKEN, OUTPUT_UNKNOWN)
        return None
    return decode_json(exchange, max_body)


def decode_json(exchange: Exchange, max_body: int) -> Fault | None:
    """Note what the JSON body says."""
    raw = exchange.body.whole()
    coding = exchange.head.content_encoding
    if coding is not None and coding.lower() not in (b"", b"identity"):
        plain = inflated(raw, coding.lower(), max_body)
        if isinstance(plain, Fault):
            return plain
        raw = plain
    try:
        said = _decode(raw)
    except RecursionError:
        return fault("bad_body", "is nested too deeply")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return fault("bad_body", f"is not a JSON object: {error}")
    if said.model is not None and not isinstance(said.model, str):
        return fault("bad_body", "has a model that is not a string", param="model")
    exchange.model = said.model or ""
    exchange.stream = said.stream is True
    exchange.facts = Facts(exchange.model, len(raw) // BYTES_PER_TOKEN, output_bound(said))
    if exchange.strip_usage:
        exchange.strip_usage = coding is None and ask_for_usage(exchange, said, raw)
    return None


def output_bound(said: _Body) -> int:
    """Return how many tokens the answer may have, as far as the request says."""
    bound = said.max_completion_tokens or said.max_tokens or said.max_output_tokens
    return bound if type(bound) is int and 0 < bound < LARGEST_BOUND else OUTPUT_UNKNOWN


def ask_for_usage(exchange: Exchange, said: _Body, raw: bytes) -> bool:
    """Ask for usage in a stream's request; return True if the client had not asked for it itself."""
    if not exchange.stream or exchange.route.name not in ("chat", "completions"):
        return False
    options = said.stream_options
    if options is msgspec.UNSET:
        brace = raw.index(b"{")
        exchange.body.replace(raw[:brace] + _ASK_FOR_USAGE + raw[brace + 1 :])
        return True
    place = find_value(raw, b"stream_options")
    if place is None or not isinstance(options, dict | None) or (options or {}).get("include_usage") is True:
        return False
    start, end = place
    value = msgspec.json.encode({**(options or {}), "include_usage": True})
    exchange.body.replace(raw[:start] + value + raw[end:])
    return True


def inflated(raw: bytes, coding: bytes, limit: int) -> bytes | Fault:
    """Return a decoded copy of a compressed body, or the fault that it is."""
    if coding in (b"gzip", b"x-gzip"):
        decoder = zlib.decompressobj(31)
    elif coding == b"deflate":
        decoder = zlib.decompressobj(15)
    else:
        return fault("body_coding", repr(coding[:32].decode("ascii", "backslashreplace")))
    try:
        plain = decoder.decompress(raw, limit + 1)
    except zlib.error as error:
        return fault("bad_body", f"is not valid {coding.decode('ascii')}: {error}")
    if len(plain) > limit:
        return fault("body_too_large", f"{limit} bytes when decoded")
    if not decoder.eof:
        return fault("bad_body", f"ends before its {coding.decode('ascii')} does")
    return plain
