"""What an answer says it cost is read without decoding it, and nothing that a model writes can forge it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.sse import UsageScanner
from tests.fast.test_sse_events import cut
from tests.support.dialects import ANTHROPIC, OPENAI, RESPONSES, chat_usage
from tests.support.wire import every_way

NOTHING = (None, None, None, None)

SHAPES = [
    # what, JSON, (input, output, cached input, cache write)
    ("OpenAI", '{"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}', (10, 2, None, None)),
    (
        "OpenAI's details",
        '{"usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": '
        '{"cached_tokens": 8, "audio_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 1}}}',
        (10, 2, 8, None),
    ),
    ("details null", '{"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}', (3, None, None, None)),
    (
        "Anthropic",
        '{"usage":{"input_tokens":5,"cache_creation_input_tokens":6,"cache_read_input_tokens":7,"output_tokens":8}}',
        (5, 8, 7, 6),
    ),
    (
        "responses",
        '{"response":{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},"output_tokens":9}}}',
        (7, 9, 2, None),
    ),
    ("embeddings", '{"usage":{"prompt_tokens":4,"total_tokens":4}}', (4, None, None, None)),
    ("zero is an answer", '{"usage":{"prompt_tokens":0,"completion_tokens":0}}', (0, 0, None, None)),
    (
        "spaces and lines",
        '{"usage"\t:\r\n {\n"prompt_tokens" :\t12\n,"completion_tokens":\n3 } }',
        (12, 3, None, None),
    ),
    ("null", '{"usage":null}', NOTHING),
    ("a string", '{"usage":"prompt_tokens"}', NOTHING),
    ("a list", '{"usage":[{"prompt_tokens":3}]}', NOTHING),
    ("a number", '{"usage":3,"prompt_tokens":3}', NOTHING),
    ("empty", '{"usage":{}}', NOTHING),
    ("none at all", '{"choices":[]}', NOTHING),
    ("counts outside of it", '{"prompt_tokens":3,"usage":{},"completion_tokens":4}', NOTHING),
    (
        "another key",
        '{"usages":{"prompt_tokens":3},"my_usage":{"prompt_tokens":4},"Usage":{"prompt_tokens":4}}',
        NOTHING,
    ),
    ("null counts", '{"usage":{"prompt_tokens":null,"completion_tokens":4}}', (None, 4, None, None)),
    ("counts in strings", '{"usage":{"prompt_tokens":"3","completion_tokens":4}}', (None, 4, None, None)),
    ("switches", '{"usage":{"prompt_tokens":true,"completion_tokens":false}}', NOTHING),
    (
        "the last one counts",
        '{"usage":{"prompt_tokens":1}}{"usage":{"prompt_tokens":2}}',
        (2, None, None, None),
    ),
    ("each for its own", '{"usage":{"input_tokens":1}}{"usage":{"output_tokens":2}}', (1, 2, None, None)),
    ("null behind it", '{"usage":{"prompt_tokens":1}}{"usage":null}', (1, None, None, None)),
    ("a brace in a string", '{"usage":{"note":"}{","prompt_tokens":3}}', (3, None, None, None)),
    ("a quote in a string", '{"usage":{"note":"\\"}","prompt_tokens":3}}', (3, None, None, None)),
    ("a backslash at a string's end", '{"usage":{"note":"\\\\","prompt_tokens":3}}', (3, None, None, None)),
    (
        "a key as a value",
        '{"usage":{"note":"prompt_tokens","x":9,"completion_tokens":3}}',
        (None, 3, None, None),
    ),
    ("the key as a value", '{"a":"usage","b":{"prompt_tokens":9}}', NOTHING),
    ("the key in a list", '{"a":["usage",{"prompt_tokens":9}]}', NOTHING),
    (
        "lists inside",
        '{"usage":{"x":[1,{"y":[2]},"prompt_tokens"],"prompt_tokens":3}}',
        (3, None, None, None),
    ),
    (
        "a name with an escape",
        '{"usage":{"\\"prompt_tokens":9,"completion_tokens":3}}',
        (None, 3, None, None),
    ),
    ("twice the key", '{"usage":{"usage":{"prompt_tokens":3}}}', (3, None, None, None)),
    ("a longer name", '{"usage":{"prompt_tokens_total":3,"x_prompt_tokens":4}}', NOTHING),
]


def scan(*pieces: bytes) -> UsageScanner:
    """Return a scanner that was fed with `pieces`."""
    scanner = UsageScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner


@pytest.mark.parametrize(("what", "text", "usage"), SHAPES)
def test_reads_every_shape_however_it_is_cut(what, text, usage):
    for chunks in every_way(text.encode()):
        scanner = scan(*chunks)
        assert scanner.usage == usage, (what, chunks)
        assert not scanner.refused, (what, chunks)


FORGED = [
    '{"usage":{"prompt_tokens":9}}',
    '"usage":{"prompt_tokens":9}',
    '\\"usage":{"prompt_tokens":9}',
    '\\\\"usage":{"prompt_tokens":9}',
    'x","usage":{"prompt_tokens":9},"y":"',
    '\n\ndata: {"usage":{"prompt_tokens":9}}\n\n',
]


@pytest.mark.parametrize("text", FORGED)
def test_what_a_model_writes_is_not_usage(text):
    body = json.dumps({"choices": [{"delta": {"content": text}}], text: text, "list": [text]}).encode()
    for chunks in every_way(body):
        assert scan(*chunks).usage == NOTHING, chunks
        assert scan(*chunks).objects == 0


@pytest.mark.parametrize("key", ['"usage', 'x"usage', 'x\\"usage', "xusage", "usage x"])
def test_a_key_that_only_ends_in_it_is_another_key(key):
    body = json.dumps({key: {"prompt_tokens": 9}, "a": 1}).encode()
    for chunks in every_way(body):
        assert scan(*chunks).usage == NOTHING, chunks


@pytest.mark.parametrize("text", FORGED)
def test_real_usage_behind_a_forged_one_is_read(text):
    body = json.dumps({"choices": [{"delta": {"content": text}}], "usage": {"prompt_tokens": 4}}).encode()
    for chunks in every_way(body):
        assert scan(*chunks).usage == (4, None, None, None), chunks


@pytest.mark.parametrize("text", FORGED)
def test_text_inside_the_object_is_not_a_count(text):
    usage = {"note": text, "prompt_tokens": 4, "more": {"note": text + '"prompt_tokens": 7'}}
    for chunks in every_way(json.dumps({"usage": usage}).encode()):
        assert scan(*chunks).usage == (4, None, None, None), chunks


REFUSED = ["-1", "-0", "1.5", "1e3", "1E3", "0.0", "1234567890123", "9" * 40]


@pytest.mark.parametrize("count", REFUSED)
def test_a_count_that_is_none_is_not_believed(count):
    body = b'{"usage":{"prompt_tokens":%b,"completion_tokens":7}}' % count.encode()
    for chunks in every_way(body):
        scanner = scan(*chunks)
        assert scanner.usage == (None, 7, None, None), chunks
        assert scanner.refused, chunks


@pytest.mark.parametrize("count", REFUSED)
def test_a_strange_number_under_another_name_is_nobodys_business(count):
    scanner = scan(b'{"usage":{"cost":%b,"prompt_tokens":7}}' % count.encode())
    assert scanner.usage == (7, None, None, None)
    assert not scanner.refused


def test_the_largest_count_that_is_believed():
    assert scan(b'{"usage":{"prompt_tokens":999999999999}}').usage[0] == 999_999_999_999


def test_an_object_of_any_size_does_no_harm():
    """It is read, or it is not believed; what comes behind it is read."""
    filling = json.dumps({str(n): "x" * 50 for n in range(2000)})
    body = (
        b'{"usage":{"prompt_tokens":1,"x":%b,"completion_tokens":2}}{"usage":{"prompt_tokens":3}}'
        % filling.encode()
    )
    for size in (1, 7, 2047, 2048, 2049, 65536, len(body)):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        given, written, *_ = scan(*pieces).usage
        assert given == 3, size
        assert written in (None, 2), size


def test_deep_nesting_does_no_harm():
    body = (
        b'{"usage":{"x":'
        + b'{"y":[' * 5000
        + b"1"
        + b"]}" * 5000
        + b',"prompt_tokens":5}}{"usage":{"output_tokens":6}}'
    )
    for size in (1, 1000, len(body)):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        assert scan(*pieces).usage[1] == 6, size


def test_a_whole_stream_of_each_dialect():
    chat = "".join(OPENAI.events("a", "b")) + chat_usage(11, 4, 3)
    messages = "".join(ANTHROPIC.events("a", "b"))
    responses = "".join(RESPONSES.events("a", "b"))
    expected = [(chat, (11, 4, 3, None)), (messages, (10, 2, None, None)), (responses, (7, 9, 0, None))]
    for text, usage in expected:
        for chunks in every_way(text.encode()):
            assert scan(*chunks).usage == usage


def test_counts_the_objects():
    assert scan(b'{"usage":{}}{"usage":null}{"usage":{"prompt_tokens":1}}').objects == 2


# --- against json.loads -------------------------------------------------------------------------------

NAMES = {
    "prompt_tokens": 0, "input_tokens": 0, "completion_tokens": 1, "output_tokens": 1,
    "cached_tokens": 2, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 3,
}  # fmt: skip


class Pairs(list):
    """A JSON object as its pairs, in order."""


def slow_usage(text: str) -> tuple[int | None, ...]:
    """Return what a reader of the decoded document finds."""
    found: list[int | None] = [None] * 4

    def walk(value: Any, inside: bool) -> None:
        if isinstance(value, Pairs):
            for key, item in value:
                if inside and key in NAMES and isinstance(item, int) and not isinstance(item, bool):
                    found[NAMES[key]] = item
                walk(item, inside or (key == "usage" and isinstance(item, Pairs)))
        elif isinstance(value, list):
            for item in value:
                walk(item, inside)

    walk(json.loads(text, object_pairs_hook=Pairs), False)
    return tuple(found)


TEXTS = st.sampled_from(
    [
        "usage",
        '"usage',
        '"usage":{',
        "prompt_tokens",
        '"',
        "\\",
        "}",
        "{",
        "]",
        "é",
        "\x00",
        "\ud83d\ude00",
        "",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(0, 999_999_999_999) | TEXTS | st.text(max_size=8)
KEYS = st.sampled_from([*NAMES, "usage", "usage", "total", "x"]) | TEXTS
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@given(DOCUMENTS, st.booleans(), st.data())
def test_agrees_with_a_decoder(document, ascii_only, draw):
    separators = draw.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    text = json.dumps(document, ensure_ascii=ascii_only, separators=separators)
    data = text.encode("utf-8", "surrogatepass")
    scanner = scan(*cut(draw, data))
    assert scanner.usage == slow_usage(text)
    assert not scanner.refused


@given(
    st.lists(
        st.sampled_from(
            [
                b'"usage"',
                b'"usag',
                b"e",
                b":",
                b"{",
                b"}",
                b'"',
                b"\\",
                b"1",
                b'"prompt_tokens"',
                b"-",
                b" ",
                b"x",
            ]
        ),
        max_size=60,
    ).map(b"".join),
    st.data(),
)
def test_any_bytes_give_the_same_however_they_are_cut(data, draw):
    whole, pieces = scan(data), scan(*cut(draw, data))
    assert (pieces.usage, pieces.refused, pieces.objects) == (whole.usage, whole.refused, whole.objects)
