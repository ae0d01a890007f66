"""How the value of a setting is written: durations, sizes, rates, addresses.

Each reader takes the text and returns the value, or raises a SettingError that says what to write instead.
What a reader accepts, in words and as a pattern, is in the table at the end: the reference, the JSON Schema
and the messages about a value of the wrong kind are made from it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from relayd.registry import did_you_mean


class Remark(NamedTuple):
    """What is to be said of a setting, and what to do about it.  As a text it is all of that on one line."""

    setting: str  # its dotted path
    message: str
    hint: str = ""
    file: str = ""  # that the setting names and the message is about
    at: str = ""  # LINE:COLUMN in that file

    def __str__(self) -> str:
        where = ":".join(filter(None, (self.file, self.at)))
        hint = f"; {self.hint}" if self.hint else ""
        return ": ".join(filter(None, (self.setting, where, self.message))) + hint


class SettingError(ValueError):
    """A setting that cannot be used; the message says what to write instead.

    `remarks` say the same part by part, where the error is found after the setting was read.
    """

    def __init__(self, message: str, remarks: Sequence[Remark] = ()) -> None:
        super().__init__(message)
        self.remarks = tuple(remarks) or (Remark("", message),)


def refusal(*remarks: Remark) -> SettingError:
    """Return the error that these remarks are."""
    return SettingError("\n".join(map(str, remarks)), remarks)


LONGEST_QUOTE = 80


def quoted(text: str) -> str:
    """Return `text` as a message shows it: in quotes, unprintable characters escaped, its end cut off."""
    shown = ascii(text) if not text.isprintable() else repr(text)
    return shown if len(shown) <= LONGEST_QUOTE else shown[:LONGEST_QUOTE] + "..."


_DURATION = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)"
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = r"([0-9]{1,12})\s*(B|KiB|MiB|GiB|kB|MB|GB|)"
_SIZE_UNITS = {
    "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9,
}  # fmt: skip


def read_duration(text: str) -> float:
    """Return seconds from `20s`, `1.5m`, `250ms` or `off` (0)."""
    if text in ("off", "0"):
        return 0.0
    match = re.fullmatch(_DURATION, text)
    if match is None:
        raise SettingError(
            f"{quoted(text)} is not a duration: write a number with ms, s, m, h or d, such as 20s"
        )
    return float(match[1]) * _DURATION_UNITS[match[2]]


def read_size(text: str) -> int:
    """Return bytes from `32MiB`, `64KiB` or a plain number."""
    match = re.fullmatch(_SIZE, text)
    if match is None:
        raise SettingError(
            f"{quoted(text)} is not a size: write a number with KiB, MiB or GiB, such as 32MiB"
        )
    if not int(match[1]):
        raise SettingError(f"{quoted(text)} would let nothing through: write a size, such as 32MiB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


_SHARE = r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%"


def read_share(text: str) -> float:
    """Return a fraction from `20%`."""
    match = re.fullmatch(_SHARE, text)
    if match is None or float(match[1]) > 100:
        raise SettingError(f"{quoted(text)} is not a share: write a percentage, such as 20%")
    return float(match[1]) / 100


class RateOf(NamedTuple):
    """So many in so much time."""

    units: int
    period_s: float


_RATE = r"([1-9][0-9]{0,8})([kM]?)/(s|min|h|hour|d|day)"
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0}


def read_rate(text: str) -> RateOf | None:
    """Return a rate from `100/s`, `600/min`, `10M/day`, or None from `off`."""
    if text == "off":
        return None
    match = re.fullmatch(_RATE, text)
    if match is None:
        raise SettingError(
            f"{quoted(text)} is not a rate: write a number a time, such as 100/s, 600/min or 10M/day, or off"
        )
    return RateOf(int(match[1]) * {"": 1, "k": 1000, "M": 1_000_000}[match[2]], _PERIODS[match[3]])


_COUNT = r"[0-9]{1,9}"


def read_count(text: str) -> int:
    """Return a whole number."""
    if not re.fullmatch(_COUNT, text):
        raise SettingError(f"{quoted(text)} is not a whole number: write digits, at most nine, such as 20")
    return int(text)


def read_positive(text: str) -> int:
    """Return a whole number that is not 0."""
    if not read_count(text):
        raise SettingError(f"{quoted(text)} would let nothing through: write 1 or more")
    return int(text)


def read_mode(text: str) -> int:
    """Return the permissions of a file from the octal digits that chmod takes."""
    if not re.fullmatch("0?[0-7]{3}", text):
        raise SettingError(f"{quoted(text)} is not a file's mode: write three octal digits, such as 0660")
    return int(text, 8)


def read_switch(text: str) -> bool:
    """Return True for `on`, False for `off`."""
    words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
    if text.lower() not in words:
        raise SettingError(f"{quoted(text)} is neither on nor off: write one of the two")
    return words[text.lower()]


def read_address(text: str) -> str:
    """Return `HOST:PORT` or `unix:/PATH` as it is, after checking it; `off` stays."""
    if text.startswith("unix:"):
        refuse_socket_path(text.removeprefix("unix:"))
    elif text != "off":
        split_address(text)
    return text


LONGEST_SOCKET_PATH = 107  # bytes: sun_path of Linux, less the NUL at its end


def refuse_socket_path(path: str) -> None:
    """Raise a SettingError for what is no path of a Unix socket."""
    if not path.startswith("/"):
        raise SettingError(
            f"{quoted('unix:' + path)}: the path of a socket must begin with /: write unix:/PATH, such as "
            "unix:/run/relayd/relayd.sock"
        )
    if path.endswith("/"):
        raise SettingError(f"{quoted('unix:' + path)} is a directory: write unix:/PATH with a file's name")
    if len(path.encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        raise SettingError(
            f"{quoted('unix:' + path)} is too long: a socket's path has {LONGEST_SOCKET_PATH} bytes at most"
        )


def split_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`, `[IPv6]:PORT` or `:PORT`."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/]*)):([0-9]{1,5})", text)
    host = (match[1] or match[2] or "0.0.0.0") if match else ""
    if match is None or int(match[3]) > 65535 or not is_host(host) or (match[1] and ":" not in host):
        raise SettingError(f"{quoted(text)} is not an address: write HOST:PORT, such as 127.0.0.1:8080")
    return host, int(match[3])


def is_host(name: str) -> bool:
    """True for an address or a name of letters, digits, dots, dashes and underscores."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        labels = name.removesuffix(".").split(".")
        if len(labels) == 4 and all(label.isdecimal() for label in labels):
            return False  # 10.0.0.256
        return len(name) < 254 and all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in labels)
    return True


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


UNIX = "unix"  # what a client on a Unix socket has for an address


def why_no_network(text: str) -> str:
    """Return what to write in place of an address with a length behind it, which is no range."""
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return ""
    return f": write {found}, or {text.partition('/')[0]} for that address alone"


def read_network(text: str) -> str:
    """Return an address range as it is, or `unix`, which is everybody on a Unix socket."""
    try:
        if text != UNIX:
            ipaddress.ip_network(text)
    except ValueError:
        raise SettingError(
            f"{quoted(text)} is not an address range such as 10.0.0.0/8{why_no_network(text)}"
        ) from None
    return text


def read_sink(text: str) -> str:
    """Return where log lines go: stdout, or file:PATH."""
    if text != "stdout" and not re.fullmatch(r"file:.+", text):
        raise SettingError(f"{quoted(text)} is not a sink: write stdout or file:PATH")
    return text


def read_prefix(text: str) -> str:
    """Return the beginning of a path."""
    if not text.startswith("/"):
        raise SettingError(f"{quoted(text)} is not the beginning of a path: it begins with /")
    return text


def read_text(text: str) -> str:
    """Return the text itself."""
    return text


def read_choice(*choices: str) -> Callable[[str], str]:
    """Return a reader that accepts only `choices`."""

    def read(text: str) -> str:
        if text not in choices:
            hint = did_you_mean(text, choices)
            raise SettingError(f"{quoted(text)} is not one of {', '.join(choices)}{hint}")
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


class Url(NamedTuple):
    """The parts of a URL."""

    scheme: str
    host: str
    port: int | None
    rest: str  # from the path on

    @property
    def origin(self) -> str:
        """The URL without the rest."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port else "")


def shown_url(text: str) -> str:
    """Return a URL as an error shows it: a query may have a key in it."""
    return quoted(re.sub(r"\?.+", "?***", text, flags=re.DOTALL))


def split_url(text: str) -> Url:
    """Return the parts of an http:// or https:// URL."""
    refuse_credentials(text)
    try:
        parts = urlsplit(text if re.fullmatch(r"[!-~]+", text) else "")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    after_address = re.fullmatch(r"\[.*\](:[0-9]+)?|[^\[\]]*", parts.netloc)
    if parts.scheme not in ("http", "https") or port == 0 or not is_host(host) or not after_address:
        raise SettingError(f"{shown_url(text)} is not a URL: write http://HOST:PORT or https://HOST")
    return Url(parts.scheme, host, port, text.partition("://")[2].removeprefix(parts.netloc))


def read_worker_url(text: str) -> str:
    """Return the URL of a worker as it is, without a slash at its end; it has no path."""
    url = split_url(text)
    if url.rest.startswith("/") and not re.search(r"[?#]", url.rest) and url.rest != "/":
        raise SettingError(
            f"{shown_url(text)} has a path, and a request's path is the client's: drop it, write {url.origin}"
        )
    if url.rest not in ("", "/"):
        raise SettingError(f"{shown_url(text)} has more than a host and a port: write {url.origin}")
    return text.rstrip("/")


def refuse_credentials(url: str) -> None:
    """Raise a SettingError for a URL with a credential in it, without showing it."""
    if "://" in url and "@" in url:
        raise SettingError("there is a name or a password before the @ of this URL: take it out")


def read_path(text: str) -> str:
    """Return the path of a file."""
    if "://" in text:
        refuse_credentials(text)
        raise SettingError(f"{quoted(text)} is not a file: write its path")
    return text


def read_key_source(text: str) -> str:
    """Return the URL or the path of a file that public keys come from; http:// is for this machine only."""
    if "://" not in text:
        return text
    before, _, query = text.partition("?")  # some issuers publish keys by policy: keys?p=NAME
    url = split_url(before)
    if "#" in before:
        raise SettingError(f"{shown_url(text)} is not a URL of a document: take out what # begins")
    if url.scheme == "http" and not is_loopback(url.host):
        raise SettingError(f"{shown_url(text)}: whoever is on the way could send other keys; use https://")
    if not re.fullmatch(r"[!-~]*", query):
        raise SettingError(f"{quoted(before)}: what follows ? is printable ASCII without spaces")
    return text


# --- secrets ----------------------------------------------------------------------------------------

LEAST_SECRET_BYTES = 32  # RFC 7518, section 3.2: no shorter than what HS256 puts out


def read_jwt_secret(text: str) -> Secret:
    """Return a secret that HS256 can use; its bytes are `decode_secret`'s."""
    secret = Secret(text)
    if len(decode_secret(secret)) < LEAST_SECRET_BYTES:
        raise SettingError(
            f"the secret is too short: HS256 takes {LEAST_SECRET_BYTES} bytes or more, such as "
            '"hex:" and what `openssl rand -hex 32` prints'
        )
    return secret


def decode_secret(secret: Secret) -> bytes:
    """Return the bytes of a secret: those after `hex:` or `base64:` decoded, any other text as UTF-8."""
    text = secret.reveal()
    if text.startswith("hex:"):
        if not re.fullmatch(r"hex:(?:[0-9A-Fa-f]{2})*", text):
            raise SettingError("after hex: there are only digits and a to f, two for each byte")
        return bytes.fromhex(text[4:])
    if text.startswith("base64:"):
        return _decode_base64(text[7:])
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SettingError("the secret is not UTF-8; write hex: or base64: before its bytes") from None


def _decode_base64(text: str) -> bytes:
    standard = text.translate({ord("-"): "+", ord("_"): "/"}).rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise SettingError("after base64: there is something that is not base64") from None


def read_credential(text: str) -> Secret:
    """Return a secret that can stand in a header: printable ASCII, no space at its ends."""
    if not re.fullmatch(r"[!-~](?:[ -~]*[!-~])?", text):
        raise SettingError(
            "this cannot be sent in a header: it takes one line of printable ASCII, no space at its ends"
        )
    return Secret(text)


_HEADER = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}"
_NOT_SETTABLE = {
    "connection", "content-length", "content-encoding", "content-type", "expect", "host", "keep-alive",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip


def read_header_name(text: str) -> str:
    """Return the name of a header, in small letters; those that frame a message are relayd's own."""
    if not re.fullmatch(_HEADER, text):
        raise SettingError(f"{quoted(text)} is not the name of a header, such as x-org")
    if text.lower() in _NOT_SETTABLE:
        raise SettingError(f"{quoted(text)} is a header that relayd makes itself; take it out")
    return text.lower()


# --- names and quotas -------------------------------------------------------------------------------

_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"


def read_name(text: str) -> str:
    """Return a name: letters, digits and ._-:/ from a letter or a digit."""
    if not re.fullmatch(_NAME, text):
        raise SettingError(f"{quoted(text)} is not a name: letters, digits and ._-:/ are, up to 128 of them")
    return text


class QuotaOf(NamedTuple):
    """So many in each hour, day or month of the calendar (UTC)."""

    units: int
    window: str  # "hour", "day" or "month"


_QUOTA = r"([1-9][0-9]{0,8})([kMG]?)/(h|hour|d|day|month)"


def read_quota(text: str) -> QuotaOf | None:
    """Return a quota from `10M/day`, `500k/hour`, `1G/month`, or None from `off`."""
    if text == "off":
        return None
    match = re.fullmatch(_QUOTA, text)
    if match is None:
        raise SettingError(
            f"{quoted(text)} is not a quota: write a number an hour, day or month, such as 10M/day, or off"
        )
    units = int(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]]
    return QuotaOf(units, {"h": "hour", "d": "day"}.get(match[3], match[3]))


# --- what each reader accepts -----------------------------------------------------------------------


class Kind(NamedTuple):
    """What a reader accepts, for people and for the JSON Schema."""

    words: str  # "a duration"
    examples: tuple[str, ...] = ()
    pattern: str = ""  # of the whole text; what is written without quotes may be no text to an editor
    is_secret: bool = False  # the value is never shown


_ADDRESS = r"(?:\[[0-9a-fA-F:.]+\]|[^:\[\]/]*):[0-9]{1,5}"

KINDS: dict[Callable[[str], object], Kind] = {
    read_duration: Kind("a duration", ("20s", "250ms", "10m", "off"), f"{_DURATION}|off|0"),
    read_size: Kind("a size", ("32MiB", "64KiB"), _SIZE),
    read_share: Kind("a share", ("20%",), _SHARE),
    read_rate: Kind("a rate", ("100/s", "600/min", "200k/min", "off"), f"{_RATE}|off"),
    read_quota: Kind("a quota", ("10M/day", "500k/hour", "1G/month", "off"), f"{_QUOTA}|off"),
    read_count: Kind("a number", ("20",), _COUNT),
    read_positive: Kind("a number from 1", ("20",), "0*[1-9][0-9]{0,8}"),
    read_switch: Kind("on or off", ("on", "off"), "on|off|true|false|yes|no"),
    read_address: Kind(
        "an address", ("127.0.0.1:8080", "0.0.0.0:8080", "unix:/PATH", "off"), f"{_ADDRESS}|unix:/.*[^/]|off"
    ),
    read_network: Kind("an address range", ("10.0.0.0/8", "unix"), "[0-9a-fA-F.:]+(?:/[0-9]{1,3})?|unix"),
    read_sink: Kind("a sink", ("stdout", "file:PATH"), "stdout|file:.+"),
    read_prefix: Kind("the beginning of a path", ("/",), "/.*"),
    read_worker_url: Kind("a URL without a path", ("http://10.0.0.11:8000",), r"https?://[^/?#@\s]+/?"),
    read_mode: Kind("a file's mode", ("0660", "0600", "0666"), "0?[0-7]{3}"),
    read_path: Kind("a file", ("PATH",)),
    read_key_source: Kind("a URL or a file", ("https://HOST/PATH", "PATH")),
    read_name: Kind("a name", ("NAME",), _NAME),
    read_text: Kind("a text", ("TEXT",)),
    read_header_name: Kind("the name of a header", ("x-org",), _HEADER),
    read_jwt_secret: Kind("a secret", ("${NAME}", "${file:PATH}"), is_secret=True),
    read_credential: Kind("a secret", ("${NAME}", "${file:PATH}"), is_secret=True),
}


def kind_of(reader: Callable[[str], object]) -> Kind:
    """Return what a reader accepts."""
    choices = getattr(reader, "choices", None)
    if choices:
        return Kind("one of " + ", ".join(choices), choices, "|".join(map(re.escape, choices)))
    return KINDS[reader]
