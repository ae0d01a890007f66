"""A small reader of server-sent events, as strict as the SDKs are not.

It reads a whole body.  A piece without its closing empty line is reported as `unfinished`, because
what a relay must never do is to make half an event look like a whole one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Event:
    """One event: its name ("message" if none was given), its data lines joined, its comments."""

    name: str = "message"
    data: str = ""
    comments: tuple[str, ...] = ()

    def json(self) -> Any:
        """Return the data, decoded."""
        return json.loads(self.data)


@dataclass(frozen=True)
class Stream:
    """The complete events of a body, in order, and the bytes after the last of them."""

    events: list[Event]
    unfinished: bytes

    def named(self, name: str) -> list[Event]:
        """Return the events called `name`."""
        return [event for event in self.events if event.name == name]

    def data(self) -> list[str]:
        """Return the data of every event that has some."""
        return [event.data for event in self.events if event.data]


def read(body: bytes) -> Stream:
    """Return the events of `body`."""
    events: list[Event] = []
    lines: list[str] = []
    at = 0
    last_event_end = 0
    for match in LINE_END.finditer(body):
        line = body[at : match.start()].decode()
        at = match.end()
        if line:
            lines.append(line)
            continue
        if lines:
            events.append(_event(lines))
            lines = []
        last_event_end = at
    return Stream(events, body[last_event_end:])


def _event(lines: list[str]) -> Event:
    name, data, comments = "message", [], []
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not field:
            comments.append(value)
    return Event(name, "\n".join(data), tuple(comments))
