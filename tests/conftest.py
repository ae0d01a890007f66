"""What holds for the whole suite: room for ten thousand connections, where the system allows it."""

from collections.abc import Iterator

import pytest

from tests.fast.stage import Mode
from tests.support.procs import raise_descriptor_limit

WANTED_DESCRIPTORS = 25_000

raise_descriptor_limit(WANTED_DESCRIPTORS)


@pytest.fixture(scope="module", params=["at once", "at the end of the turn"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a module's tests twice: what arrives is handled at once, or put off to the end of the turn."""
    Mode.puts_off = request.param != "at once"
    yield
    Mode.puts_off = False
