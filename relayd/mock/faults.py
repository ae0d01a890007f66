"""Ways the mock can misbehave, on request or at random.

A request asks with a header, a person with a flag:

    x-mock-fault: delay=2s; cut=3
    relayd mock --fault status=503@0.1 --fault stall=5@0.01

Each kind is a row of `KINDS`; a plan is what one request gets.  Adding a kind is
adding a row here, and the place in `exchange.py` that acts on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from relayd.mock.units import parse_duration_s

HEADER = b"x-mock-fault"


class BadFault(ValueError):
    """A fault that is not one; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to misbehave."""

    name: str
    value: str  # what its value means, for people; empty if it takes none
    default: float | None  # used when no value is given; None: a value must be given
    parse: Callable[[str], float]
    meaning: str


def _count(text: str) -> float:
    number = int(text)
    if number < 0:
        raise ValueError("negative")
    return number


def _status(text: str) -> float:
    number = int(text)
    if not 400 <= number <= 599:
        raise ValueError("not an error")
    return number


def _rate(text: str) -> float:
    number = float(text)
    if not 1 <= number <= 1e9:
        raise ValueError("out of range")
    return number


def _nothing(text: str) -> float:
    raise ValueError("takes no value")


_ROWS = (
    Kind("status", "400 to 599", 503, _status, "answer with this status and the engine's error body"),
    Kind("rate_limit", "SECONDS", 1, parse_duration_s, "answer 429 with Retry-After and the engine's body"),
    Kind("delay", "DURATION", None, parse_duration_s, "wait this long before anything else"),
    Kind("hang", "", 0, _nothing, "never answer; keep the connection open"),
    Kind("close", "", 0, _nothing, "close the connection without a byte"),
    Kind(
        "cut",
        "EVENTS",
        0,
        _count,
        "close after so many events, in order but with no terminator or last chunk",
    ),
    Kind("reset", "EVENTS", 0, _count, "reset the connection after so many events"),
    Kind("error", "EVENTS", 0, _count, "send an error event inside the 200 after so many events, and end"),
    Kind("stall", "EVENTS", 0, _count, "send nothing more after so many events; keep the connection open"),
    Kind("drip", "BYTES_PER_SECOND", None, _rate, "send the answer this slowly"),
    Kind("keepalive_close", "", 0, _nothing, "answer as if the connection stayed open, then close it"),
)
KINDS = {kind.name: kind for kind in _ROWS}

AFTER_EVENTS = ("cut", "reset", "error", "stall")  # one request can have one of these


Plan = dict[str, float]  # kind -> value


def parse_header(text: str) -> Plan:
    """Return what `x-mock-fault: TEXT` asks for.

    Raises BadFault.
    """
    plan: Plan = {}
    for part in text.split(";"):
        if part.strip():
            name, value = parse_one(part.strip())
            plan[name] = value
    _check_together(plan)
    return plan


def parse_one(text: str) -> tuple[str, float]:
    """Return `KIND` or `KIND=VALUE` as a kind's name and its value.

    Raises BadFault.
    """
    name, equals, value = (piece.strip() for piece in text.partition("="))
    kind = KINDS.get(name)
    if kind is None:
        raise BadFault(f"there is no fault {name!r}; choose from {', '.join(KINDS)}")
    if not equals:
        if kind.default is None:
            raise BadFault(f"fault {name!r} needs a value: {name}={kind.value}")
        return name, kind.default
    try:
        return name, kind.parse(value)
    except ValueError:
        wanted = f"write {name}={kind.value}" if kind.value else "it takes none"
        raise BadFault(f"{value!r} is no value for fault {name!r}; {wanted}") from None


def _check_together(plan: Plan) -> None:
    several = [name for name in AFTER_EVENTS if name in plan]
    if len(several) > 1:
        raise BadFault(f"an answer ends in one way only: choose one of {' and '.join(several)}")


@dataclass(frozen=True, slots=True)
class Chance:
    """A fault that strikes at random."""

    name: str
    value: float
    probability: float


def parse_flag(text: str) -> Chance:
    """Return `KIND[=VALUE]@PROBABILITY` (without `@`: always).

    Raises BadFault.
    """
    fault, at, probability = text.rpartition("@")
    if not at:
        fault, probability = text, "1"
    name, value = parse_one(fault)
    try:
        chance = float(probability)
    except ValueError:
        chance = -1.0
    if not 0 <= chance <= 1:
        raise BadFault(f"{probability!r} is no probability; write a number from 0 to 1, as in {fault}@0.05")
    return Chance(name, value, chance)


def draw(chances: Iterable[Chance], rng: random.Random) -> Plan:
    """Return what befalls one request.  Every chance is drawn, so that a seed repeats itself."""
    plan: Plan = {}
    for chance in chances:
        struck = rng.random() < chance.probability
        taken = chance.name in AFTER_EVENTS and any(name in plan for name in AFTER_EVENTS)
        if struck and not taken:
            plan.setdefault(chance.name, chance.value)
    return plan
