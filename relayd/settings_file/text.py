"""From a file's bytes to YAML nodes, and from what is no YAML to plain words.

Only PyYAML's composer is used: it makes nodes with places and builds no objects.  Its messages speak of
tokens and blocks; the table says in other words what people did.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from relayd.settings_file.problems import Place

MOST_BYTES = 1 << 20
DEEPEST = 16  # the deepest setting has six parts

# What YAML 1.1 has as line breaks: places are counted in them.
LINE_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_NO_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class NotReadable(Exception):
    """The file as a whole cannot be read as YAML."""

    def __init__(self, message: str, hint: str = "", place: Place | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.place = place or Place()


# --- bytes ------------------------------------------------------------------------------------------


def read_text(path: str) -> str:
    """Return the text of a file.

    Raises:
        NotReadable: it cannot be opened, is too large, or is no UTF-8 text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotReadable("there is no such file", "check the path") from None
    except IsADirectoryError:
        raise NotReadable("this is a directory", "name the file in it") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise NotReadable(f"it cannot be read: {said}", "check who may read it") from None
    if len(data) > MOST_BYTES:
        raise NotReadable(f"it is larger than {MOST_BYTES >> 20} MiB", "is this the settings file?")
    return decode(data)


def decode(data: bytes) -> str:
    """Return bytes as text, without a byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotReadable("it is written in UTF-16", "save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = place_of(data[: error.start].decode("utf-8-sig", "replace"))
        raise NotReadable(
            f"the byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8", place
        ) from None
    strange = _NO_TEXT.search(text)
    if strange:
        raise NotReadable(
            f"there is a character here that no text has (U+{ord(strange[0]):04X})",
            "is this the settings file? it is plain text",
            place_of(text[: strange.start()]),
        )
    return text


def place_of(before: str) -> Place:
    """Return the place that follows `before`."""
    lines = LINE_BREAKS.split(before)
    return Place(len(lines), len(lines[-1]) + 1)


# --- nodes ------------------------------------------------------------------------------------------


class _Composer(yaml.SafeLoader):
    """Makes nodes, of a bounded depth and without tags."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise NotReadable(
                "what begins with ! is a tag, and settings have none",
                "take it out, or put the value in quotes",
                place_at(event.start_mark),
            )
        if self.depth >= DEEPEST:
            raise NotReadable(
                "this is nested deeper than any setting is",
                "is a bracket not closed?",
                place_at(event.start_mark),
            )
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def place_at(mark: Any) -> Place:
    """Return where a mark of PyYAML's points to."""
    return Place(mark.line + 1, mark.column + 1) if mark else Place()


def compose(text: str) -> yaml.Node | None:
    """Return the root of the file's one document, or None if there is nothing in it.

    Raises:
        NotReadable: it is no YAML, or more of it than settings need.
    """
    composer = _Composer(text)
    try:
        return composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise in_plain_words(error, LINE_BREAKS.split(text)) from None
    except (yaml.YAMLError, ValueError, OverflowError):  # "\UFFFFFFFF" is no character
        place = place_at(composer.get_mark())
        raise NotReadable("there is no such character or number", "put it in single quotes", place) from None
    finally:
        composer.dispose()


# part of what PyYAML says; whether the place where it began says more; what is said instead; what to do
_PLAIN_WORDS = (
    (
        r"'\t'",  # as PyYAML shows it: a backslash and a t
        False,
        "a tab indents here",
        "YAML indents with spaces: replace the tabs at the beginning of lines",
    ),
    (
        "cannot start any token",
        False,
        "a value cannot begin with this character",
        "put the value in quotes",
    ),
    (
        "could not find expected ':'",
        True,
        "this is not KEY: VALUE",
        "there is a space after the colon; a longer text goes in quotes",
    ),
    (
        "mapping values are not allowed",
        False,
        "a colon is not expected here",
        "is the line indented too far, or the one above not closed? A value with ': ' in it goes in quotes",
    ),
    (
        "sequence entries are not allowed",
        False,
        "a list cannot begin here",
        "write it as [A, B], or each '- ' on a line of its own",
    ),
    (
        "expected ',' or ']'",
        True,
        "the [ that opens here is not closed, or a comma is missing in it",
        "write [A, B]",
    ),
    (
        "expected ',' or '}'",
        True,
        "the { that opens here is not closed, or a comma is missing in it",
        "write {KEY: VALUE, KEY: VALUE}",
    ),
    (
        "unexpected end of stream",
        True,
        "the quote that opens here is not closed",
        "end it with the same quote",
    ),
    (
        "unexpected document separator",
        True,
        "the quote that opens here is not closed",
        "end it with the same quote",
    ),
    (
        "double-quoted scalar",
        False,
        "in double quotes a backslash begins an escape, and this is none",
        "use single quotes: there a backslash is only that",
    ),
    (
        "alias",
        False,
        "what begins with * repeats what & has marked before, and nothing has",
        "put a value that begins with * in quotes",
    ),
    (
        "duplicate anchor",
        False,
        "this name is marked a second time with &",
        "choose another",
    ),
    (
        "anchor",
        False,
        "what begins with & marks a value by a name of its own, and this is none",
        "put a value that begins with & in quotes",
    ),
    (
        "single document",
        False,
        "a second document begins here",
        "settings are one document: take the --- out",
    ),
    (
        "directive",
        False,
        "a line that begins with % is a directive of YAML, and this is none that is known",
        "take it out",
    ),
    ("YAML document", False, "this is a YAML of the future", "take the %YAML line out"),
    (
        "tag",
        False,
        "what begins with ! is a tag, and settings have none",
        "take it out, or put the value in quotes",
    ),
    (
        "block scalar",
        False,
        "after | or > comes the end of the line",
        "put a value that begins with | or > in quotes",
    ),
    (
        "block collection",
        False,
        "this line is not an item of the list above, and not indented as a key above it",
        "items of a list begin with '- ', all in one column",
    ),
    (
        "block mapping",
        False,
        "this line begins in a column in which no key above it does",
        "keys of one section stand in one column, what is below a key further to the right",
    ),
    ("document start", False, "this belongs to nothing above it", "write KEY: VALUE"),
    ("mapping keys", False, "a key cannot begin here", "write KEY: VALUE"),
    (
        "node content",
        False,
        "a value is missing before this",
        "write it, or put a value that begins with one of , : ] } in quotes",
    ),
)


def in_plain_words(error: yaml.MarkedYAMLError, lines: list[str]) -> NotReadable:
    """Return what a person did, for what PyYAML says of it."""
    said = f"{error.context or ''} {error.problem or ''}"
    noticed = place_at(error.problem_mark or error.context_mark)
    more = _seen_in_lines(said, noticed, lines)
    if more is not None:
        return more
    for part, where_it_began, message, hint in _PLAIN_WORDS:
        if part in said:
            begun = place_at(error.context_mark) if where_it_began and error.context_mark else noticed
            return NotReadable(message, hint, begun)
    return NotReadable(
        "this is not YAML", "write KEY: VALUE, with what belongs to it indented below", noticed
    )


def _seen_in_lines(said: str, noticed: Place, lines: list[str]) -> NotReadable | None:
    """Return what the text itself shows better than the place where YAML's rules were broken."""
    above = lines[max(0, noticed.line - 2) : noticed.line - 1]
    line = lines[noticed.line - 1] if noticed.line <= len(lines) else ""
    no_space = re.fullmatch(r"(\s*[A-Za-z_]+:)[^\s/].*", above[-1]) if above else None
    if no_space and "mapping values are not allowed" in said:
        place = Place(noticed.line - 1, len(no_space[1]) + 1)
        return NotReadable("a space is missing after the colon", "write KEY: VALUE", place)
    if "block mapping" in said and line[: noticed.column - 1].strip():
        message = "the value before this has ended, and no key begins here"
        return NotReadable(message, "put the whole value in quotes, or on a line of its own", noticed)
    return None
