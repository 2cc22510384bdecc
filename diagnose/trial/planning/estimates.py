"""How long the next trial will take: its turns as those before it (cost_model.py), its numbers by what a gate needs.

A look at numbers of a kind that was taken before takes as long again. Of one that was not, the processes are counted
that it needs, each with a start and steps as trials have seen them, and put side by side as far as there is memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnose.fixer import Fixer
from diagnose.model import Gate
from diagnose.program import Program
from diagnose.trial.gates.capture_plan import CaptureRequest, Part, for_gate
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.process.makespan import Process

_COMING, _HALFWAY = Path("coming"), Path("halfway")
"""In the place of copies that have not been made."""
_EXACT_STEPS = 2
"""A step in float64, operator by operator, takes so many of the program's own where matrix units know that format."""
_WIDE_STEPS = 6
"""A step in float32 takes so many of one whose products are in a 16-bit format: an H100 was measured at 67 TFLOP/s in
the one and 768 in the other, and products took two fifths of the steps seen."""
_LARGEST_SPEEDUP = 10
MOST_SAVED = 1 - 1 / _LARGEST_SPEEDUP
"""More is not counted on, whatever is promised."""


@dataclass(frozen=True)
class Plan:
    """A trial that might be begun."""

    fixer: Fixer
    settings: int = 1
    part: Fixer | None = None
    """Where many fixes are tried at once and some change the training: those that do not, as one fixer."""
    saved_ns: int = 0
    """How much shorter the steps of its trajectories are expected to be than those of the newest trial."""
    promised: float = 0.0
    """The share of a step that it promises to save: at best it does."""


@dataclass(frozen=True)
class Estimates:
    """The expected durations of trials on one bench."""

    costs: CostModel
    gatekeeper: Gatekeeper

    def trial_ns(
        self,
        plan: Plan,
        baseline: Program | None,
        *,
        compiles: bool,
        beside: Sequence[float] | None = None,
        windows: int = 2,
        at_best: bool = False,
    ) -> int:
        """Return the expected time of a trial with its choice between settings, profiler windows and gate, in ns;
        `baseline` is the program that the fix is put on.

        `beside`: of the memory that was seen, what the arms need beside which captures may start. `at_best`: if what is
        only assumed turns out short, and what is promised holds.
        """
        saved = min(plan.promised, MOST_SAVED) if at_best else 0.0
        numbers_ns = self._numbers_ns(plan, baseline, beside, saved)
        if compiles and numbers_ns:
            numbers_ns += 0 if at_best else self.costs.warm_ns  # starts go on side by side
        seen_ns = self.costs.gates_ns.get(plan.fixer.gate) if plan.part is None else None
        if seen_ns is not None:
            early = beside is not None and self.gatekeeper.has_room(beside)
            numbers_ns = max(numbers_ns, seen_ns - (self.costs.first_step_after_ns if early else 0))
        if plan.fixer.gate is not Gate.TRAINING and not at_best:  # a fix is kept without them where time is short
            numbers_ns += self.costs.whole_runs_ns
        return numbers_ns + self.costs.trial_ns(
            plan.settings, compiles=compiles, windows=windows, at_best=at_best, promised=plan.promised, saved=saved
        )

    def _numbers_ns(
        self,
        plan: Plan,
        baseline: Program | None,
        beside: Sequence[float] | None,
        saved: float,
    ) -> int:
        """Return how long everything takes that a gate needs and that has not been captured; nothing where nothing has
        run. `saved` is the share by which the patched program's steps are shorter."""
        if baseline is None or not self.costs.start_ns:
            return 0
        coming, part = replace(baseline, root=_COMING), None
        if plan.part is not None:
            part = Part(replace(baseline, root=_HALFWAY), plan.part.gate, plan.part.rounds_to)
        steps = self.gatekeeper.trajectory_steps
        precision = self.gatekeeper.precision
        wanted = for_gate(plan.fixer.gate, baseline, coming, plan.fixer.rounds_to, steps, part, precision)
        step_ns = self.costs.step_ns
        later_ns = max(step_ns - plan.saved_ns, step_ns // _LARGEST_SPEEDUP)

        def process(one: CaptureRequest, share: float) -> Process:
            each_ns = later_ns if one.of_luck else step_ns
            if one.exact:
                each_ns *= _EXACT_STEPS if one.in_float64 else _WIDE_STEPS
            if one.program is coming and part is None:
                each_ns = round(each_ns * (1 - saved))
            return Process(share, self.costs.first_step_after_ns, int(one.recipe["steps"]) * each_ns)

        return self.gatekeeper.expected_ns(wanted, process, beside)
