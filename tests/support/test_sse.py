"""Events are read the same whatever ends their lines, and half an event is not one."""

from __future__ import annotations

import pytest

from tests.support.sse import Event, read


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_have_names_data_and_comments(line_end: str) -> None:
    text = ": hello\n\nevent: x\ndata: a\ndata: b\n\ndata:c\n\n"
    seen = read(text.replace("\n", line_end).encode())
    assert seen.events == [Event(comments=("hello",)), Event("x", "a\nb"), Event(data="c")]
    assert not seen.unfinished


@pytest.mark.parametrize("tail", ["data: half", "data: half\n", ": half", "event: half\ndata"])
def test_half_an_event_is_unfinished(tail: str) -> None:
    seen = read(b"data: whole\n\n" + tail.encode())
    assert [event.data for event in seen.events] == ["whole"]
    assert seen.unfinished == tail.encode()


def test_empty_lines_mean_nothing() -> None:
    assert read(b"\n\n\ndata: a\n\n\n\n").events == [Event(data="a")]
