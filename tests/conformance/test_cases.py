"""Every wire case, held against a real `relayd serve`.

Each line of the three files is a test.  The first test of a file runs all of its lines that were
selected, shared out among a few gateways; the tests then only say what came of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conformance.exceptions import AT_MOST, known_exceptions
from tests.conformance.runner import CASES, KINDS, Pair, run_cases
from tests.conformance.verdict import Verdict
from tests.support.gateway import Gateway
from tests.support.upstream import bound

GATEWAYS = 4
# Two cases have an upstream that says nothing; the runner's client waits six seconds, one relay case three.
SETTINGS = {"resilience.timeouts.first_token": "4s"}

ALL = {kind: CASES[kind]() for kind in KINDS}
EXCEPTIONS = known_exceptions({case.name for cases in ALL.values() for case in cases})


@pytest.fixture(scope="session")
def pairs() -> Iterator[list[Pair]]:
    """Start the gateways: each before its worker, as the runners' users do."""
    with ExitStack() as stack:
        yield [_start_pair(stack) for _ in range(GATEWAYS)]


def _start_pair(stack: ExitStack) -> Pair:
    port = stack.enter_context(bound()).getsockname()[1]
    gateway = stack.enter_context(Gateway(f"http://127.0.0.1:{port}", settings=SETTINGS))
    return Pair(gateway.host, gateway.port, "127.0.0.1", port, gateway.admin)


class Verdicts:
    """The verdicts of the selected cases; those of a file are there from its first use on."""

    def __init__(self, pairs: list[Pair], selected: set[str]) -> None:
        self._pairs, self._selected = pairs, selected
        self._by_kind: dict[str, dict[str, Verdict]] = {}

    def of(self, kind: str, name: str) -> Verdict:
        """Return the verdict on one case."""
        if kind not in self._by_kind:
            self._by_kind[kind] = asyncio.run(self._run(kind))
        return self._by_kind[kind][name]

    async def _run(self, kind: str) -> dict[str, Verdict]:
        cases = [case for case in ALL[kind] if f"{kind}:{case.name}" in self._selected]
        return {verdict.name: verdict async for verdict in run_cases(kind, cases, self._pairs)}


@pytest.fixture(scope="session")
def verdicts(pairs: list[Pair], request: pytest.FixtureRequest) -> Verdicts:
    selected = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    return Verdicts(pairs, selected)


def _parameters() -> list[Any]:
    return [pytest.param(kind, case.name, id=f"{kind}:{case.name}") for kind in KINDS for case in ALL[kind]]


@pytest.mark.parametrize(("kind", "name"), _parameters())
def test_case(verdicts: Verdicts, kind: str, name: str) -> None:
    verdict = verdicts.of(kind, name)
    if name in EXCEPTIONS:
        assert not verdict.is_ok, f"{name} passes: take it out of docs/conformance.md"
    else:
        assert verdict.is_ok, str(verdict)


def test_few_exceptions_are_known() -> None:
    assert len(EXCEPTIONS) <= AT_MOST, sorted(EXCEPTIONS)
