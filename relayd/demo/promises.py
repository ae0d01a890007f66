"""What must hold, checked on every single request.

* No request failed before its first token.  The clients never retry; relayd does it for them.
* An answer was cut only if it was being written by the worker that was killed, at that moment.
* Every cut was visible to its client.  No answer ended as if it were whole when it was not.
* No answer from the killed worker began after its death.
* What relayd counts as cut is what its clients saw cut.
* A request's answer is the same, word for word, in both runs; what a cut stream had said is how it begins.

What is not promised: times.  They are shown, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from relayd.demo.act import DRAIN_LIMIT_S, Act
from relayd.demo.client import Call, Ending
from relayd.demo.fleet import VICTIM
from relayd.demo.figures import counted

Pair = tuple[Call, Call]


def broken_promises(acts: list[Act]) -> list[str]:
    """Return a sentence for each promise that did not hold; none is the expected answer."""
    sentences = [f"{act.policy}: {sentence}" for act in acts for sentence in broken_in(act)]
    first, second = acts
    differing = [left.ask.number for left, right in pairs(first, second) if not agree(left, right)]
    if differing:
        sentences.append(
            f"{requests(len(differing))} got different texts in the two runs: {some(differing)}"
        )
    return sentences


def broken_in(act: Act) -> Iterator[str]:
    """Yield a sentence for each promise that one run broke."""
    failed = [call for call in act.calls if call.ending is Ending.FAILED]
    if failed:
        yield f"{requests(len(failed))} failed before the first token; the first: {failed[0].how}"
    strays = [call for call in act.calls if call.ending is Ending.CUT and not was_on_victim(call, act)]
    if strays:
        where = f"on {strays[0].worker or 'no worker'}"
        yield f"{requests(len(strays))} cut that the kill does not explain; the first {where}: {strays[0].how}"
    silent = [call for call in act.calls if call.ending is Ending.SILENT]
    if silent:
        yield f"{requests(len(silent))} ended as if whole, but were not"
    late = [call for call in act.calls if call.worker == VICTIM and call.sent_at > act.killed_at]
    if late:
        yield f"{requests(len(late))} sent after the kill got an answer that names {VICTIM}"
    unfinished = [call for call in act.calls if call.ending is Ending.UNFINISHED]
    if unfinished:
        yield (
            f"{requests(len(unfinished))} not answered {DRAIN_LIMIT_S:.0f} s after the last was sent: "
            "the workers have too much to do; choose a lower --rate"
        )
    cut = sum(call.ending is Ending.CUT for call in act.calls)
    by_relayd = counted(act, "relayd_requests_total", outcome="stream_error")
    if cut != by_relayd:
        yield f"clients saw {cut} answers cut, and relayd counted {by_relayd:.0f}"


def was_on_victim(call: Call, act: Act) -> bool:
    """True if the killed worker was writing this answer when it died."""
    return call.worker == VICTIM and call.is_open_at(act.killed_at)


def pairs(first: Act, second: Act) -> list[Pair]:
    """Return the same requests in both runs, where the texts can be compared."""
    both = zip(first.calls, second.calls, strict=True)
    return [(left, right) for left, right in both if is_comparable(left) and is_comparable(right)]


def is_comparable(call: Call) -> bool:
    """True if a text of this answer is there, whole or not."""
    return call.ending in (Ending.ANSWERED, Ending.CUT)


def agree(left: Call, right: Call) -> bool:
    """True if two texts of an answer are the same, or one is how the other begins and was cut."""
    if left.ending is Ending.ANSWERED and right.ending is Ending.ANSWERED:
        return left.text == right.text
    short, long = sorted((left, right), key=lambda call: len(call.text))
    return short.ending is Ending.CUT and long.text.startswith(short.text)


def requests(count: int) -> str:
    """Return `count` requests, in words."""
    return f"{count} requests" if count != 1 else "1 request"


def some(numbers: list[int]) -> str:
    """Return the first few numbers."""
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
