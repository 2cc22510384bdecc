"""How long the next trial will take, told by those before it. Pure: fed with what was measured, asked for estimates."""

from __future__ import annotations

from dataclasses import dataclass, field

from diagnose.model import Gate
from diagnose.trial.duel import ORIGINAL, PATCHED, Comparison
from diagnose.trial.schedule import Schedule
from diagnose.units import NS_PER_S
from diagnose.verdict import LEAST_PAIRS

FIRST_COMPILE_NS = 60 * NS_PER_S
"""What compiling a training step takes, where this session has not seen it yet: models of a few hundred operators take
half a minute to a minute and a half with inductor."""
FINAL_BLOCKS = 5
"""As many steps as this many blocks of a trial are run alone in the end."""
_MOST_SLACK = 3.0


@dataclass
class Costs:
    """What the trials of one program have taken so far. Times are nanoseconds; zero is not known yet."""

    schedule: Schedule
    start_ns: int = 0
    """From the start of a process to the end of its warm-up: that of the newest original."""
    step_ns: int = 0
    compile_ns: int = 0
    """By how much the start of a program that compiles was longer, at most."""
    gates_ns: dict[Gate, int] = field(default_factory=dict)
    """The newest look at a patched program's numbers, of each kind."""
    alternates: bool = False
    """Two do not fit side by side: processes come one after the other."""
    ahead: bool = False
    """Two generations start together."""
    slack: float = 1.0
    """By what factor the last comparison took longer than its parts explain."""

    def saw(self, found: Comparison, took_ns: int, *, compiles: bool = False) -> None:
        """Learn from a comparison that took `took_ns`."""
        originals, patched = found.starts_ns[ORIGINAL], found.starts_ns[PATCHED]
        if originals:
            self.start_ns = max(originals)
        if compiles and patched:
            self.compile_ns = max(self.compile_ns, max(patched) - self.start_ns)
        if found.step_ns > 0:
            self.step_ns = found.step_ns
        if found.pairs:
            self.alternates = found.alternated
        if found.generations > 1:
            self.ahead = found.ahead
        if len(found.pairs) >= self._clear_pairs and not compiles:
            explained_ns = self._turns_ns(found.generations, len(found.pairs))
            self.slack = min(_MOST_SLACK, max(1.0, took_ns / max(1, explained_ns)))

    def saw_gate(self, gate: Gate, took_ns: int) -> None:
        """Learn from a look at the numbers."""
        self.gates_ns[gate] = took_ns

    def trial_ns(self, settings: int, gate: Gate, *, compiles: bool = False) -> int:
        """A whole trial: the choice between settings, the turns, the numbers."""
        more_ns = (self.compile_ns or FIRST_COMPILE_NS) if compiles and self.start_ns else 0
        sweep_ns = 0
        if settings > 1:
            one_ns = self._turns_ns(1, self.schedule.sweep_pairs) + more_ns
            sweep_ns = (settings - 1) * round(self.slack * one_ns)
        return sweep_ns + self.check_ns() + more_ns + self._gate_ns(gate)

    def check_ns(self) -> int:
        """The turns alone, as in a leave-one-out check: as many as a clear answer takes, which most answers are.

        What is not clear takes longer, and ends with the budget.
        """
        return round(self.slack * self._turns_ns(self.schedule.generations, self._clear_pairs))

    def final_ns(self) -> int:
        """The numbers of the whole stack, and the last runs of the original and of the patched program."""
        run_ns = self.start_ns + FINAL_BLOCKS * self._block_ns
        gate_ns = max(self.gates_ns.values(), default=2 * self.start_ns)
        return gate_ns + 2 * self.schedule.final_runs * run_ns

    @property
    def _clear_pairs(self) -> int:
        """After how many pairs, over all generations, a clear answer is accepted."""
        return min(self.schedule.pairs, self.schedule.generations * self.schedule.screen_pairs)

    def _gate_ns(self, gate: Gate) -> int:
        return self.gates_ns.get(gate) or 2 * self.start_ns  # two captures, each a start and a few steps

    @property
    def _block_ns(self) -> int:
        return (self.schedule.block_steps(self.step_ns) + self.schedule.drops(self.step_ns)) * self.step_ns

    def _turns_ns(self, generations: int, pairs: int) -> int:
        if self.alternates:
            return 2 * max(LEAST_PAIRS, self.schedule.pairs // 2) * (self.start_ns + 2 * self._block_ns)
        starts = 1 if self.ahead else generations
        return starts * self.start_ns + 2 * (generations + pairs) * self._block_ns
