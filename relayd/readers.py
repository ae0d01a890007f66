"""How the value of a setting is written: durations, sizes, rates, addresses.

Each reader takes the text and returns the value, or raises a SettingError that says what to write instead.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable
from typing import NamedTuple

from relayd.registry import did_you_mean


class SettingError(ValueError):
    """A setting that cannot be used; the message says what to write instead."""


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9,
}  # fmt: skip


def read_duration(text: str) -> float:
    """Return seconds from `20s`, `1.5m`, `250ms` or `off` (0)."""
    if text in ("off", "0"):
        return 0.0
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
    if match is None:
        raise SettingError(f"{text!r} is not a duration: write a number with ms, s, m, h or d, such as 20s")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def read_size(text: str) -> int:
    """Return bytes from `32MiB`, `64KiB` or a plain number."""
    match = re.fullmatch(r"([0-9]+)\s*(B|KiB|MiB|GiB|kB|MB|GB|)", text)
    if match is None:
        raise SettingError(f"{text!r} is not a size: write a number with KiB, MiB or GiB, such as 32MiB")
    if not int(match[1]):
        raise SettingError(f"{text!r} would let nothing through: write a size, such as 32MiB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def read_share(text: str) -> float:
    """Return a fraction from `20%`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", text)
    if match is None or float(match[1]) > 100:
        raise SettingError(f"{text!r} is not a share: write a percentage, such as 20%")
    return float(match[1]) / 100


class RateOf(NamedTuple):
    """So many in so much time."""

    units: int
    period_s: float


_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0}


def read_rate(text: str) -> RateOf | None:
    """Return a rate from `100/s`, `600/min`, `10M/day`, or None from `off`."""
    if text == "off":
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,8})([kM]?)/(s|min|h|hour|d|day)", text)
    if match is None:
        raise SettingError(
            f"{text!r} is not a rate: write a number a time, such as 100/s, 600/min or 10M/day, or off"
        )
    return RateOf(int(match[1]) * {"": 1, "k": 1000, "M": 1_000_000}[match[2]], _PERIODS[match[3]])


def read_count(text: str) -> int:
    """Return a whole number."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise SettingError(f"{text!r} is not a whole number")
    return int(text)


def read_positive(text: str) -> int:
    """Return a whole number that is not 0."""
    if not read_count(text):
        raise SettingError(f"{text!r} would let nothing through: write 1 or more")
    return int(text)


def read_switch(text: str) -> bool:
    """Return True for `on`, False for `off`."""
    words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
    if text.lower() not in words:
        raise SettingError(f"{text!r} is neither on nor off")
    return words[text.lower()]


def read_address(text: str) -> str:
    """Return `HOST:PORT` or `unix:/PATH` as it is, after checking it; `off` stays."""
    if text == "off" or re.fullmatch(r"unix:/.+", text):
        return text
    split_address(text)
    return text


def split_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`, `[IPv6]:PORT` or `:PORT`."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/]*)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise SettingError(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:8080")
    return match[1] or match[2] or "0.0.0.0", int(match[3])


def read_network(text: str) -> str:
    """Return an address range as it is."""
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise SettingError(f"{text!r} is not an address range such as 10.0.0.0/8: {error}") from None
    return text


def read_sink(text: str) -> str:
    """Return where log lines go: stdout, or file:PATH."""
    if text != "stdout" and not re.fullmatch(r"file:.+", text):
        raise SettingError(f"{text!r} is not a sink: write stdout or file:PATH")
    return text


def read_prefix(text: str) -> str:
    """Return the beginning of a path."""
    if not text.startswith("/"):
        raise SettingError(f"{text!r} is not the beginning of a path: it begins with /")
    return text


def read_text(text: str) -> str:
    """Return the text itself."""
    return text


def read_choice(*choices: str) -> Callable[[str], str]:
    """Return a reader that accepts only `choices`."""

    def read(text: str) -> str:
        if text not in choices:
            hint = did_you_mean(text, choices)
            raise SettingError(f"{text!r} is not one of {', '.join(choices)}{hint}")
        return text

    read.choices = choices  # type: ignore[attr-defined]
    return read


class Secret:
    """A text that is never shown: not in a log, an error, a page or a traceback."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    __hash__ = None  # type: ignore[assignment]


def read_secret(text: str) -> Secret:
    """Return a text that will not be shown."""
    return Secret(text)


def read_url(text: str) -> str:
    """Return an http:// or https:// URL as it is, without a slash at its end."""
    match = re.fullmatch(r"(https?)://([^/?#@\s]+)(/[^?#\s]*)?", text)
    if match is None:
        raise SettingError(f"{text!r} is not a URL: write http://HOST:PORT or https://HOST")
    return text.rstrip("/")


def read_name(text: str) -> str:
    """Return a name: letters, digits and ._-:/ from a letter or a digit."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", text):
        raise SettingError(f"{text!r} is not a name: letters, digits and ._-:/ are, up to 128 of them")
    return text


class QuotaOf(NamedTuple):
    """So many in each hour, day or month of the calendar (UTC)."""

    units: int
    window: str  # "hour", "day" or "month"


def read_quota(text: str) -> QuotaOf | None:
    """Return a quota from `10M/day`, `500k/hour`, `1G/month`, or None from `off`."""
    if text == "off":
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,8})([kMG]?)/(h|hour|d|day|month)", text)
    if match is None:
        raise SettingError(
            f"{text!r} is not a quota: write a number an hour, a day or a month, such as 10M/day, or off"
        )
    units = int(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]]
    return QuotaOf(units, {"h": "hour", "d": "day"}.get(match[3], match[3]))
