"""What a case came to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """The problems a case showed: none, and it passed."""

    name: str
    level: str
    problems: list[str] = field(default_factory=list)
    seen: str = ""  # what came back, for whoever has to find out why
    is_allowed_by_rfc: bool = False  # wrong by us, but not by the RFC

    @property
    def is_ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        outcome = "ok" if self.is_ok else "FAILED (the RFC allows it)" if self.is_allowed_by_rfc else "FAILED"
        why = "; ".join(self.problems)
        return f"{self.name:24} {self.level:6} {outcome}{'  ' + why if why else ''}  [{self.seen}]"
