"""The user's budget: what still fits into it, with the time of the last runs set aside.

How long a trial will take is told by those before it, and before the first by the watched run: a start with its
warm-up, the blocks of its turns, the captures of its gate. What nothing has shown yet, compiling above all, is assumed,
and that the patched program is no faster. Nothing is begun that cannot end by this, with two exceptions, which the
budget may cut short, and that is told: a fix that promises a clear saving and may end if an assumption fails; and one
that promises a large saving while much of the budget is left, or nothing was tried, and its first pair may be there
in time. What promises little is begun without the time for a last run where nothing was tried.

What the end needs beside the last runs hangs on what is kept. Where its numbers as a whole were held against the
original's already, nothing; and a fix that then changes no bit leaves it so. One that rounds otherwise in a program
whose training was held to the original's asks for a look at that training again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diagnose.compose.proposals.proposed_edits import ProposedEdits
from diagnose.fixer import Fixer
from diagnose.model import Gate, GateResult
from diagnose.trial.bench import Bench
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.schedule import Deadline
from diagnose.units import format_ns
from diagnose.verdict import CLEAR_SAVING, SURE_SAVING

OUT_OF_BUDGET = "the budget ran out"
SPREAD = 1.5
"""Two of three trials take between two thirds of what is expected and half as long again: chosen. The first trial of a
GPT on an 80 GB device took 1.3 times as long, a common trial of a ViT 0.8 times."""
LIKELY = 0.25
"""A trial with this chance to end in time is begun, if it promises a clear saving: chosen. A ResNet's `channels-last`,
9 % of its step, was given up with 2 min 43 s of a budget left, of which it would have taken two."""
UNSPENT = 3
"""The divisor of a budget: while one part in so many is left, nothing that promises a large saving is given up for
lack of time."""


_LEAST_CHANCE = 1e-3
"""The chance counted for a trial that has none to end in time: such trials still are in the order of their promises."""


@dataclass
class Budget:
    """The time left before a deadline, and what a bench may still begin in it."""

    bench: Bench
    deadline: Deadline
    held: bool = True
    """Whether the numbers of what is kept, as a whole, were held against the original's."""
    kept: tuple[Fixer, ...] = ()
    tried: bool = False
    """Whether any trial was begun."""
    on_risk: Callable[[str, str], None] = lambda _phase, _detail: None
    """Told of a trial that may be cut short, and by how much."""

    def __post_init__(self) -> None:
        self._whole_ns = self.deadline.left_ns or 0

    def grew(self, fixer: Fixer, gate: GateResult | None) -> None:
        """Note that this one is kept too, which passed a gate."""
        shown = replace(fixer, gate=gate.gate) if gate is not None else fixer
        self.held = self._covers(shown)
        self.kept = (*self.kept, fixer)

    def changed(self) -> None:
        """Note that the kept program changed, so that its numbers have to be checked anew."""
        self.held = False

    def _covers(self, fixer: Fixer) -> bool:
        """Whether the gate of a fix says all that there is to say of the whole with it."""
        exact = self.held and fixer.gate is Gate.BITWISE and not fixer.compiles
        whole = (*self.kept, fixer)
        if any(one.gate is Gate.TRAINING for one in whole):
            return exact or fixer.gate is Gate.TRAINING
        # What compiled code does late shows in a trajectory only.
        return exact or not any(one.compiles for one in whole)

    def refused_trial(self, ready: ProposedEdits) -> str | None:
        """Why a fix is not tried with the first of its settings; None where it is, also where it may be cut short."""
        patched = ready.variants[0].fixer
        reason = self.refused(patched)
        if reason is not None and self.risks(Plan(patched, promised=ready.proposal.share)):
            return None
        return reason

    def begun(self, plan: Plan) -> bool:
        """Whether a trial is begun: it ends in time, or is worth that it may be cut short."""
        return self.refused_plan(plan) is None or self.risks(plan)

    def choices(self, fixer: Fixer, count: int, beside: int = 0) -> list[int]:
        """Return the places of as many of a fix's settings as there is time to choose from, in even distances.

        `beside`: so many others take part that have run.
        """
        affordable = count
        while affordable and self.refused(fixer, beside + affordable) is not None:
            affordable -= 1
        return spread(count, affordable) if affordable else []

    def refused(self, fixer: Fixer, settings: int = 1) -> str | None:
        """Why there is no time for a trial of a fix, or for a choice between so many settings; None where there is."""
        return self.refused_plan(Plan(fixer, settings))

    def refused_plan(self, plan: Plan) -> str | None:
        """Why there is no time for a trial; None where there is.

        One last run is enough after it: what was measured to be faster is worth more than a second look at how much.
        """
        return self._refused(self.bench.trial_ns(plan), self.bench.final_ns(held=self._covers(plan.fixer), runs=1))

    def ns_to_keep(self, plan: Plan) -> float:
        """Return how long a trial is expected to take, in ns, for each chance that it ends in time: what is promised is
        worth that much less where it may be cut short."""
        trial_ns = self.bench.trial_ns(plan)
        return trial_ns / max(_LEAST_CHANCE, self._chance(trial_ns))

    def _chance(self, trial_ns: int) -> float:
        """The probability that a trial of about this length ends in time, with one last run where something is kept."""
        left_ns = self.deadline.left_ns
        if left_ns is None or trial_ns <= 0:
            return 1.0
        left_ns -= self.bench.final_ns(held=True, runs=1) if self.kept else 0
        if left_ns <= 0:
            return 0.0
        return (1 + math.erf(math.log(left_ns / trial_ns) / math.log(SPREAD) / math.sqrt(2))) / 2

    def begins(self, plan: Plan) -> None:
        """A trial is the next thing; told where it may be cut short."""
        self.tried = True
        reason = self.refused_plan(plan)
        if reason is not None:
            self.on_risk(f"trying {plan.fixer.name} although it may be cut short", reason)

    def risks(self, plan: Plan) -> bool:
        """Whether a refused trial is begun all the same.

        One that may well end in time, or does if it saves what it promises; then the numbers of the whole are looked at
        as far as there is time, and while nothing is kept, no last run has its time. Any that promises a large saving
        while a third of the budget is left, or nothing was tried: estimates are no reason to give that up, unless its
        first pair alone takes longer than what is left. What promises less is begun where it ends in time and nothing
        was tried: without a last run it is worth more than time that nobody spends.
        """
        reason, left_ns = self.refused_plan(plan), self.deadline.left_ns
        if reason is None or left_ns is None or left_ns == 0:
            return False
        if plan.promised <= CLEAR_SAVING:
            return not self.tried and self._refused(self.bench.trial_ns(plan), 0) is None
        large = plan.promised >= SURE_SAVING and (not self.tried or UNSPENT * left_ns >= self._whole_ns)
        large = large and self.bench.least_ns(plan) <= left_ns
        return large or self._chance(self.bench.trial_ns(plan)) >= LIKELY or self.ends_at_best(plan)

    def ends_at_best(self, plan: Plan) -> bool:
        """Whether a trial ends in time if it saves what it promises, and what is only assumed of it turns out short."""
        end_ns = self.bench.final_ns(held=True, runs=1) if self.kept else 0
        return self._refused(self.bench.trial_ns(plan, at_best=True), end_ns) is None

    @property
    def bounded(self) -> bool:
        """Whether there is a budget at all."""
        return self.deadline.left_ns is not None

    def has_time_for_each(self, plans: Sequence[Plan]) -> bool:
        """Whether all of these trials fit, one after the other."""
        held = all(self._covers(plan.fixer) for plan in plans)
        return self._refused(sum(map(self.bench.trial_ns, plans)), self.bench.final_ns(held=held, runs=1)) is None

    def refused_check(self) -> str | None:
        """Why there is no time for one more leave-one-out check; None where there is."""
        # What is left out leaves another whole, of which no run was compared.
        return self._refused(self.bench.check_ns(), self.bench.final_ns(held=False, rerun=True))

    def refused_drop(self) -> str | None:
        """Why there is no time to hold the numbers of the others against the original's without a fix that is kept;
        None where there is, or where those of the whole are to be looked at anyway."""
        if not self.held:
            return None
        needed_ns = self.bench.final_ns(held=False, runs=1, rerun=True) - self.bench.final_ns(held=True, runs=1)
        return self._refused(needed_ns, self.bench.final_ns(held=True, runs=1))

    def _refused(self, needed_ns: int, end_ns: int) -> str | None:
        left_ns = self.deadline.left_ns
        if left_ns is None:
            return None
        if left_ns == 0:
            return OUT_OF_BUDGET
        spare_ns = max(0, left_ns - end_ns)
        if needed_ns <= spare_ns:
            return None
        rest = f"only {format_ns(spare_ns)}" if spare_ns else "no time"
        ends = f", the last runs {format_ns(end_ns)}" if end_ns else ""
        return f"the budget leaves {rest} before the last runs (this would take about {format_ns(needed_ns)}{ends})"


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of `count` places in even distances, the ends among them; of one, the first, which is the cheapest."""
    if wanted >= count:
        return list(range(count))
    if wanted <= 1:
        return [0]
    return [round(at * (count - 1) / (wanted - 1)) for at in range(wanted)]
