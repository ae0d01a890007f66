"""What a person sees while the demo runs, on stderr: one line that changes, or now and then a new one."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from relayd.demo.act import Act
from relayd.demo.client import Ending

ON_TERMINAL_S = 0.1
ELSEWHERE_S = 3.0
CLEAR = "\r\033[K"


class Progress:
    """Writes to a terminal as to a terminal, and to a file as to a file."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self.every_s = ON_TERMINAL_S if self.is_terminal else ELSEWHERE_S
        self.next_at = 0.0

    def show(self, act: Act) -> None:
        """Show how far a run is, if it is time."""
        now = time.monotonic()
        if now < self.next_at:
            return
        self.next_at = now + self.every_s
        line = (
            f"{act.policy}: {act.age_s:4.1f} s: sent {len(act.calls)}, "
            f"answered {act.count(Ending.ANSWERED)}, under way {act.count(None)}, "
            f"cut {act.count(Ending.CUT)}, failed {act.count(Ending.FAILED)}"
        )
        self._write(f"{CLEAR}{line}" if self.is_terminal else f"{line}\n")

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._write(f"{CLEAR}{line}\n" if self.is_terminal else f"{line}\n")

    def clear(self) -> None:
        """Take the changing line away."""
        if self.is_terminal:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            pass  # nobody is looking
