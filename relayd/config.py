"""Every setting: its name, type, unit, default and meaning.

Settings are frozen structs; the field's annotation says how its text is read.  `apply` changes one of them
by its dotted path, as `--set resilience.timeouts.idle=30s` does; a tail that names only one setting
(`timeouts.idle`, `idle`) is enough.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from relayd.registry import did_you_mean


class SettingError(ValueError):
    """A setting that cannot be used; the message says what to write instead."""


# --- units ------------------------------------------------------------------------------------------

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
    """Return `HOST:PORT` as it is, after checking it; `off` stays."""
    if text == "off":
        return text
    split_address(text)
    return text


def split_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`, `[IPv6]:PORT` or `:PORT`."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/]*)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise SettingError(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:8080")
    return match[1] or match[2] or "0.0.0.0", int(match[3])


def read_networks(text: str) -> tuple[str, ...]:
    """Return address ranges from a comma-separated list."""
    ranges = tuple(part.strip() for part in text.split(",") if part.strip())
    for one in ranges:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            raise SettingError(f"{one!r} is not an address range such as 10.0.0.0/8: {error}") from None
    return ranges


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


def _unit(reader: Callable[[str], Any], meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"read": reader})


# --- settings ---------------------------------------------------------------------------------------


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each part of a request may take."""

    connect: Annotated[float, _unit(read_duration, "a connection to a worker")] = 2.0
    first_token: Annotated[
        float, _unit(read_duration, "from the request's last byte to the first content of the answer")
    ] = 600.0
    idle: Annotated[float, _unit(read_duration, "silence of a worker in the middle of an answer")] = 300.0
    write: Annotated[float, _unit(read_duration, "a client that takes nothing of its answer")] = 60.0
    total: Annotated[float, _unit(read_duration, "the whole request")] = 3600.0


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When another worker is tried, before anything of an answer was passed on."""

    attempts: Annotated[int, _unit(read_count, "further workers that are tried for one request")] = 2
    budget: Annotated[
        float, _unit(read_share, "retries as a share of successes; 3 a second are always allowed")
    ] = 0.2


class Breaker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a worker is left alone for a while."""

    consecutive: Annotated[int, _unit(read_count, "failures in a row after which a worker rests")] = 5
    rest: Annotated[float, _unit(read_duration, "the first rest; each further one is twice as long")] = 5.0
    longest_rest: Annotated[float, _unit(read_duration, "no rest is longer")] = 300.0


class Resilience(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens when things fail."""

    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()


class Front(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may do to a connection."""

    head_timeout: Annotated[float, _unit(read_duration, "from the first byte of a head to its last")] = 10.0
    body_timeout: Annotated[float, _unit(read_duration, "a request body that makes no progress")] = 30.0
    keepalive: Annotated[float, _unit(read_duration, "a connection without a request")] = 75.0
    max_head: Annotated[int, _unit(read_size, "a request's head")] = 64 << 10
    max_connections: Annotated[int, _unit(read_count, "open client connections; 0 is no bound")] = 0


class PerAddress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one address may ask, whoever it is."""

    rate: Annotated[
        RateOf | None, _unit(read_rate, "requests of one client address (IPv6: one /64), or off")
    ] = None
    burst: Annotated[int, _unit(read_positive, "of them at once")] = 100


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be asked for."""

    per_address: PerAddress = PerAddress()


class WorkerTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS towards workers whose URL begins with https://."""

    verify: Annotated[bool, _unit(read_switch, "check the worker's certificate and name")] = True
    ca: Annotated[str, _unit(read_text, "file with the certificate authorities to trust")] = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    listen: Annotated[str, _unit(read_address, "where clients connect")] = "127.0.0.1:8080"
    admin: Annotated[str, _unit(read_address, "where health and metrics are served, or off")] = (
        "127.0.0.1:9901"
    )
    trusted_proxies: Annotated[
        tuple[str, ...], _unit(read_networks, "address ranges whose X-Forwarded-* is believed")
    ] = ()
    max_body: Annotated[int, _unit(read_size, "a request's body")] = 64 << 20
    max_held: Annotated[int, _unit(read_size, "request bodies held in memory, all together")] = 1 << 30
    policy: Annotated[str, _unit(read_text, "how a worker is chosen")] = "least_tokens"
    engine: Annotated[
        str,
        _unit(
            read_choice("openai", "vllm", "sglang"),
            "what the workers are; vllm and sglang are asked for usage on streams",
        ),
    ] = "openai"
    on_disconnect: Annotated[
        str,
        _unit(read_choice("cancel", "drain"), "what becomes of a request whose client has left"),
    ] = "cancel"
    sse_keepalive: Annotated[
        float, _unit(read_duration, "silence after which a waiting stream client gets a sign of life, or off")
    ] = 0.0
    reveal: Annotated[
        bool, _unit(read_switch, "name the worker (x-relayd-worker) and the times (server-timing)")
    ] = True
    access_log: Annotated[bool, _unit(read_switch, "one JSON line a request on stdout")] = False
    drain_delay: Annotated[
        float, _unit(read_duration, "from not ready to not accepting, after TERM, for balancers to notice")
    ] = 2.0
    drain_timeout: Annotated[
        float, _unit(read_duration, "what running requests may take after TERM; off waits for the last one")
    ] = 60.0
    front: Front = Front()
    limits: Limits = Limits()
    resilience: Resilience = Resilience()
    worker_tls: WorkerTls = WorkerTls()


# --- by path ----------------------------------------------------------------------------------------


def every_setting(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, annotation) of every setting."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if get_origin(hint) is Annotated:
            yield prefix + name, hint
        else:
            yield from every_setting(hint, f"{prefix}{name}.")


def find_path(key: str) -> str:
    """Return the full path of the setting that `key`, a path or the tail of one, names."""
    paths = [path for path, _ in every_setting()]
    if key in paths:
        return key
    tails = [path for path in paths if path.endswith("." + key)]
    if len(tails) == 1:
        return tails[0]
    if tails:
        raise SettingError(f"{key!r} could be {' or '.join(tails)}")
    ends = {path.split(".", depth)[-1] for path in paths for depth in range(3)}
    raise SettingError(f"there is no setting {key!r}{did_you_mean(key, ends)}")


def apply(settings: Settings, assignment: str) -> Settings:
    """Return `settings` with `KEY=VALUE` applied.

    Raises:
        SettingError: no such key, or a value it does not take.
    """
    key, equals, text = assignment.partition("=")
    if not equals:
        raise SettingError(f"--set takes KEY=VALUE, not {assignment!r}")
    path = find_path(key.strip())
    hint = dict(every_setting())[path]
    reader = next(arg for arg in get_args(hint) if isinstance(arg, msgspec.Meta)).extra["read"]  # type: ignore[index]
    try:
        value = reader(text.strip())
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None
    changed: Settings = _replace(settings, path.split("."), value)
    return changed


def _replace(struct: Any, names: list[str], value: Any) -> Any:
    if len(names) > 1:
        value = _replace(getattr(struct, names[0]), names[1:], value)
    return msgspec.structs.replace(struct, **{names[0]: value})
