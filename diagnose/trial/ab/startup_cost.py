"""The time that a fix adds to the start of the program, mainly compiling and tuning, and when that is earned back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.model import Verdict
from diagnose.program import Program
from diagnose.trial.ab.result import Comparison


@dataclass
class StartupCosts:
    """The first start of each copy of a program: it had to compile what later ones found compiled."""

    longest_ns: int = 0
    """The longest of all starts seen."""
    _first_ns: dict[Path, int] = field(default_factory=dict)

    def saw(self, found: Comparison, original: Program, patched: Program) -> None:
        """Learn from a comparison."""
        self.longest_ns = max(self.longest_ns, found.start_ns)
        for program, starts in zip((original, patched), found.starts_ns, strict=True):
            if starts:
                self._first_ns.setdefault(program.root, starts[0])

    def knows(self, program: Program) -> bool:
        """Whether a copy has started before."""
        return program.root in self._first_ns

    def beside(self, verdict: Verdict, original: Program, patched: Program) -> Verdict:
        """The verdict with the first start of each."""
        before, after = (self._first_ns.get(program.root) for program in (original, patched))
        if before is None or after is None:
            return verdict
        pays = pays_after(after - before, verdict.saving_ns or 0)
        return replace(verdict, startup_ns=(before, after), pays_after_steps=pays)


def pays_after(more_ns: int, saving_ns: int) -> int | None:
    """Return after how many steps a start that takes `more_ns` longer is earned back; None if steps save nothing."""
    return math.ceil(max(0, more_ns) / saving_ns) if saving_ns > 0 else None
