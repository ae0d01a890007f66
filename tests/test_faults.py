"""Every way to fail has its row, and every sentence can be filled in."""

from __future__ import annotations

import re

import pytest

from relayd._fast.head import HeadFault
from relayd._fast.leg import LegOutcome
from relayd.faults import HEAD_FAULTS, KINDS, LEG_OUTCOMES, LEG_ROWS, Fault, fault


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_is_complete(kind):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code)
    assert KINDS[kind.code] is kind
    assert 400 <= kind.status <= 599
    assert kind.whose in ("client", "worker", "relayd")
    # A client's fault is a 4xx, but for what HTTP calls "not implemented" and the like.
    assert kind.status < 500 or kind.whose != "client" or kind.status in (501, 505, 508)
    assert kind.status >= 500 or kind.whose == "client"


@pytest.mark.parametrize("code", KINDS)
def test_every_sentence_can_be_filled_in(code):
    failed = fault(code, "the detail", worker="w1", param="p", retry_after_s=1.5)
    assert isinstance(failed, Fault)
    assert (failed.code, failed.status) == (code, KINDS[code].status)
    assert (failed.param, failed.retry_after_s) == ("p", 1.5)
    assert "{" not in failed.message
    assert ("the detail" in failed.message) is ("{detail}" in KINDS[code].text)
    assert ("w1" in failed.message) is ("{worker}" in KINDS[code].text)


@pytest.mark.parametrize("code", KINDS)
def test_a_detail_from_outside_is_not_a_format(code):
    assert fault(code, "{0} {worker} {detail.__class__}").message


def test_every_head_fault_has_a_row():
    assert set(HEAD_FAULTS) == set(HeadFault) - {HeadFault.HEAD_OK}
    for code in HEAD_FAULTS.values():
        assert KINDS[code].whose == "client"


def test_every_outcome_of_a_leg_has_a_row():
    assert set(LEG_OUTCOMES) == set(LegOutcome) - {LegOutcome.LEG_RUNNING}
    assert len({row.label for row in LEG_OUTCOMES.values()}) == len(LEG_OUTCOMES)
    for row in LEG_OUTCOMES.values():
        assert re.fullmatch(r"[a-z_]+", row.label)


def test_rows_can_be_found_by_number():
    for outcome, row in LEG_OUTCOMES.items():
        assert LEG_ROWS[int(outcome)] is row


@pytest.mark.parametrize("outcome", LEG_OUTCOMES)
def test_every_failed_leg_has_a_fault_of_the_workers(outcome):
    row = LEG_OUTCOMES[outcome]
    if outcome in (LegOutcome.LEG_COMPLETE, LegOutcome.LEG_CANCELLED):
        assert (row.code, row.counts, row.retry) == ("", False, False)
        return
    assert KINDS[row.code].whose == "worker"
    assert KINDS[row.code].status in (502, 504)
    assert (KINDS[row.code].status == 504) is ("timeout" in row.label)


def test_what_has_no_time_left_is_not_tried_again():
    assert not LEG_OUTCOMES[LegOutcome.LEG_TOTAL_TIMEOUT].retry
    assert not LEG_OUTCOMES[LegOutcome.LEG_TOTAL_TIMEOUT].counts


def test_an_unknown_code_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        fault("no_such_code")
