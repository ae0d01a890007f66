"""What must hold, checked on every single request.

* No request failed before its first token.  The clients never retry; relayd does it for them.
* An answer was cut only if the worker that was killed was writing it at that moment.
* Every cut was visible to its client.  No answer ended as if it were whole when it was not.
* The dead worker answered nothing that was sent after its death.
* What relayd counts as cut is what its clients saw cut.
* A request's answer is the same, word for word, in both runs; what a cut stream had said is how it begins.

What is not promised: times.  They are shown, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relayd.demo.act import DRAIN_LIMIT_S, Act
from relayd.demo.client import Call, Ending
from relayd.demo.figures import counted, was_on_victim
from relayd.demo.fleet import VICTIM


def broken_promises(first: Act, second: Act) -> list[str]:
    """Return a sentence for each promise that did not hold; none is the expected answer."""
    sentences = [f"{act.policy}: {sentence}" for act in (first, second) for sentence in broken_in(act)]
    differing = [left for left, right in comparable(first, second) if not agree(left, right)]
    if differing:
        sentences.append(f"{requests(differing)} got different texts in the two runs ({numbers(differing)})")
    return sentences


def broken_in(act: Act) -> Iterator[str]:
    """Yield a sentence for each promise that one run broke."""
    failed = [call for call in act.calls if call.ending is Ending.FAILED]
    cut = [call for call in act.calls if call.ending is Ending.CUT]
    strays = [call for call in cut if not was_on_victim(call, act)]
    silent = [call for call in act.calls if call.ending is Ending.SILENT]
    late = [call for call in act.calls if call.worker == VICTIM and call.sent_at > act.killed_at]
    unfinished = [call for call in act.calls if call.ending is Ending.UNFINISHED]
    by_relayd = round(counted(act, "relayd_requests_total", outcome="stream_error"))
    if failed:
        yield f"{requests(failed)} failed before the first token; the first: {failed[0].how}"
    if strays:
        worker = strays[0].worker or "no worker"
        yield f"{requests(strays)} cut for no reason; the first, on {worker}: {strays[0].how}"
    if silent:
        yield f"{requests(silent)} ended as if whole, but were not ({numbers(silent)})"
    if late:
        yield f"{requests(late)} sent after the kill got an answer that names {VICTIM} ({numbers(late)})"
    if unfinished:
        yield (
            f"{requests(unfinished)} had no end {DRAIN_LIMIT_S:.0f} s after the last was sent: "
            "the workers have too much to do; choose a lower --rate"
        )
    if len(cut) != by_relayd:
        yield f"clients saw {len(cut)} answers cut, and relayd counted {by_relayd}"


# -- the same request in both runs


def comparable(first: Act, second: Act) -> list[tuple[Call, Call]]:
    """Return the requests whose texts can be compared: an answer came in both runs, whole or not."""
    both = zip(first.calls, second.calls, strict=True)
    return [(left, right) for left, right in both if has_text(left) and has_text(right)]


def has_text(call: Call) -> bool:
    """True if an answer came, whole or not."""
    return call.ending in (Ending.ANSWERED, Ending.CUT)


def agree(left: Call, right: Call) -> bool:
    """True if the texts are the same, or one was cut and is how the other begins."""
    if left.text == right.text:
        return True
    short, long = sorted((left, right), key=lambda call: len(call.text))
    return short.ending is Ending.CUT and long.text.startswith(short.text)


# -- words


def requests(calls: Sequence[Call]) -> str:
    """Return how many requests, in words."""
    return "1 request" if len(calls) == 1 else f"{len(calls)} requests"


def numbers(calls: Sequence[Call]) -> str:
    """Return the numbers of the first few."""
    more = ", ..." if len(calls) > 5 else ""
    return f"number {', '.join(str(call.ask.number) for call in calls[:5])}{more}"
