"""Base64url and JSON have one plain form each, and nothing else is read."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd.auth.strict import StrictError, decode_base64url, decode_object, depth_of, encode_base64url


@given(st.binary(max_size=100))
def test_what_was_encoded_is_decoded(data):
    assert decode_base64url(encode_base64url(data)) == data


@given(st.text(alphabet="AQgw-_+/=\n .", max_size=12).map(str.encode) | st.binary(max_size=12))
def test_there_is_one_text_for_the_same_bytes(text):
    try:
        data = decode_base64url(text)
    except StrictError:
        return
    assert base64.urlsafe_b64encode(data).rstrip(b"=") == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_objects_are_read_as_they_are(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert decode_object(text.encode()) == value


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\0x \n', max_size=40).map(str.encode))
def test_anything_is_an_object_or_refused(data):
    try:
        assert isinstance(decode_object(data), dict)
    except StrictError:
        pass


@pytest.mark.parametrize(
    ("text", "depth"),
    [("{}", 1), ('{"a":[{}]}', 3), ('{"[[[[":"{{\\"[["}', 1), ("[" * 50, 50), ('["\\\\",[]]', 2), ('"[[', 1)],
)
def test_depth_is_counted_outside_of_texts(text, depth):
    assert depth_of(text) == depth


def test_as_deep_as_it_may_be():
    def nested(depth: int) -> bytes:
        return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)

    assert decode_object(nested(32))
    with pytest.raises(StrictError):
        decode_object(nested(33))
