"""A promise that does not hold is noticed, and said in a sentence."""

import pytest

from relayd.demo.act import Act
from relayd.demo.client import Call, Ending
from relayd.demo.figures import figures_of, interpolated, quantiles
from relayd.demo.fleet import VICTIM
from relayd.demo.plan import Ask
from relayd.demo.promises import broken_promises
from relayd.demo.report import Result, as_text, shown

KILLED_AT = 10.0
OTHER = "a100-0"


def call(number, ending=Ending.ANSWERED, worker=OTHER, sent=9.0, ended=11.0, text="one two three"):
    made = Call(Ask(number, sent, True, b""), sent)
    made.sent_at, made.first_at, made.ended_at = sent, sent + 0.1, ended
    made.ending, made.worker, made.text, made.how = ending, worker, text, "what the client saw"
    return made


def act(*calls, counted=0):
    text = f'# TYPE relayd_requests counter\nrelayd_requests_total{{outcome="stream_error"}} {counted}\n'
    return Act("least_tokens", 0.0, list(calls), KILLED_AT, "", text)


CUT = call(1, Ending.CUT, VICTIM, text="one t")
BROKEN = [
    # what                          a call                                  relayd counted   what is said
    ("failed", call(1, Ending.FAILED, "", text=""), 0, "1 request failed before the first token"),
    ("cut elsewhere", call(1, Ending.CUT, OTHER), 1, "1 request cut for no reason; the first, on a100-0"),
    ("cut before the kill", call(1, Ending.CUT, VICTIM, ended=9.5), 1, "cut for no reason"),
    ("cut, and begun after it", call(1, Ending.CUT, VICTIM, sent=10.5), 1, "cut for no reason"),
    ("silent", call(1, Ending.SILENT, VICTIM), 0, "ended as if whole, but were not (number 1)"),
    ("answered by the dead", call(1, worker=VICTIM, sent=10.5), 0, f"an answer that names {VICTIM}"),
    ("unfinished", call(1, Ending.UNFINISHED), 0, "choose a lower --rate"),
    ("relayd saw less", CUT, 0, "clients saw 1 answers cut, and relayd counted 0"),
    ("relayd saw more", call(1), 2, "clients saw 0 answers cut, and relayd counted 2"),
    ("another text", call(1, text="one three"), 0, "different texts in the two runs (number 1)"),
    ("another beginning", call(1, Ending.CUT, VICTIM, text="two"), 1, "different texts"),
    ("half a text, as whole", call(1, text="one"), 0, "different texts"),
]


@pytest.mark.parametrize(
    ("made", "counted", "said"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
def test_a_broken_promise_is_said(made, counted, said):
    sentences = broken_promises(act(made, counted=counted), act(call(1)))
    assert any(said in sentence for sentence in sentences), sentences


def test_what_held_is_not_called_broken():
    assert broken_promises(act(CUT, call(2), counted=1), act(call(1), call(2))) == []


def test_figures_tell_what_happened():
    after = call(3, sent=10.2, ended=10.9)
    figures = figures_of(act(CUT, call(2, worker=VICTIM, ended=9.9), after, counted=1))
    assert (figures.sent, figures.answered, figures.cut) == (3, 2, 1)
    assert figures.open_on_killed_worker == 1
    assert figures.kill_to_next_success_s == pytest.approx(0.3)
    assert figures.share_before == {"a100-0": 0, "a100-1": 1, "t4-0": 0}
    assert figures.share_after == {"a100-0": 1, "a100-1": 0, "t4-0": 0}


def test_what_broke_is_in_the_report():
    figures = figures_of(act(call(1)))
    result = Result(1.0, 1.0, 1, (figures, figures), 1, ["1 request failed before the first token"])
    assert "What did not hold\n* 1 request failed" in as_text(result)
    assert "Everything" not in as_text(result)


def test_percentiles_are_values_that_occurred():
    assert quantiles(range(1, 101)).p50 == 50
    assert quantiles(range(1, 101)).p99 == 99
    assert quantiles([7.0]).p99 == 7.0
    assert quantiles([]).p50 is None


INF = float("inf")
HISTOGRAMS = [
    # what                       buckets                                      share  quantile
    ("in the first bucket", [(1.0, 10.0), (2.0, 10.0), (INF, 10.0)], 0.5, 0.5),
    ("in a later bucket", [(1.0, 0.0), (2.0, 10.0), (INF, 10.0)], 0.9, 1.9),
    ("beyond the last bound", [(1.0, 0.0), (2.0, 1.0), (INF, 10.0)], 0.9, 2.0),
    ("nothing counted", [(1.0, 0.0), (INF, 0.0)], 0.5, None),
    ("no such histogram", [], 0.5, None),
]


@pytest.mark.parametrize(
    ("buckets", "share", "quantile"), [case[1:] for case in HISTOGRAMS], ids=[case[0] for case in HISTOGRAMS]
)
def test_quantiles_of_a_histogram(buckets, share, quantile):
    assert interpolated(buckets, share) == pytest.approx(quantile)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (4.2e-5, "42 us"), (0.0042, "4.2 ms"), (0.042, "42 ms"), (4.2, "4.2 s")],
)
def test_times_are_shown_in_their_unit(seconds, text):
    assert shown(seconds) == text
