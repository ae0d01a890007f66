"""What relayd reads of a body, what it makes of one that it cannot read, and that it changes nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import aiohttp
import openai
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.head import Priority, RequestHead
from relayd._fast.leg import Pool, RequestBody
from relayd._fast.sink import Sink
from relayd.config import Allowance, Tier
from relayd.limits.grants import Grant
from relayd.limits.tenants import Limiter
from relayd.phases.decode import (
    MULTIPART_WINDOW,
    OUTPUT_UNKNOWN,
    decode,
    has_seen_enough,
    inflated,
    permit,
    rename_model,
    visible,
)
from relayd.phases.routes import route_for
from relayd.records import NO_FACTS, Client, Exchange, Fleet, Model, Worker

LIMIT = 1 << 20
CHAT, FORM, OTHER = b"/v1/chat/completions", b"/v1/audio/transcriptions", b"/whatever"


def exchange_for(
    data: bytes,
    path: bytes = CHAT,
    coding: bytes | None = None,
    ask: bool = False,
    whole: bool = True,
    length: bytes = b"",
    kind: bytes = b"multipart/form-data; boundary=b",
):
    """Return an exchange whose body is `data`."""
    headers = [(b"Host", b"a"), *([(b"Content-Encoding", coding)] if coding is not None else [])]
    headers += [(b"Content-Length", length)] if length else []
    headers += [(b"Content-Type", kind)] if path == FORM else []
    head = RequestHead("POST", path, 1, headers)
    body = RequestBody(len(data), 1 << 30)
    body.feed(data)
    if whole:
        body.finish()
    exchange = Exchange(None, head, Sink(), body, Client("a"), route_for("POST", path, False), 0)
    exchange.strip_usage = ask
    return exchange


def decoded(said: object, **options):
    """Return an exchange whose body, `said` as JSON, has been decoded without a fault."""
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    exchange = exchange_for(data, **options)
    assert decode(exchange, LIMIT) is None
    return exchange


def refused(data: bytes, **options) -> tuple[str, str]:
    """Return (code, message) of the fault that `data` is answered with."""
    fault = decode(exchange_for(data, **options), LIMIT)
    assert fault is not None
    return fault.code, fault.message


# --- JSON ---------------------------------------------------------------------------------------------


def test_reads_the_model_and_what_is_wanted():
    exchange = decoded(
        {"model": "m", "stream": True, "max_tokens": 7, "messages": [{"role": "user", "content": "hi"}]}
    )
    assert (exchange.model, exchange.stream, exchange.facts.model) == ("m", True, "m")
    assert exchange.facts.output_tokens == 7
    assert exchange.facts.prompt_tokens == exchange.body.size // 4


@pytest.mark.parametrize(
    ("said", "model"),
    [({}, ""), ({"model": None}, ""), ({"model": ""}, ""), ({"model": "a/b:c é"}, "a/b:c é")],
)
def test_a_model_may_be_missing(said, model):
    assert decoded(said).model == model


@pytest.mark.parametrize("model", [7, True, [], {}, ["m"], 1.5])
def test_a_model_is_a_string(model):
    code, message = refused(json.dumps({"model": model}).encode())
    assert code == "bad_body"
    assert "model that is not a string" in message


@pytest.mark.parametrize(
    ("stream", "wanted"),
    [(True, True), (False, False), (None, False), ("true", False), (1, False), ([], False)],
)
def test_a_stream_is_wanted_only_by_true(stream, wanted):
    assert decoded({"stream": stream}).stream is wanted


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        ({}, OUTPUT_UNKNOWN),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None, "max_output_tokens": 7}, 7),
        ({"max_tokens": 0}, OUTPUT_UNKNOWN),
        ({"max_tokens": -1}, OUTPUT_UNKNOWN),
        ({"max_tokens": True}, OUTPUT_UNKNOWN),
        ({"max_completion_tokens": True, "max_tokens": 5}, 5),
        ({"max_completion_tokens": "x", "max_output_tokens": 7}, 7),
        ({"max_tokens": "5"}, OUTPUT_UNKNOWN),
        ({"max_tokens": 5.5}, OUTPUT_UNKNOWN),
        ({"max_tokens": 1 << 40}, OUTPUT_UNKNOWN),
        ({"max_tokens": 10**30}, OUTPUT_UNKNOWN),
        ({"max_tokens": []}, OUTPUT_UNKNOWN),
    ],
)
def test_the_work_is_bounded_by_what_the_request_says(said, bound):
    assert decoded(said).facts.output_tokens == bound


NULL = {
    "model": None,
    "stream": None,
    "max_tokens": None,
    "max_completion_tokens": None,
    "max_output_tokens": None,
    "stream_options": None,
}


@pytest.mark.parametrize("name", NULL)
def test_every_field_may_be_null(name):
    decoded({name: None}, ask=True)
    decoded({**NULL, "stream": True, name: None}, ask=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"}",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b"{'model':'m'}",
        b'{"model":"m"',
        b'{"model":"m"}x',
        b'{"model":"m",}',
        b'\xef\xbb\xbf{"model":"m"}',
        b"\xff\xfe",
        b'{"model":"\xff"}',
        b'{"a":NaN}',
        b"model=m",
        b'{"model":"\xed\xa0\x80"}',
        b'{"a":01}',
        b"\x00",
    ],
)
def test_what_is_no_json_object_is_refused(data):
    code, message = refused(data)
    assert code == "bad_body"
    assert message.isprintable()
    assert message.startswith("the request's body is not a JSON object")


@pytest.mark.parametrize(
    "data", [b'{"a":' * 100_000, b'{"a":' + b"[" * 100_000, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
)
def test_deep_nesting_is_refused(data):
    code, message = refused(data)
    assert code == "bad_body"
    assert message == "the request's body is nested too deeply"


def test_moderate_nesting_is_fine():
    assert decoded(b'{"a":' + b"[" * 200 + b"]" * 200 + b',"model":"m"}').model == "m"


@given(
    st.binary(max_size=60)
    | st.text(max_size=40).map(lambda text: b'{"model":' + text.encode("utf-8", "replace"))
)
def test_any_bytes_are_answered(data):
    fault = decode(exchange_for(data), LIMIT)
    assert fault is None or fault.status == 400


def test_the_body_is_not_touched():
    data = b' {"model" : "m",\n "x":1 ,"stream":true} '
    exchange = exchange_for(data)
    assert decode(exchange, LIMIT) is None
    assert exchange.body.whole() == data


# --- asking for usage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions"])
@pytest.mark.parametrize(
    "data", [b'{"stream":true}', b' \n{ "model":"m", "stream": true }\n', b'{"stream":true,"x":"{"}']
)
def test_usage_is_asked_for_on_a_streams_behalf(path, data):
    exchange = decoded(data, path=path, ask=True)
    sent = exchange.body.whole()
    assert exchange.strip_usage
    assert json.loads(sent) == {**json.loads(data), "stream_options": {"include_usage": True}}
    assert exchange.body.size == len(sent)


@pytest.mark.parametrize(
    "said",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": True, "x": 1}},
        {"stream": True, "stream_options": 7},
        {"stream": True, "stream_options": []},
        {"stream": True, "stream_options": "include_usage"},
        {"stream": False, "stream_options": {}},
        {"stream": False},
        {},
    ],
)
def test_who_asks_alone_or_says_something_else_is_left_alone(said):
    data = json.dumps(said).encode()
    exchange = decoded(data, ask=True)
    assert (exchange.strip_usage, exchange.body.whole()) == (False, data)


OPTIONS = [
    ("null", {}),
    ("{}", {}),
    ('{"include_usage":false}', {}),
    ('{"include_usage":null,"x":[1]}', {"x": [1]}),
    ('{"include_usage":1}', {}),
    ('{"continuous_usage_stats":true}', {"continuous_usage_stats": True}),
]


@pytest.mark.parametrize(("options", "kept"), OPTIONS)
def test_who_does_not_ask_is_asked_for_and_nothing_else_changes(options, kept):
    before, behind = b' {"a": 1.50, "x":"\\u00e9", ', b' ,"stream":true , "b":[ ] } '
    exchange = decoded(before + b'"stream_options" : ' + options.encode() + behind, ask=True)
    sent = exchange.body.whole()
    assert exchange.strip_usage
    assert sent.startswith(before)
    assert sent.endswith(behind)
    assert json.loads(sent)["stream_options"] == {**kept, "include_usage": True}
    assert exchange.body.size == len(sent)


def test_the_last_of_repeated_options_counts():
    exchange = decoded(
        b'{"stream_options":{"include_usage":true},"stream_options":null,"stream":true}', ask=True
    )
    assert exchange.strip_usage
    assert json.loads(exchange.body.whole())["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("path", [b"/v1/responses", b"/v1/messages", b"/v1/embeddings"])
def test_other_routes_know_no_stream_options(path):
    exchange = decoded(b'{"stream":true}', path=path, ask=True)
    assert (exchange.strip_usage, exchange.body.whole()) == (False, b'{"stream":true}')


def test_usage_is_not_asked_for_unless_told_to():
    exchange = decoded(b'{"stream":true}', ask=False)
    assert (exchange.strip_usage, exchange.body.whole()) == (False, b'{"stream":true}')


def test_a_compressed_request_is_not_changed():
    data = gzip.compress(b'{"stream":true,"model":"m"}')
    exchange = decoded(data, coding=b"gzip", ask=True)
    assert (exchange.strip_usage, exchange.model, exchange.body.whole()) == (False, "m", data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5), st.sampled_from([None, 1, "\t"]))
def test_asking_keeps_the_rest_as_it_was(said, indent):
    said = {key: value for key, value in said.items() if key not in ("stream_options", "model")} | {
        "stream": True
    }
    exchange = decoded(json.dumps(said, indent=indent).encode(), ask=True)
    assert json.loads(exchange.body.whole()) == {**said, "stream_options": {"include_usage": True}}


# --- compressed bodies --------------------------------------------------------------------------------

CODINGS = [
    (b"gzip", gzip.compress),
    (b"GZip", gzip.compress),
    (b"x-gzip", gzip.compress),
    (b"deflate", zlib.compress),
    (b"identity", bytes),
    (b"Identity", bytes),
    (b"", bytes),
]


@pytest.mark.parametrize(("coding", "squeeze"), CODINGS)
def test_a_compressed_body_is_read_and_passed_as_it_came(coding, squeeze):
    data = squeeze(b'{"model":"m","stream":true,"max_tokens":9}')
    exchange = decoded(data, coding=coding)
    assert (exchange.model, exchange.stream, exchange.facts.output_tokens) == ("m", True, 9)
    assert exchange.body.whole() == data


@pytest.mark.parametrize("coding", [b"br", b"gzip, gzip", b"aes", b"\xff"])
def test_a_coding_that_is_not_read_here(coding):
    assert refused(b"whatever", coding=coding)[0] == "body_coding"


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("data", [b"not compressed", b"", b"\x1f\x8b"])
def test_a_body_that_is_not_what_it_says(coding, data):
    assert refused(data, coding=coding)[0] == "bad_body"


def test_a_compressed_body_that_is_cut():
    whole = gzip.compress(b'{"model":"m"}' + b" " * 1000)
    for size in (1, 10, 20, len(whole) - 1):
        code, message = refused(whole[:size], coding=b"gzip")
        assert code == "bad_body"
        assert "gzip" in message


def test_a_bomb_is_defused():
    bomb = gzip.compress(b" " * (100 << 20))
    assert len(bomb) < 200_000
    assert refused(bomb, coding=b"gzip")[0] == "body_too_large"


def test_a_decoded_body_may_be_as_large_as_a_plain_one():
    data = b'{"model":"m"}' + b" " * (LIMIT - 13)
    assert decoded(gzip.compress(data), coding=b"gzip").model == "m"
    assert refused(gzip.compress(data + b" "), coding=b"gzip")[0] == "body_too_large"


# --- forms --------------------------------------------------------------------------------------------


def form(*fields: bytes) -> bytes:
    """Return a multipart body."""
    return b"".join(b"--B\r\n" + field + b"\r\n" for field in fields) + b"--B--\r\n"


FILE = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    + b"\x00\xff" * 50
)
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1'
FORMS = [
    (form(MODEL, FILE), "whisper-1"),
    (form(FILE, MODEL), "whisper-1"),
    (form(b"content-disposition: form-data; name=model\r\n\r\nm"), "m"),
    (form(b'CONTENT-DISPOSITION: form-data;name="model"\r\nContent-Type: text/plain\r\n\r\nm'), "m"),
    (form(b'Content-Disposition: form-data; name="model"\r\n\r\n'), ""),
    (form(FILE), ""),
    (form(b'Content-Disposition: form-data; name="model_x"\r\n\r\nm'), ""),
    (form(b'Content-Disposition: form-data; name="x"; filename="model"\r\n\r\nm'), ""),
    (
        form(b'Content-Disposition: form-data; name="x"; filename="a; name=model"\r\n\r\nm', MODEL),
        "whisper-1",
    ),
    (form(b'Content-Disposition: form-data; name="x"\r\n\r\nname="model"\r\n\r\nm'), ""),
    (b"", ""),
    (b"not a form", ""),
]


@pytest.mark.parametrize(("data", "model"), FORMS)
def test_finds_the_model_of_a_form(data, model):
    exchange = decoded(data, path=FORM, ask=True)
    assert exchange.model == model
    assert (exchange.strip_usage, exchange.body.whole()) == (False, data)
    assert exchange.facts.prompt_tokens == len(data) // 4


def test_a_form_is_looked_at_until_its_model_is_there():
    data = form(MODEL, FILE)
    for size in range(1, len(data)):
        exchange = exchange_for(data[:size], path=FORM, whole=False)
        if has_seen_enough(exchange, False):
            assert decode(exchange, LIMIT) is None
            assert exchange.model == "whisper-1"
            assert size < len(data) - len(FILE)
            break
    else:
        pytest.fail("the model was not seen before the end")


def test_a_form_is_not_looked_at_for_ever():
    assert not has_seen_enough(exchange_for(b"x" * (MULTIPART_WINDOW - 1), path=FORM, whole=False), False)
    assert has_seen_enough(exchange_for(b"x" * MULTIPART_WINDOW, path=FORM, whole=False), False)
    assert has_seen_enough(exchange_for(form(FILE), path=FORM), False)


# --- the rest -----------------------------------------------------------------------------------------


def test_json_is_read_when_it_is_all_there():
    assert not has_seen_enough(exchange_for(b'{"model":"m"', whole=False), False)
    assert has_seen_enough(exchange_for(b'{"model":"m"}'), False)


@pytest.mark.parametrize("data", [b"", b"anything", b"\xff"])
def test_other_bodies_are_nobodys_business(data):
    exchange = exchange_for(data, path=OTHER, whole=False, ask=True)
    assert has_seen_enough(exchange, False)
    assert decode(exchange, LIMIT) is None
    assert (exchange.model, exchange.facts, exchange.strip_usage) == ("", NO_FACTS, False)


# --- zstd -----------------------------------------------------------------------------------------------


def test_zstd_is_read_and_the_original_goes_on():
    plain = json.dumps({"model": "m", "stream": True}).encode()
    packed = zstandard.compress(plain)
    exchange = decoded(packed, coding=b"zstd")
    assert (exchange.model, exchange.stream, exchange.body.whole()) == ("m", True, packed)


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_zstd_that_is_cut_or_no_zstd(cut):
    packed = zstandard.compress(b'{"model": "m"}' * 20)
    assert refused(packed[:-cut], coding=b"zstd")[0] == "bad_body"
    assert refused(b"{}", coding=b"zstd")[0] == "bad_body"


def test_a_zstd_bomb_stops_at_the_bound():
    bomb = zstandard.compress(b" " * (LIMIT * 200))
    assert len(bomb) < LIMIT
    assert refused(bomb, coding=b"zstd") == (
        "body_too_large",
        f"the request's body is larger than {LIMIT} bytes when decoded (max_body)",
    )


def test_zstd_with_a_window_that_nobody_must_support():
    wide = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    code, message = refused(packer.compress(b'{"model": "m"}') + packer.flush(), coding=b"zstd")
    assert code == "bad_body"
    assert "zstd" in message


# --- models that the settings declare ---------------------------------------------------------------------


def worker(name: str) -> Worker:
    return Worker(name, "http://w", Pool(name, b"w", None))


def declared_fleet() -> Fleet:
    one, two = worker("one"), worker("two")
    large = Model("large", [one, two], {"two": "vendor/large-v2"})
    small = Model("small", [two])
    names = {"large": large, "big": large, "small": small}
    return Fleet([one, two], names, [(b"/x/", small)])


def grant_with(**tier) -> Grant:
    """Return what a tenant of such a tier was granted."""
    answer = Limiter({"default": Tier(**tier)}, 0, 0.0, 64).admit("acme", "default", 1, 1.0)
    assert isinstance(answer, Grant)
    return answer


def permitted(fleet: Fleet, said: object, allowed: frozenset[str] | None = None, **options):
    """Return (exchange, code of the fault or None)."""
    exchange = exchange_for(said if isinstance(said, bytes) else json.dumps(said).encode(), **options)
    exchange.allowed = allowed
    fault = decode(exchange, LIMIT) or permit(exchange, fleet)
    return exchange, fault.code if fault else None


def test_an_alias_is_the_model():
    fleet = declared_fleet()
    exchange, code = permitted(fleet, {"model": "big"})
    assert (code, exchange.model, exchange.asked) == (None, "large", "big")
    assert [one.name for one in fleet.serving(exchange.model)] == ["one", "two"]


@pytest.mark.parametrize(
    ("said", "allowed", "code"),
    [
        ({"model": "other"}, None, "model_not_found"),
        ({"model": "x" * 5000}, None, "model_not_found"),
        ({"model": ""}, None, "bad_body"),
        ({}, None, "bad_body"),
        ({"model": "small"}, frozenset({"large"}), "model_forbidden"),
        ({"model": "big"}, frozenset({"small"}), "model_forbidden"),
        ({"model": "big"}, frozenset({"large"}), None),
        ({"model": "big"}, frozenset({"big"}), None),
        ({"model": "large"}, frozenset({"big"}), None),
        ({"model": "small"}, frozenset(), "model_forbidden"),
    ],
)
def test_what_may_be_asked_for(said, allowed, code):
    assert permitted(declared_fleet(), said, allowed)[1] == code


def test_a_wrong_name_gets_a_hint_but_not_at_what_is_not_allowed():
    exchange = decoded({"model": "smal"})
    assert "did you mean 'small'" in permit(exchange, declared_fleet()).message
    exchange.allowed = frozenset({"large"})
    assert "small" not in permit(exchange, declared_fleet()).message


def test_paths_that_are_not_known():
    fleet = declared_fleet()
    exchange, code = permitted(fleet, b"", path=b"/x/y")
    assert (code, exchange.model) == (None, "small")
    assert permitted(fleet, b"", path=OTHER)[1] == "path_not_found"
    exchange = exchange_for(b"", path=CHAT)
    exchange.route = route_for("DELETE", CHAT, False)
    assert permit(exchange, fleet).code == "method_not_allowed"
    assert permitted(fleet, b"", frozenset({"small"}), path=b"/x/y")[1] == "path_forbidden"
    assert permitted(Fleet([worker("w")]), b"", frozenset({"large"}), path=OTHER)[1] == "path_forbidden"
    assert permitted(Fleet([worker("w")]), b"", path=OTHER)[1] is None


def test_a_query_names_the_model():
    exchange, code = permitted(declared_fleet(), b"", path=b"/v1/realtime?a=1&model=big&b=2")
    assert (code, exchange.model) == (None, "large")
    twice = b"/v1/realtime?model=big&model=small"
    assert permitted(declared_fleet(), b"", path=twice)[0].model == "small"
    many = b"/x/?" + b"&".join(b"a=1" for _ in range(5000)) + b"&model=big"
    assert permitted(declared_fleet(), b"", path=many)[0].model == "small", "too many fields: not read"


ODD_MODELS = [
    b'{"model": "small", "model": "large"}',
    b'{"model": "large", "mod\\u0065l": "small"}',
    b'{"mod\\u0065l": "small", "model": "large"}',
    b'{"mod\\u0065l": "large"}',
    b'{"Model": "small", "model": "large"}',
    b'{"MODEL": "large"}',
    b'{"model": "large", "x": {"a": [1, "}"]}, "model" : null}',
]


@pytest.mark.parametrize("body", ODD_MODELS)
@pytest.mark.parametrize("coding", [None, b"zstd"])
def test_who_is_held_to_a_model_says_it_once_and_plainly(body, coding):
    """A worker that takes the first of two, or any case, would serve a model that was not asked about."""
    packed = zstandard.compress(body) if coding else body
    assert permitted(declared_fleet(), packed, frozenset({"large"}), coding=coding)[1] == "bad_body"
    exchange = exchange_for(packed, coding=coding)
    exchange.grant = grant_with(models={"large": Allowance(concurrency=1)})
    assert decode(exchange, LIMIT).code == "bad_body"
    exchange = exchange_for(packed, coding=coding)
    exchange.grant = grant_with()
    assert decode(exchange, LIMIT) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "large", "models": 1, "x": {"model": "small"}, "y": "model"}',
        b'{"y": ["\\u0041", {"mod\\u0065l": 1}], "model":"large"}',
    ],
)
def test_other_keys_and_deeper_ones_are_no_second_model(body):
    assert permitted(declared_fleet(), body, frozenset({"large"}))[1] is None


@pytest.mark.parametrize(("said", "code"), [({"model": None}, "bad_body"), ({}, "bad_body")])
def test_no_model_is_no_odd_model(said, code):
    exchange = exchange_for(json.dumps(said).encode())
    exchange.allowed = frozenset({"large"})
    assert decode(exchange, LIMIT) is None
    assert permit(exchange, declared_fleet()).code == code
    assert permit(exchange, Fleet([worker("w")])).code == "model_forbidden"


def test_who_is_held_to_a_model_names_one_in_a_query():
    twice = b"/v1/files?model=large&model=small"
    exchange = exchange_for(b"", path=twice)
    exchange.grant = grant_with(models={"large": Allowance(concurrency=1)})
    assert decode(exchange, LIMIT).code == "bad_query"


def test_a_body_that_is_not_read_is_not_for_who_is_held_to_a_model():
    for length, code in ((b"0", None), (b"5", "path_forbidden")):
        exchange = exchange_for(b"", path=OTHER, length=length)
        exchange.grant = grant_with(models={"large": Allowance(concurrency=1)})
        fault = decode(exchange, LIMIT)
        assert (fault.code if fault else None) == code


def test_how_much_it_matters_is_known_to_policies():
    for path, body in ((CHAT, b"{}"), (FORM, FILE)):
        exchange = exchange_for(body, path=path)
        exchange.head = RequestHead("POST", path, 1, [(b"Host", b"a"), (b"X-Relayd-Priority", b"batch")])
        assert decode(exchange, LIMIT) is None
        assert exchange.facts.priority == Priority.PRIORITY_BATCH


def test_what_a_tenant_may_know_of():
    fleet, exchange = declared_fleet(), exchange_for(b"{}")
    assert sorted(visible(exchange, fleet)) == ["big", "large", "small"]
    for allowed, names in (("large", ["big", "large"]), ("big", ["big", "large"]), ("other", [])):
        exchange.allowed = frozenset({allowed})
        assert sorted(visible(exchange, fleet)) == names


@pytest.mark.parametrize("coding", [None, b"gzip", b"deflate", b"zstd"])
def test_the_body_asks_for_the_workers_name(coding):
    plain = b'{ "messages": [{"model": "big"}], "model" : "big", "n": 1.50 }'
    packed = {None: plain, b"gzip": gzip.compress(plain), b"deflate": zlib.compress(plain),
              b"zstd": zstandard.compress(plain)}[coding]  # fmt: skip
    fleet = declared_fleet()
    exchange, _ = permitted(fleet, packed, coding=coding)
    for name in ("vendor/large-v2", "large", "large"):
        assert rename_model(exchange, name, LIMIT) is None
        body = exchange.body.whole()
        body = inflated(body, coding, LIMIT) if coding else body
        assert body == plain.replace(b'"model" : "big"', b'"model" : "%b"' % name.encode())
        assert exchange.body.size == len(exchange.body.whole())


def test_a_key_that_is_written_with_escapes_is_not_changed():
    exchange, code = permitted(declared_fleet(), b'{"mo\\u0064el": "big"}'.replace(b"\\\\", b"\\"))
    assert (code, exchange.model) == (None, "large")
    assert rename_model(exchange, "large", LIMIT).code == "bad_body"


def test_a_form_asks_for_the_workers_name():
    form = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nbig\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nbig data\r\n--b--\r\n'
    )
    exchange = exchange_for(form, path=FORM)
    assert has_seen_enough(exchange, True)
    assert not has_seen_enough(exchange_for(form, path=FORM, whole=False), True), "it may have to be changed"
    assert decode(exchange, LIMIT) is None
    assert permit(exchange, declared_fleet()) is None
    assert rename_model(exchange, "large-v2", LIMIT) is None
    assert exchange.body.whole() == form.replace(b"\r\nbig\r\n", b"\r\nlarge-v2\r\n")


@pytest.mark.parametrize(
    "path",
    [b"/v1/ch%61t/completions", b"//v1/chat/completions", b"/v1/chat/completions/", b"/v1/Chat/completions"],
)
def test_an_allow_list_is_not_got_around_by_a_path(path):
    said = {"model": "large"}
    assert (
        permitted(declared_fleet(), said, frozenset({"small"}), path=path + b"?model=small")[1]
        == "path_forbidden"
    )


DECOY = b'Content-Disposition: form-data; name="model"\r\n\r\nsmall\r\n'
REAL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nlarge\r\n'


@pytest.mark.parametrize(
    "form",
    [
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nxx\r\n'
        + DECOY
        + REAL
        + b"--b--\r\n",
        DECOY + REAL + b"--b--\r\n",
        b"--b\r\n" + DECOY + REAL + b"--b--\r\n",
        b"--b\r\n"
        + DECOY
        + REAL.replace(b"Content-Disp", b"Content-Type: text/plain\r\nContent-Disp")
        + b"--b--\r\n",
    ],
)
def test_an_allow_list_is_not_got_around_by_a_form(form):
    code = permitted(declared_fleet(), form, frozenset({"small"}), path=FORM)[1]
    assert code in ("bad_body", "model_forbidden")
    once = b"--b\r\n" + DECOY + b"--b--\r\n"
    assert permitted(declared_fleet(), once, frozenset({"small"}), path=FORM)[1] is None


SMALL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n'


def named(name: bytes, value: bytes = b"large") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; " + name + b"\r\n\r\n" + value + b"\r\n"


ODD_FORMS = [
    # The form, and its Content-Type where it is not the usual one.
    (named(b'name="model" x', b"small") + named(b'name="model"') + b"--b--\r\n", None),
    (b"model=large&x=" + DECOY, b"application/x-www-form-urlencoded"),
    (SMALL + named(b"name*=utf-8''model") + b"--b--\r\n", None),
    (SMALL + named(b'name*0="mo"; name*1="del"') + b"--b--\r\n", None),
    (SMALL + named(b'name="m\\odel"') + b"--b--\r\n", None),
    (SMALL + named(b'name="m%6fdel"') + b"--b--\r\n", None),
    (SMALL + named(b'name="MODEL"') + b"--b--\r\n", None),
    (SMALL + named(b"name=model") + b"--b--\r\n", None),
    (SMALL + named(b'name="x"; name="model"') + b"--b--\r\n", None),
    (SMALL + b'--b\nContent-Disposition: form-data; name="model"\n\nlarge\r\n--b--\r\n', None),
    (b'{"model": "large", "x": "' + DECOY + b'"}', b"application/json"),
    (SMALL + b"--b--\r\n", b""),
    (SMALL + b"--b--\r\n", b"multipart/form-data"),
    (SMALL + b"--b--\r\n", b"multipart/form-data; boundary=b; boundary=c"),
    (SMALL + b"--b--\r\n", b"multipart/mixed; boundary=b"),
    (b"x\r\n" + SMALL + b"--b--\r\n", None),
    (SMALL + b"--b--\r\n" + named(b'name="model"'), None),
    (SMALL, None),
    (b"", None),
    (named(b'name="x"') + b"--b--\r\n", None),
]


@pytest.mark.parametrize(("body", "kind"), ODD_FORMS)
def test_a_form_that_two_readers_may_read_differently_is_not_for_who_is_held_to_a_model(body, kind):
    options = {} if kind is None else {"kind": kind}
    code = permitted(declared_fleet(), body, frozenset({"small"}), path=FORM, **options)[1]
    assert code == "bad_body"


def test_a_compressed_form_is_not_for_who_is_held_to_a_model():
    body = SMALL + b"--b--\r\n"
    assert permitted(declared_fleet(), body, frozenset({"small"}), path=FORM, coding=b"gzip")[1] == "bad_body"


def encoded_by_aiohttp() -> tuple[bytes, bytes]:
    form = aiohttp.FormData({"model": "small", "language": "en"})
    form.add_field("file", b"\x00--b\r\nmodel", filename="a b.wav", content_type="audio/wav")
    writer = form()

    async def write() -> bytes:
        pieces: list[bytes] = []

        class Out:
            async def write(self, data: bytes) -> None:
                pieces.append(bytes(data))

        await writer.write(Out())
        return b"".join(pieces)

    return asyncio.run(write()), writer.headers["Content-Type"].encode()


def encoded_by_requests_of_openai() -> tuple[bytes, bytes]:
    made = openai.OpenAI(api_key="k", base_url="http://h")._client.build_request(
        "POST", "http://h", data={"model": "small", "timestamp_granularities[]": ["word"]},
        files={"file": ("Ünïcode.wav", b"\x00\x01", "audio/wav")},
    )  # fmt: skip
    return made.read(), made.headers["content-type"].encode()


@pytest.mark.parametrize("encode", [encoded_by_aiohttp, encoded_by_requests_of_openai])
def test_forms_of_usual_clients_are_read_by_who_is_held_to_a_model(encode):
    body, kind = encode()
    exchange, code = permitted(declared_fleet(), body, frozenset({"small"}), path=FORM, kind=kind)
    assert (code, exchange.model) == (None, "small")
    assert rename_model(exchange, "other-name", LIMIT) is None
    assert exchange.body.whole() == body.replace(b"\r\nsmall\r\n", b"\r\nother-name\r\n")


def test_a_few_bytes_do_not_become_many():
    for pack in (gzip.compress, zlib.compress, zstandard.compress):
        coding = {gzip.compress: b"gzip", zlib.compress: b"deflate"}.get(pack, b"zstd")
        large = b'{"model": "' + b" " * (2 << 20) + b'"}'
        assert inflated(pack(large), coding, 1 << 30).code == "body_too_large"
        small = b'{"model": "' + b" " * (1 << 19) + b'"}'
        assert inflated(pack(small), coding, 1 << 30) == small


def test_an_unknown_path_may_use_what_its_body_is_long_enough_for():
    exchange = exchange_for(b"", path=OTHER, length=b"4000")
    assert decode(exchange, LIMIT) is None
    assert (exchange.facts.prompt_tokens, exchange.facts.output_tokens) == (1000, OUTPUT_UNKNOWN)
    assert decoded(b"", path=OTHER).facts is NO_FACTS
