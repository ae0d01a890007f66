"""The native programs, compiled once for the suite."""

import pytest

from bench.gateways import Upstream
from bench.measure import Bench, Sizes
from bench.toolchain import native
from bench.wire import Client

SMALL = Sizes(seconds=0.1, warmup_s=0.05, connections=4, streams=4, held=20)


@pytest.fixture(scope="session")
def programs():
    """Compile them.  relayd itself cannot be built without a C compiler, so a failure here is one."""
    return {name: native(name) for name in ("load", "upstream", "distance")}


@pytest.fixture
def bench(tmp_path):
    return Bench(SMALL, Client(), tmp_path)


@pytest.fixture
def upstream(programs, tmp_path):
    running = Upstream(tmp_path, core=None)
    yield running
    running.child.stop()
