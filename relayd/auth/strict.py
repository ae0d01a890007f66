"""Base64url and JSON, read in the one way that every reader agrees on.

A token is bytes from anybody.  What one reader takes and another does not is where attacks on tokens live:
two spellings of one signature (a deny-list or a cache by the token's text then misses one of them), a member
that is there twice (who takes the first?), a number that is no number.  So only the plain form is read, and
everything else is a StrictError.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any

DEEPEST = 32  # levels of arrays and objects
LONGEST_NUMBER = 32  # characters; a time has 10


class StrictError(ValueError):
    """Bytes that are not the plain form of anything."""


def decode_base64url(text: bytes) -> bytes:
    """Return the bytes that `text` stands for.

    Decoders skip what they do not know, and take any bits after the last byte: so what was decoded must
    encode to `text` again.

    Raises:
        StrictError: padding, another alphabet, other characters, bits that mean nothing.
    """
    try:
        decoded = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        raise StrictError("not base64url") from None
    if encode_base64url(decoded) != text:
        raise StrictError("not the plain form of base64url")
    return decoded


def encode_base64url(data: bytes) -> bytes:
    """Return `data` in base64url, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def decode_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that `data` is.

    Raises:
        StrictError: not UTF-8, not JSON, not an object, a member twice, too deep, a number that is too
            long or none (NaN, Infinity, 1e400).
    """
    try:
        text = data.decode()
        # Most texts have fewer brackets than that, which is seen at a tenth of the price.
        if text.count("{") + text.count("[") > DEEPEST and depth_of(text) > DEEPEST:
            raise StrictError("nested too deeply")
        found = _DECODER.decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise StrictError("not JSON") from None
    if not isinstance(found, dict):
        raise StrictError("not a JSON object")
    return found


def depth_of(text: str) -> int:
    """Return how deeply a JSON text is nested, whatever it is otherwise."""
    deepest = depth = 0
    for mark in re.sub(r'"(?:[^"\\]|\\.)*+"|[^][{}"]+', "", text, flags=re.DOTALL):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise StrictError("a member is there twice")
    return members


def _no_number(text: str) -> Any:
    raise StrictError(f"{text} is no JSON")


def _read_int(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise StrictError("a number is too long")
    return int(text)


def _read_float(text: str) -> float:
    number = float(text) if len(text) <= LONGEST_NUMBER else math.inf
    if not math.isfinite(number):
        raise StrictError("a number is too long or too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_read_int, parse_float=_read_float
)
