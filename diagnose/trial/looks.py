"""Looks at numbers: what a patched program's are worth, told as a verdict, and what the look took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from diagnose.fixer import Fixer
from diagnose.model import Gate, GateResult, Verdict
from diagnose.program import Program
from diagnose.trial.comparison import Comparison
from diagnose.trial.costs import Costs
from diagnose.trial.gatekeeper import Gatekeeper
from diagnose.trial.judging import ruled, settled_by_time
from diagnose.trial.wanted import Part


@dataclass(frozen=True)
class Halfway:
    """A program with a part of some fixes in it: all but those that change the training."""

    program: Program
    fixer: Fixer
    """Stands for that part: its promise is held against the original's numbers."""

    @property
    def part(self) -> Part:
        """What is looked at of it."""
        return Part(self.program, self.fixer.gate, self.fixer.rounds_to)


@dataclass
class Looks:
    """Those of one bench."""

    gatekeeper: Gatekeeper
    costs: Costs
    on_phase: Callable[[str, str], None]
    """Told what is being done now, and a detail of it."""
    early: int = 0
    """Captures that were begun beside a duel since the last look."""
    early_ns: int = 0
    """What was waited for them."""

    def judged(
        self,
        verdict: Verdict,
        fixer: Fixer,
        found: Comparison,
        original: Program,
        patched: Program,
        halfway: Halfway | None,
    ) -> Verdict:
        """The verdict on a trial: by its times, else by the numbers too, in two parts where there is one halfway."""
        early = settled_by_time(verdict, found)
        if early is not None:
            return replace(verdict, decision=early.decision, summary=early.summary)
        first = None
        if halfway is not None:
            with self._seen(fixer.gate):
                self.gatekeeper.foresee(original, halfway.part, patched, fixer.rounds_to)
            first = self._gated(halfway.fixer, original, halfway.program)
            if first.passed is not True:
                return ruled(verdict, fixer, found, first)
            original = halfway.program
        gate = self._gated(fixer, original, patched)
        if first is not None:
            gate = replace(gate, detail=f"{gate.detail}; without what changes the training, {first.detail}")
        return ruled(verdict, fixer, found, gate)

    def _gated(self, fixer: Fixer, original: Program, patched: Program) -> GateResult:
        self.on_phase(f"checking the numbers of {fixer.name}", fixer.gate.value)
        return self.check(fixer.gate, original, patched, fixer.rounds_to, fewer=fixer.fewer_parameters)

    def check(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None, *, asked: bool = True, fewer: bool
    ) -> GateResult:
        """As of the gatekeeper."""
        with self._seen(gate):
            return self.gatekeeper.check(gate, original, patched, rounds_to, asked=asked, fewer=fewer)

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """While a duel goes on, beside whose start captures may be begun."""
        before = self.gatekeeper.started, self.gatekeeper.waited_ns
        yield
        self.early += self.gatekeeper.started - before[0]
        self.early_ns += self.gatekeeper.waited_ns - before[1]

    @contextlib.contextmanager
    def _seen(self, gate: Gate) -> Iterator[None]:
        """Learn what a look at the numbers takes, with what was captured of them early, beside its trial's start."""
        began_ns, before = time.monotonic_ns(), self.gatekeeper.started - self.early
        yield
        more_ns = self.early_ns + self.costs.first_step_after_ns if self.early else 0
        took_ns = time.monotonic_ns() - began_ns + more_ns
        self.costs.saw_gate(gate, took_ns, self.gatekeeper.started - before)
        self.early = self.early_ns = 0
