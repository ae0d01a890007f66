"""What holds for the whole suite: room for ten thousand connections, where the system allows it."""

from tests.support.procs import raise_descriptor_limit

WANTED_DESCRIPTORS = 25_000

raise_descriptor_limit(WANTED_DESCRIPTORS)
