"""The ways a benchmark can fail that its user can do something about."""

from __future__ import annotations


class BenchFault(Exception):
    """Something to tell the user in one line; `exit_code` as in relayd: 1 failed, 2 usage, 75 port in use."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Unavailable(BenchFault):
    """A gateway that cannot take part; its column says why and the others are measured."""
