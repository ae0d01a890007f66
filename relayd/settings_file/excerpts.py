"""The line that a problem is about, with a caret below it and without anything that is a secret.

Where the file could be walked, only values that were read as a setting that is no secret are shown: what
stands below a misspelt `secret` is none of them.  The value of a misspelt key is shown if the setting that
was meant would take it and nothing about it sounds like a secret.  Where the file could not be walked, lines
that may have to do with a secret are shown up to their first colon.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec
import yaml

from relayd.settings_file.problems import Problem
from relayd.settings_file.text import LINE_BREAKS
from relayd.settings_file.walk import SUSPICIOUS, every_name

WIDTH = 100
MASK = "***"

# Words of settings that sound like a secret and have none.  Not so `keys` and `public_key`, which are paths:
# somebody may have written the key itself.
PLAIN = {"auth", "tokens", "first_token", "least_tokens", "secret_kid"}
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"([A-Za-z0-9_-]+)\s*:(?:\s|$)")
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_QUERY = re.compile(r"://[^\s?\"']*\?([^\s\"']+)")

Span = tuple[int, int]


def with_excerpts(
    problems: list[Problem], text: str, root: yaml.Node | None, harmless: Collection[int]
) -> list[Problem]:
    """Return the problems, each with its line of `text`."""
    lines = LINE_BREAKS.split(text)
    spans = hidden_spans(root, harmless, lines) if root else None
    return [
        msgspec.structs.replace(problem, excerpt=excerpt(lines, problem.line, problem.column, spans))
        if 0 < problem.line <= len(lines)
        else problem
        for problem in problems
    ]


def hidden_spans(root: yaml.Node, harmless: Collection[int], lines: list[str]) -> dict[int, list[Span]]:
    """Return by line (from 1) what of it is hidden: values that were not read, or are secret."""
    spans: dict[int, list[Span]] = defaultdict(list)
    for node in values_of(root):
        if id(node) in harmless:
            continue
        first, last = node.start_mark, node.end_mark
        for line in range(first.line, min(last.line, len(lines) - 1) + 1):
            begin = first.column if line == first.line else 0
            end = last.column if line == last.line else len(lines[line])
            if end > begin:
                spans[line + 1].append((begin, end))
    return spans


def values_of(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Yield every scalar that is not a key, once."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif isinstance(node, yaml.MappingNode):
            waiting.extend(value for _, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)


def excerpt(lines: list[str], line: int, column: int, spans: dict[int, list[Span]] | None) -> tuple[str, str]:
    """Return a line as it may be shown, and a line with a caret below `column` of it."""
    text = lines[line - 1]
    hidden = guessed_spans(lines, line) if spans is None else sorted(spans.get(line, []))
    hidden += [match.span() for match in _IN_URL.finditer(text)]
    hidden += [match.span(1) for match in _QUERY.finditer(text)]
    shown, caret = masked(text, column - 1, sorted(hidden))
    begin = max(0, caret - WIDTH // 2) if len(shown) > WIDTH else 0
    cut = "".join(letter if letter.isprintable() else " " for letter in shown[begin : begin + WIDTH])
    return cut.rstrip(), " " * (caret - begin) + "^"


def masked(text: str, caret: int, hidden: list[Span]) -> tuple[str, int]:
    """Return `text` with the hidden parts masked, and where the caret is then."""
    shown, at, moved = "", 0, caret
    for begin, end in hidden:
        if begin < at:
            continue
        shown += text[at:begin] + MASK
        if caret >= end:
            moved += len(MASK) - (end - begin)
        elif caret > begin:
            moved = len(shown) - len(MASK)
        at = end
    return shown + without_comment(text[at:], caret - at), moved


def without_comment(text: str, caret: int) -> str:
    """Return the rest of a line without a comment after the caret: it may be the secret from before."""
    comment = re.compile(r"\s+#").search(text, max(0, caret))
    return text[: comment.start()] if comment else text


def guessed_spans(lines: list[str], line: int) -> list[Span]:
    """Return what to hide of a line of a file that is no YAML."""
    text = lines[line - 1]
    if not may_have_secret(text, list(above(lines, line))):
        return []
    colon = text.find(":")
    begin = colon + 1 if colon >= 0 else indent_of(text)
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    return [(begin, len(text.rstrip()))] if begin < len(text.rstrip()) else []


def may_have_secret(text: str, sections: list[str]) -> bool:
    """True if a line, or one of those that it is below, speaks of secrets.

    In `auth` a misspelt key may have one, so there all keys of a line must be known.
    """
    if any(sounds_secret(word) for part in (text, *sections) for word in _WORD.findall(part)):
        return True
    if not any("auth" in _WORD.findall(part) for part in (text, *sections)):
        return False
    keys = _KEY.findall(text)
    return not keys or any(key not in every_name() for key in keys)


def sounds_secret(word: str) -> bool:
    """True for a word that may be, or be beside, the name of a secret."""
    return bool(SUSPICIOUS.search(word)) and word not in PLAIN


def above(lines: list[str], line: int) -> Iterator[str]:
    """Yield the lines that `line` is below of, by their indentation, the nearest first."""
    indent = indent_of(lines[line - 1])
    for text in reversed(lines[max(0, line - 200) : line - 1]):
        if indent == 0:
            return
        if text.strip() and indent_of(text) < indent:
            indent = indent_of(text)
            yield text


def indent_of(text: str) -> int:
    """Return how many blanks a line begins with."""
    return len(text) - len(text.lstrip())
