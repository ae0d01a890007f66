"""Phase 4: what is in the body that relayd must know?

Only a view is decoded: the model, whether a stream is wanted, and the few numbers that say how much work it
is.  The bytes that go to the worker are the client's own, unless the model has another name there.  A
compressed body is decoded as a bounded copy.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import zstandard

from relayd._fast.splice import count_names, find_value
from relayd.faults import Fault, fault
from relayd.phases.routes import ONE_MODEL, POSTS
from relayd.records import Exchange, Facts, Fleet
from relayd.registry import did_you_mean

BYTES_PER_TOKEN = 4
OUTPUT_UNKNOWN = 256  # tokens expected of a request that sets no bound
LARGEST_BOUND = 1 << 31
QUERY_FIELDS = 100
ZSTD_WINDOW = 8 << 20
ZSTD_PIECE = 1 << 10  # of a body: what one piece of a bomb can become is bounded by zstd's ratio
ODD_FORM = "is no form that names its model once and plainly: multipart/form-data as official clients send it"
INFLATION_AT_MOST = 64  # times its size a compressed body may become ...
INFLATED_ALWAYS = 1 << 20  # ... beyond this
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


# A form as official clients write it, which every reader reads alike.
_FORM_TYPE = re.compile(rb'multipart/form-data; ?boundary=("?)([0-9A-Za-z_.+-]{1,70})\1', re.IGNORECASE)
_PART = re.compile(
    rb'content-disposition: form-data; name="([^"\\%\r\n]{1,200})"(?:; filename="[^"\\\r\n]{0,1000}")?'
    rb"(?:; filename\*=utf-8''[^;\"\s]{0,1000})?",
    re.IGNORECASE,
)
_PART_TYPE = re.compile(rb"content-(?:type|length): [^\r\n]{1,200}", re.IGNORECASE)


def has_seen_enough(exchange: Exchange, whole_forms: bool) -> bool:
    """True when `decode` can say what it will ever say; `whole_forms` if a form may have to be changed."""
    if exchange.route.body == "json":
        return exchange.body.complete
    if exchange.route.body == "multipart":
        body = exchange.body
        if body.complete or (body.size >= MULTIPART_WINDOW and not whole_forms):
            return True
        if whole_forms or body.size - exchange.searched < body.size // 8:
            return False  # looking again at every few bytes would cost the square of the form's size
        exchange.searched = body.size
        return bool(_FORM_MODEL.search(body.whole()))
    return True


def decode(exchange: Exchange, max_body: int) -> Fault | None:
    """Note the model and the size of the work; return a fault if the body cannot be read."""
    kind = exchange.route.body
    if kind == "json":
        return decode_json(exchange, max_body)
    exchange.strip_usage = False
    if exchange.route.name == "other" and may_name_any_model(exchange):
        return fault("path_forbidden", exchange.head.path[:128].decode("ascii"))
    if kind == "multipart":
        return decode_form(exchange)
    if exchange.route.name == "other" and has_body(exchange):
        size, priority = max(exchange.head.content_length, 0), exchange.head.priority
        exchange.facts = Facts("", size // BYTES_PER_TOKEN, OUTPUT_UNKNOWN, priority)
    if exchange.head.path.startswith(ONE_MODEL):
        exchange.model = unquote(exchange.head.path[len(ONE_MODEL) :].decode("ascii"))
    elif b"model=" in exchange.head.target:
        names = models_in_query(exchange.head.target)
        if len(names) > 1 and is_held_to_model(exchange):
            return fault("bad_query", "names a model more than once", param="model")
        exchange.model = names[-1] if names else ""
    return None


def decode_form(exchange: Exchange) -> Fault | None:
    """Note the model that a form says."""
    form = exchange.body.whole()
    found = model_in_form(exchange, form)
    if found is None and is_held_to_model(exchange):
        return fault("bad_body", ODD_FORM, param="model")
    exchange.model = exchange.asked = form[found[0] : found[1]].decode("utf-8", "replace") if found else ""
    size, priority = exchange.body.size, exchange.head.priority
    exchange.facts = Facts(exchange.model, size // BYTES_PER_TOKEN, OUTPUT_UNKNOWN, priority)
    return None


def model_in_form(exchange: Exchange, form: bytes) -> tuple[int, int] | None:
    """Return where a form says its model, or None.

    Where a tenant is held to it, only a form in which there can be no other reading is read.
    """
    if is_held_to_model(exchange):
        return only_model(form, exchange.head.content_type or b"", coding_of(exchange))
    found = _FORM_MODEL.search(form)
    return None if found is None else found.span(1)


def only_model(form: bytes, content_type: bytes, coding: bytes) -> tuple[int, int] | None:
    """Return where a form has its one model; None if it has none or two, or anything odd about it."""
    kind = _FORM_TYPE.fullmatch(content_type)
    if kind is None or coding:
        return None
    delimiter = b"--" + kind[2]
    pieces = form.split(delimiter)
    if len(pieces) < 3 or pieces[0] or pieces[-1] not in (b"--", b"--\r\n"):
        return None
    found, at = [], len(delimiter)
    for part in pieces[1:-1]:
        head, blank, value = part.partition(b"\r\n\r\n")
        if not (blank and head.startswith(b"\r\n") and value.endswith(b"\r\n")):
            return None
        lines = head[2:].split(b"\r\n")
        names = [match for match in map(_PART.fullmatch, lines) if match]
        if len(names) != 1 or sum(map(bool, map(_PART_TYPE.fullmatch, lines))) != len(lines) - 1:
            return None
        if names[0][1].lower() == b"model":
            found.append((at + len(part) - len(value), at + len(part) - 2))
        at += len(part) + len(delimiter)
    return found[0] if len(found) == 1 else None


def models_in_query(target: bytes) -> list[str]:
    """Return the models that a target's query names."""
    query = target.partition(b"?")[2].decode("ascii")
    try:
        pairs = parse_qsl(query, max_num_fields=QUERY_FIELDS)
    except ValueError:
        return []
    return [value for name, value in pairs if name == "model"]


def is_held_to_model(exchange: Exchange) -> bool:
    """True if what this tenant may do depends on the model, so that a worker must read the same as relayd."""
    return exchange.allowed is not None or (exchange.grant is not None and bool(exchange.grant.scope.models))


def may_name_any_model(exchange: Exchange) -> bool:
    """True if nothing keeps the body of an unknown path from asking for a model that is not this tenant's.

    What it says is not read.  With an allow-list even a path alone may be about another's model.
    """
    return exchange.allowed is not None or (has_body(exchange) and is_held_to_model(exchange))


def has_body(exchange: Exchange) -> bool:
    """True if the head announces a body."""
    return exchange.head.content_length > 0 or exchange.head.chunked


def decode_json(exchange: Exchange, max_body: int) -> Fault | None:
    """Note what the JSON body says."""
    raw = exchange.body.whole()
    coding = coding_of(exchange)
    if coding:
        plain = inflated(raw, coding, max_body)
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
    if is_held_to_model(exchange) and count_names(raw, b"model") > (find_value(raw, b"model") is not None):
        # Readers differ: some take the first of two, and some do not tell cases apart.
        return fault("bad_body", "names its model twice, or in a spelling of its own", param="model")
    exchange.model = exchange.asked = said.model or ""
    exchange.stream = said.stream is True
    exchange.facts = Facts(
        exchange.model, len(raw) // BYTES_PER_TOKEN, output_bound(said), exchange.head.priority
    )
    if exchange.strip_usage:
        exchange.strip_usage = not coding and ask_for_usage(exchange, said, raw)
    return None


def coding_of(exchange: Exchange) -> bytes:
    """Return the coding that a body has, b"" if none."""
    coding = exchange.head.content_encoding
    if coding is None:
        return b""
    coding = coding.lower()
    return b"" if coding == b"identity" else coding


def permit(exchange: Exchange, fleet: Fleet) -> Fault | None:
    """Return a fault if the model is not one that is served, or not one that this tenant may use."""
    asked, known = exchange.model, None
    if fleet.declared:
        if not asked and exchange.route.body == "none":
            known = fleet.model_for_path(exchange.head.path)
            if known is None and exchange.head.path in POSTS:
                return fault("method_not_allowed", exchange.head.method)
            if known is None:
                return fault("path_not_found", exchange.head.path[:128].decode("ascii"))
        elif not asked:
            return fault("bad_body", "does not say which model is wanted", param="model")
        else:
            known = fleet.declared.get(asked)
        if known is None:
            hint = did_you_mean(asked[:128], visible(exchange, fleet))
            return fault("model_not_found", repr(asked[:128]) + hint, param="model")
        exchange.model = known.name
    if exchange.allowed is not None and not is_allowed(exchange.model, asked, exchange.allowed, fleet):
        return fault("model_forbidden", repr(asked[:128]), param="model")
    return None


def is_allowed(model: str, asked: str, allowed: frozenset[str], fleet: Fleet) -> bool:
    """True if a tenant that may use `allowed` may use this model, whichever of its names either is."""
    if asked in allowed or model in allowed:
        return True
    known = fleet.declared.get(model)
    return known is not None and any(fleet.declared.get(name) is known for name in allowed)


def visible(exchange: Exchange, fleet: Fleet) -> Iterable[str]:
    """Return the names of models, and their aliases, that the tenant may use."""
    allowed = exchange.allowed
    if fleet.declared:
        models = fleet.declared.items()
        return [
            name for name, model in models if allowed is None or is_allowed(model.name, name, allowed, fleet)
        ]
    return fleet.models if allowed is None else fleet.models & allowed


def rename_model(exchange: Exchange, name: str, max_body: int) -> Fault | None:
    """Let the body ask for the model by the name that the next worker has for it."""
    if not exchange.asked or exchange.asked == name:
        return None
    if exchange.route.body == "multipart":
        raw = exchange.body.whole()
        found = model_in_form(exchange, raw)
        if found is not None:
            exchange.body.replace(raw[: found[0]] + name.encode() + raw[found[1] :])
        exchange.asked = name
        return None
    raw, coding = exchange.body.whole(), coding_of(exchange)
    if coding:
        plain = inflated(raw, coding, max_body)
        if isinstance(plain, Fault):
            return plain
        raw = plain
    place = find_value(raw, b"model")
    if place is None:
        return fault("bad_body", 'has a key "model" that is written with escapes', param="model")
    raw = raw[: place[0]] + msgspec.json.encode(name) + raw[place[1] :]
    exchange.body.replace(deflated(raw, coding) if coding else raw)
    exchange.asked = name
    return None


def output_bound(said: _Body) -> int:
    """Return how many tokens the answer may have, as far as the request says."""
    for bound in (said.max_completion_tokens, said.max_tokens, said.max_output_tokens):
        if type(bound) is int and 0 < bound < LARGEST_BOUND:
            return bound
    return OUTPUT_UNKNOWN


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
    word = coding.decode("ascii", "backslashreplace")
    # A few KB that become as much as max_body would cost everybody half a second.
    limit = min(limit, max(INFLATED_ALWAYS, INFLATION_AT_MOST * len(raw)))
    try:
        if coding in (b"gzip", b"x-gzip"):
            plain, whole = unzipped(raw, 31, limit)
        elif coding == b"deflate":
            plain, whole = unzipped(raw, 15, limit)
        elif coding == b"zstd":
            plain, whole = unzstd(raw, limit)
        else:
            return fault("body_coding", repr(word[:32]))
    except (zlib.error, zstandard.ZstdError) as error:
        return fault("bad_body", f"is not valid {word}: {error}")
    if len(plain) > limit:
        return fault("body_too_large", f"{limit} bytes when decoded")
    if not whole:
        return fault("bad_body", f"ends before its {word} does")
    return plain


def unzipped(raw: bytes, window: int, limit: int) -> tuple[bytes, bool]:
    """Return (at most a byte more than `limit`, is that all of it)."""
    decoder = zlib.decompressobj(window)
    return decoder.decompress(raw, limit + 1), decoder.eof


def unzstd(raw: bytes, limit: int) -> tuple[bytes, bool]:
    """The same for zstd, whose window is bounded as RFC 8878 asks of everybody."""
    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
    pieces, size = [], 0
    for start in range(0, len(raw), ZSTD_PIECE):
        piece = decoder.decompress(raw[start : start + ZSTD_PIECE])
        pieces.append(piece)
        size += len(piece)
        if size > limit or decoder.eof:
            break
    return b"".join(pieces)[: limit + 1], decoder.eof


def deflated(plain: bytes, coding: bytes) -> bytes:
    """Return `plain` in a coding that `inflated` reads."""
    if coding == b"zstd":
        return zstandard.compress(plain)
    return zlib.compress(plain) if coding == b"deflate" else gzip.compress(plain, 1)
