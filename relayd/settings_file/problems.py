"""What is wrong with a settings file, where, and what to write instead.

Every part of the loader reports here and goes on, so that all of it is said at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from relayd.readers import LONGEST_QUOTE

MOST_PROBLEMS = 100  # a file with more is another kind of file

Path = tuple[str | int, ...]


class Place(msgspec.Struct, frozen=True):
    """A place in the file, counted from 1; line 0 is no place in particular."""

    line: int = 0
    column: int = 0


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong (an error) or that should not be so (a warning)."""

    severity: Literal["error", "warning"]
    line: int
    column: int
    path: str
    message: str
    hint: str = ""
    excerpt: tuple[str, str] = ("", "")  # the line, values that nobody should see masked, and a caret


class TooManyProblems(Exception):
    """Enough was found."""


class Problems:
    """Collects problems; knows which paths are wrong already, so that nothing is said twice."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.broken: set[Path] = set()
        self._seen: set[tuple[int, int, str]] = set()

    @property
    def has_errors(self) -> bool:
        """True if the file cannot be used."""
        return any(problem.severity == "error" for problem in self.found)

    def error(self, place: Place, path: Path, message: str, hint: str = "") -> None:
        """Note an error.  The same one seen through an alias again is noted once."""
        self.broken.add(path)
        self._note("error", place, path, message, hint)

    def warn(self, place: Place, path: Path, message: str, hint: str = "") -> None:
        """Note a warning."""
        self._note("warning", place, path, message, hint)

    def touches(self, path: Path) -> bool:
        """True if `path`, something above it or something below it is wrong already."""
        return any(is_above(path, other) or is_above(other, path) for other in self.broken)

    def _note(
        self, severity: Literal["error", "warning"], place: Place, path: Path, message: str, hint: str
    ) -> None:
        key = (place.line, place.column, message)
        if place.line and key in self._seen:
            return
        so_far = sum(problem.severity == severity for problem in self.found)
        if so_far >= MOST_PROBLEMS and severity == "warning":
            return
        if so_far >= MOST_PROBLEMS:
            place, path, message, hint = Place(), (), "there are more errors than these", ""
        self._seen.add(key)
        self.found.append(
            Problem(
                severity=severity,
                line=place.line,
                column=place.column,
                path=dotted(path),
                message=message,
                hint=hint,
            )
        )
        if so_far >= MOST_PROBLEMS:
            raise TooManyProblems


def is_above(path: Path, other: Path) -> bool:
    """True if `path` is `other` or a part of it from its beginning."""
    return other[: len(path)] == path


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as people write it, such as models.llama.targets[0].worker, printable and on one line."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def printable(name: str) -> str:
    """Return a key as it may be printed."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= LONGEST_QUOTE else shown[:LONGEST_QUOTE] + "..."
