"""What `${NAME}`, `${NAME:-default}` and `${file:PATH}` in a value stand for; `$${` is a plain `${`.

What they stand for is never shown: messages name the variable or the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from relayd.readers import SettingError, quoted

MOST_FILE_BYTES = 64 << 10

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# Inside ${file:...} the path may have a ${NAME}: systemd's ${CREDENTIALS_DIRECTORY} is where secrets are.
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(?P<inside>(?:\$\{[^{}]*\}|[^{}])*)\}|\$\{")
_VARIABLE = re.compile(rf"(?P<name>{_NAME})(?::-(?P<default>.*))?", re.DOTALL)


_NAMES_ONLY = re.compile(rf"\$\{{(?:{_NAME}|file:(?:[^{{}}$]|\$\{{{_NAME}\}})*)\}}")


class Filled(msgspec.Struct, frozen=True):
    """A value after its placeholders were replaced."""

    text: str
    by_placeholder: bool  # part of it must not be shown
    files: tuple[str, ...] = ()  # whose content is in it
    has_default: bool = False  # part of it may be a default that stands in the file itself


class Filler:
    """Replaces placeholders; paths are relative to `directory`."""

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._environment = environment

    def fill(self, raw: str, *, is_secret: bool = False) -> Filled:
        """Return `raw` with every placeholder replaced; of a secret no default is suggested.

        Raises:
            SettingError: one of them stands for nothing; the message never has a value in it.
        """
        files: list[str] = []
        seen = {"filled": False, "default": False}

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match["inside"] is None:
                raise SettingError(
                    "${ is not closed: write ${NAME} or ${file:PATH}; a plain ${ is written $${"
                )
            seen["filled"] = True
            if match["inside"].startswith("file:"):
                written = match["inside"].removeprefix("file:")
                files.append(self._path(written))
                return content_of(files[-1], written)
            text, is_default = self._variable(match["inside"], is_secret)
            seen["default"] |= is_default
            return text

        text = _PLACEHOLDER.sub(replace, raw)
        if seen["filled"] and not text:
            raise SettingError(f"{quoted(raw)} stands for an empty text; put something there")
        return Filled(text, seen["filled"], tuple(files), seen["default"])

    def _variable(self, inside: str, is_secret: bool = False) -> tuple[str, bool]:
        match = _VARIABLE.fullmatch(inside)
        if match is None:
            raise SettingError(
                "between ${ and } stands the name of a variable (letters, digits and _), or file: and a path"
            )
        value = self._environment.get(match["name"], "")
        if not value and match["default"] is not None:
            return match["default"], True
        if match["name"] not in self._environment:
            other = "${file:PATH}" if is_secret else f"${{{match['name']}:-DEFAULT}}"
            raise SettingError(f"the variable {match['name']} is not set; set it, or write {other}")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise SettingError(f"the variable {match['name']} is not UTF-8")
        return value, False

    def _path(self, written: str) -> str:
        path = re.sub(r"\$\{([^{}]*)\}", lambda match: self._variable(match[1])[0], written).strip()
        if not path:
            raise SettingError("${file:} names no file: write ${file:PATH}")
        return os.path.join(self.directory, path)


def names_only(raw: str) -> bool:
    """True for a value that is one placeholder and has nothing in it that could be a secret itself."""
    return bool(_NAMES_ONLY.fullmatch(raw))


def content_of(path: str, written: str) -> str:
    """Return what a small text file has in it, without the newline at its end.

    Raises:
        SettingError: it cannot be used; the message has the path as it is written.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "there is no such path"
        raise SettingError(f"the file {quoted(written)} cannot be read: {said}") from None
    if len(data) > MOST_FILE_BYTES:
        raise SettingError(f"the file {quoted(written)} is larger than {MOST_FILE_BYTES >> 10} KiB")
    try:
        return re.sub(r"\r?\n\Z", "", data.decode())
    except UnicodeDecodeError:
        raise SettingError(f"the file {quoted(written)} is not UTF-8 text") from None
