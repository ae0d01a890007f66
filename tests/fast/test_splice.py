"""A value is found where it stands, so that it can be replaced and nothing else changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.splice import count_names, find_value

FOUND = [
    # document, the value of "k" as it is written
    (b'{"k":1}', b"1"),
    (b' {\n"k" : 1 , "b":2}', b"1"),
    (b'{"a":2,"k":-1.50e+3}', b"-1.50e+3"),
    (b'{"k":null}', b"null"),
    (b'{"k":true,"a":1}', b"true"),
    (b'{"k":"v"}', b'"v"'),
    (b'{"k":"a\\"b,}"}', b'"a\\"b,}"'),
    (b'{"k":"\\\\","b":1}', b'"\\\\"'),
    (b'{"k":{}}', b"{}"),
    (b'{"k":[ 1, {"k":2}, "]" ],"z":0}', b'[ 1, {"k":2}, "]" ]'),
    (b'{"k":{"a":"}","b":{"c":[]}} }', b'{"a":"}","b":{"c":[]}}'),
    (b'{"a":{"k":1},"k":2}', b"2"),
    (b'{"a":[{"k":1}],"b":"\\"k\\":3","k":2}', b"2"),
    (b'{"k":1,"k":2}', b"2"),
    (b'{"k":1,"a":3,"k":{"x":2},"b":4}', b'{"x":2}'),
    (b'{"a":"k","k":5}', b"5"),
    (b'{"":1,"k":5}', b"5"),
    (b'{"k":1\n}', b"1"),
]
NOT_FOUND = [
    b"{}",
    b'{"a":1}',
    b'{"a":{"k":1}}',
    b'{"a":"k"}',
    b'{"kk":1}',
    b'{"K":1}',
    b'{"\\u006b":1}',
    b"[]",
    b"1",
    b"",
    b'"k"',
    b'{"a":["k",1]}',
    b'{"a":"\\"k\\":1"}',
]


@pytest.mark.parametrize(("document", "value"), FOUND)
def test_finds_the_value_at_the_top(document, value):
    start, end = find_value(document, b"k")
    assert document[start:end] == value


@pytest.mark.parametrize("document", NOT_FOUND)
def test_finds_nothing_else(document):
    assert find_value(document, b"k") is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text('k":{}[],\\ é', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["k", "a", '"k":', ""]), inner, max_size=3)
    ),
    max_leaves=8,
)
SPACES = st.sampled_from(["", " ", "\n\t "])


@given(
    st.lists(st.tuples(st.sampled_from(["k", "a", "kk", '"k', ""]), VALUES), max_size=5),
    SPACES,
    st.booleans(),
)
def test_agrees_with_a_decoder(pairs, space, ascii_only):
    items = [
        f"{space}{json.dumps(key)}{space}:{space}{json.dumps(value, ensure_ascii=ascii_only)}{space}"
        for key, value in pairs
    ]
    document = (space + "{" + ",".join(items) + space + "}" + space).encode()
    said = json.loads(document)
    assert count_names(document, b"k") == sum(key == "k" or "\\" in json.dumps(key) for key, _ in pairs)
    place = find_value(document, b"k")
    if "k" not in said:
        assert place is None
        return
    start, end = place
    assert json.loads(document[start:end]) == said["k"]
    changed = json.loads(document[:start] + b'"new"' + document[end:])
    assert changed == {**said, "k": "new"}


@given(
    st.lists(
        st.sampled_from([b"{", b"}", b"[", b"]", b'"k"', b'"', b":", b",", b"\\", b"1", b" ", b"\x00"]),
        max_size=20,
    )
)
def test_any_bytes_are_survived(pieces):
    document = b"".join(pieces)
    place = find_value(document, b"k")
    assert place is None or 0 <= place[0] <= place[1] <= len(document)
    assert (place is not None) <= count_names(document, b"k") <= len(pieces)


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (b'{"k":1}', 1),
        (b'{"K":1}', 1),
        (b'{"k":1,"k":2, "K" :3}', 3),
        (b'{"\\u006b":1}', 1),
        (b'{"a\\"":1,"k":{"k":[{"k":1}]}}', 2),
        (b'{"ka":"k","a":"\\u006b"}', 0),
        (b"{}", 0),
        (b"[]", 0),
        (b"", 0),
    ],
)
def test_names_that_somebody_may_take_for_it(document, count):
    assert count_names(document, b"k") == count
