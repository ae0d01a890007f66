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


def said(
    given: int | None = None,
    written: int | None = None,
    cached: int | None = None,
    cache_write: int | None = None,
    reasoning: int | None = None,
) -> tuple[int | None, ...]:
    """Return a usage as a scanner tells it."""
    return given, written, cached, cache_write, reasoning


NOTHING = said()

SHAPES = [
    # what, JSON, what is read
    ("OpenAI", '{"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}', said(10, 2)),
    (
        "OpenAI's details",
        '{"usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": '
        '{"cached_tokens": 8, "audio_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 1}}}',
        said(10, 2, 8, reasoning=1),
    ),
    ("details null", '{"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}', said(3)),
    (
        "Anthropic",
        '{"usage":{"input_tokens":5,"cache_creation_input_tokens":6,"cache_read_input_tokens":7,"output_tokens":8}}',
        said(5, 8, 7, 6),
    ),
    (
        "responses",
        '{"response":{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},"output_tokens":9}}}',
        said(7, 9, 2),
    ),
    (
        "responses that reasoned",
        '{"usage":{"input_tokens":7,"output_tokens":9,"output_tokens_details":{"reasoning_tokens":6}}}',
        said(7, 9, reasoning=6),
    ),
    (
        "Gemini",
        '{"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":4,"totalTokenCount":14}}',
        said(10, 4),
    ),
    (
        "Gemini's thoughts are written too",
        '{"usageMetadata": {"promptTokenCount": 10, "cachedContentTokenCount": 8, "candidatesTokenCount": 4, '
        '"thoughtsTokenCount": 5, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}]}}',
        said(10, 9, 8, reasoning=5),
    ),
    (
        "Gemini has only thought so far",
        '{"usageMetadata":{"promptTokenCount":10,"thoughtsTokenCount":5}}',
        said(10, 5, reasoning=5),
    ),
    (
        "Gemini's stream counts on",
        '{"usageMetadata":{"promptTokenCount":10,"thoughtsTokenCount":5}}'
        '{"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":3,"thoughtsTokenCount":6}}',
        said(10, 9, reasoning=6),
    ),
    (
        "no thoughts and no candidates",
        '{"usageMetadata":{"candidatesTokenCount":0,"thoughtsTokenCount":0}}',
        said(None, 0, reasoning=0),
    ),
    (
        "Anthropic's stream",
        '{"message":{"usage":{"input_tokens":9,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,'
        '"cache_creation":{"ephemeral_5m_input_tokens":0},"output_tokens":1}}}{"usage":{"output_tokens":33}}',
        said(9, 33, 4, 0),
    ),
    (
        "parts in a list",
        '{"usage":{"input_tokens":9,"output_tokens":3,"iterations":[{"input_tokens":5,"output_tokens":2},'
        '{"input_tokens":4,"output_tokens":-1}]}}',
        said(9, 3),
    ),
    ("a name that goes on", '{"usageMeta":{"prompt_tokens":3}}', NOTHING),
    ("one that goes on further", '{"usageMetadata2":{"prompt_tokens":3}}', NOTHING),
    ("one that begins twice", '{"usageM"usageMetadata":{"promptTokenCount":3}}', said(3)),
    ("the keys one after the other", '{"usage":null,"usageMetadata":{"promptTokenCount":3}}', said(3)),
    ("embeddings", '{"usage":{"prompt_tokens":4,"total_tokens":4}}', said(4)),
    ("zero is an answer", '{"usage":{"prompt_tokens":0,"completion_tokens":0}}', said(0, 0)),
    (
        "spaces and lines",
        '{"usage"\t:\r\n {\n"prompt_tokens" :\t12\n,"completion_tokens":\n3 } }',
        said(12, 3),
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
    ("null counts", '{"usage":{"prompt_tokens":null,"completion_tokens":4}}', said(None, 4)),
    ("counts in strings", '{"usage":{"prompt_tokens":"3","completion_tokens":4}}', said(None, 4)),
    ("switches", '{"usage":{"prompt_tokens":true,"completion_tokens":false}}', NOTHING),
    (
        "the last one counts",
        '{"usage":{"prompt_tokens":1}}{"usage":{"prompt_tokens":2}}',
        said(2),
    ),
    ("each for its own", '{"usage":{"input_tokens":1}}{"usage":{"output_tokens":2}}', said(1, 2)),
    ("null behind it", '{"usage":{"prompt_tokens":1}}{"usage":null}', said(1)),
    ("a brace in a string", '{"usage":{"note":"}{","prompt_tokens":3}}', said(3)),
    ("a quote in a string", '{"usage":{"note":"\\"}","prompt_tokens":3}}', said(3)),
    ("a backslash at a string's end", '{"usage":{"note":"\\\\","prompt_tokens":3}}', said(3)),
    (
        "a key as a value",
        '{"usage":{"note":"prompt_tokens","x":9,"completion_tokens":3}}',
        said(None, 3),
    ),
    ("the key as a value", '{"a":"usage","b":{"prompt_tokens":9}}', NOTHING),
    ("the key in a list", '{"a":["usage",{"prompt_tokens":9}]}', NOTHING),
    (
        "lists inside",
        '{"usage":{"x":[1,{"y":[2]},"prompt_tokens"],"prompt_tokens":3}}',
        said(3),
    ),
    (
        "a name with an escape",
        '{"usage":{"\\"prompt_tokens":9,"completion_tokens":3}}',
        said(None, 3),
    ),
    ("twice the key", '{"usage":{"usage":{"prompt_tokens":3}}}', said(3)),
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
    '"usageMetadata":{"promptTokenCount":9}',
    'x","usageMetadata":{"promptTokenCount":9},"y":"',
    '\n\ndata: {"usage":{"prompt_tokens":9}}\n\n',
]


@pytest.mark.parametrize("text", FORGED)
def test_what_a_model_writes_is_not_usage(text):
    body = json.dumps({"choices": [{"delta": {"content": text}}], text: text, "list": [text]}).encode()
    for chunks in every_way(body):
        assert scan(*chunks).usage == NOTHING, chunks
        assert scan(*chunks).objects == 0


@pytest.mark.parametrize(
    "key",
    ['"usage', 'x"usage', 'x\\"usage', "xusage", "usage x", 'usage"Metadata', '"usageMetadata', "usageM"],
)
def test_a_key_that_only_ends_in_it_is_another_key(key):
    body = json.dumps({key: {"prompt_tokens": 9}, "a": 1}).encode()
    for chunks in every_way(body):
        assert scan(*chunks).usage == NOTHING, chunks


@pytest.mark.parametrize("text", FORGED)
def test_real_usage_behind_a_forged_one_is_read(text):
    body = json.dumps({"choices": [{"delta": {"content": text}}], "usage": {"prompt_tokens": 4}}).encode()
    for chunks in every_way(body):
        assert scan(*chunks).usage == said(4), chunks


@pytest.mark.parametrize("text", FORGED)
def test_text_inside_the_object_is_not_a_count(text):
    usage = {"note": text, "prompt_tokens": 4, "more": {"note": text + '"prompt_tokens": 7'}}
    for chunks in every_way(json.dumps({"usage": usage}).encode()):
        assert scan(*chunks).usage == said(4), chunks


REFUSED = ["-1", "-0", "1.5", "1e3", "1E3", "0.0", "1234567890123", "9" * 40]


@pytest.mark.parametrize("count", REFUSED)
def test_a_count_that_is_none_is_not_believed(count):
    body = b'{"usage":{"prompt_tokens":%b,"completion_tokens":7}}' % count.encode()
    for chunks in every_way(body):
        scanner = scan(*chunks)
        assert scanner.usage == said(None, 7), chunks
        assert scanner.refused, chunks


@pytest.mark.parametrize("count", REFUSED)
def test_a_strange_number_under_another_name_is_nobodys_business(count):
    scanner = scan(b'{"usage":{"cost":%b,"prompt_tokens":7}}' % count.encode())
    assert scanner.usage == said(7)
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
    expected = [(chat, said(11, 4, 3)), (messages, said(10, 2)), (responses, said(7, 9, 0, reasoning=0))]
    for text, usage in expected:
        for chunks in every_way(text.encode()):
            assert scan(*chunks).usage == usage


def test_counts_the_objects():
    assert scan(b'{"usage":{}}{"usage":null}{"usage":{"prompt_tokens":1}}').objects == 2


# --- against json.loads -------------------------------------------------------------------------------

THOUGHTS = 5  # reasoning that the output leaves out
NAMES = {
    "prompt_tokens": 0, "input_tokens": 0, "promptTokenCount": 0,
    "completion_tokens": 1, "output_tokens": 1, "candidatesTokenCount": 1,
    "cached_tokens": 2, "cache_read_input_tokens": 2, "cachedContentTokenCount": 2,
    "cache_creation_input_tokens": 3, "reasoning_tokens": 4, "thoughtsTokenCount": THOUGHTS,
}  # fmt: skip
KEYS_OF_USAGE = ("usage", "usageMetadata")


class Pairs(list):
    """A JSON object as its pairs, in order."""


def slow_usage(text: str) -> tuple[int | None, ...]:
    """Return what a reader of the decoded document finds."""
    found: list[int | None] = [None] * 6

    def walk(value: Any, inside: bool, in_list: bool) -> None:
        if isinstance(value, Pairs):
            for key, item in value:
                counts = inside and not in_list and key in NAMES
                if counts and isinstance(item, int) and not isinstance(item, bool):
                    found[NAMES[key]] = item
                begins = not inside and key in KEYS_OF_USAGE and isinstance(item, Pairs)
                walk(item, inside or begins, in_list)
        elif isinstance(value, list):
            for item in value:
                walk(item, inside, inside)

    walk(json.loads(text, object_pairs_hook=Pairs), False, False)
    *plain, thoughts = found
    if thoughts is not None:
        plain[1], plain[4] = (plain[1] or 0) + thoughts, thoughts
    return tuple(plain)


TEXTS = st.sampled_from(
    [
        "usage",
        "usageMetadata",
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
KEYS = st.sampled_from([*NAMES, *KEYS_OF_USAGE * 3, "total", "x"]) | TEXTS
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
                b"Metadata",
                b"Meta",
                b"[",
                b"]",
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
