"""How long turns and last runs will take, told by those before. Pure: fed with measurements, asked for estimates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diagnose.model import Gate
from diagnose.trial.ab.periodic_steps import steps_to_see
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison
from diagnose.trial.gates.trajectory import LEAST_SEEDS
from diagnose.trial.schedule import LONG_STEP_NS, Schedule
from diagnose.trial.whole_run.gate import FULL_NS, SHORT_NS
from diagnose.units import NS_PER_S
from diagnose.verdict import LARGE_PROMISE, LEAST_PAIRS

FIRST_COMPILE_NS = 55 * NS_PER_S
"""The time to compile a training step, where none has been compiled yet; at the upper end, since a trial that is cut
short shows nothing: for a GPT of twelve layers inductor took 18 to 23 s beside an H200, and 29 to 47 s on other
hosts with as many cores; for the two networks of a GAN more than 42 s."""
LEAST_COMPILE_NS = 5 * NS_PER_S
"""The least time that it takes: one function, with the start of the compiler's own processes."""
WARM_SHARE = 0.25
"""The share of the time that compiling adds to a start which a start adds that finds everything compiled, until this
session has seen one: the program is traced again, and what was compiled is looked up."""
WINDOW_NS = 4 * NS_PER_S
"""The time to begin, end and write one profiler window, where none has been seen: as long as it took for a GPT whose
window holds some ten thousand events."""
FINAL_BLOCKS = 5
"""The length of a last run alone, in blocks of a trial."""
_MOST_SLACK = 3.0  # times what is expected; chosen, not measured
_OF_ITS_OWN = {Gate.BITWISE: 1, Gate.ROUNDING: 1, Gate.TRAINING: LEAST_SEEDS + 1}
"""Processes that a gate needs of the patched program: its first steps, and a trajectory under each seed."""


@dataclass
class CostModel:
    """The durations of one program's trials so far, in ns; zero is not known yet."""

    schedule: Schedule
    start_ns: int = 0
    """The time from the start of a process to the end of its warm-up: that of the newest original."""
    step_ns: int = 0
    held_steps: int = 0
    """Steps of a block of the newest original, where fewer do not hold what recurs in it."""
    first_start_ns: int = 0
    """The time of that start of the program as found, which runs once more in the end."""
    first_step_ns: int = 0
    """The step of the program as found: of its trials, once there is one, else as it was watched."""
    is_as_found: bool = True
    """Whether no fix is kept yet."""
    window_ns: int = 0
    """The time to write a profiler window and all that goes with it: first as the program was watched, then as the
    newest trial took."""
    compile_ns: int = 0
    """How much longer the start of a program that compiles was, at most; above zero once it was seen, even of one
    that compiles no less at every start."""
    rewarm_ns: int = 0
    """How much longer a later start was, which found everything compiled."""
    gates_ns: dict[Gate, int] = field(default_factory=dict)
    """The numbers of one more patched program, of each kind: what it is held against has been captured by then."""
    whole_runs_ns: int = 0
    """Whole runs of one more patched program, beside those of the original that were there."""
    owes_whole_runs: bool = False
    """Whether the whole runs of a kept fix were put off until the end."""
    alternates: bool = False
    """Two do not fit side by side: processes come one after the other."""
    ahead: bool = False
    """Two generations start together."""
    apart: bool = False
    """Whether each of the two sides starts only once the other rests."""
    slack: float = 1.0
    """The factor by which the last comparison took longer than its parts explain."""

    def __post_init__(self) -> None:
        self.first_start_ns, self.first_step_ns = self.start_ns, self.step_ns

    def saw(self, found: Comparison, took_ns: int, *, compiles: bool = False) -> None:
        """Learn from a comparison that took `took_ns`."""
        originals, patched = found.starts_ns[ORIGINAL], found.starts_ns[PATCHED]
        if originals:
            # Later starts of a program that compiles itself find compiled what the first one compiled.
            self.start_ns = originals[-1] if compiles else max(originals)
        if compiles and patched:
            self.compile_ns = max(1, self.compile_ns, max([*originals, *patched]) - self.start_ns)
        if compiles and len(patched) > 1:
            self.rewarm_ns = max(0, patched[-1] - self.start_ns)
        if found.step_ns > 0:
            self.step_ns = found.step_ns
        self.held_steps = max(self.held_steps, found.held_steps)
        self.first_start_ns = self.first_start_ns or self.start_ns
        if not self.first_step_ns or (self.is_as_found and found.pairs):
            self.first_step_ns = self.step_ns
        if found.pairs:
            self.alternates, self.apart = found.alternated, found.apart
        if found.generations > 1:
            self.ahead = found.ahead
        if found.windows_taken:
            steps_ns = self._window_steps * found.step_ns
            self.window_ns = max(1, found.windows_ns // found.windows_taken - steps_ns)
        if len(found.pairs) >= self._clear_pairs and not compiles:
            explained_ns = self._turns_ns(found.generations, len(found.pairs)) + found.windows_ns
            self.slack = min(_MOST_SLACK, max(1.0, took_ns / max(1, explained_ns)))

    @property
    def first_step_after_ns(self) -> int:
        """Return the time from the start of a process to the first step that a capture can begin with, in ns."""
        return max(0, self.start_ns - self.schedule.warm_up(self.step_ns) * self.step_ns)

    @property
    def warm_ns(self) -> int:
        """By how much the start of a program that compiles is longer where all is compiled already."""
        return self.rewarm_ns or round(WARM_SHARE * self.compiling_ns())

    def compiling_ns(self, *, at_best: bool = False) -> int:
        """Return by how much the first start of a program that compiles is longer."""
        return self.compile_ns or (LEAST_COMPILE_NS if at_best else FIRST_COMPILE_NS)

    def grew(self, found: Comparison) -> None:
        """The patched program of a comparison is what the next trials start from."""
        self.is_as_found = False
        if found.starts_ns[PATCHED]:
            self.start_ns = found.starts_ns[PATCHED][-1]  # later starts find compiled what the first one compiled
        if found.saving is not None:
            self.step_ns = round(found.step_ns * (1 - found.saving.estimate))

    def if_kept(self, found: Comparison) -> CostModel:
        """The costs as they will be if the patched program of a comparison is kept."""
        later = replace(self)
        later.grew(found)
        return later

    def saw_gate(self, gate: Gate, took_ns: int, processes: int) -> None:
        """Learn from a look at the numbers, for which so many processes ran."""
        if processes:
            self.gates_ns[gate] = took_ns * min(processes, _OF_ITS_OWN[gate]) // processes

    @property
    def next_whole_runs_ns(self) -> int:
        """Return the expected time of the next whole runs, in ns: that of the last ones, or at most a full one, a
        shortened one, and one that is left.
        """
        return self.whole_runs_ns or 3 * self.first_start_ns + FULL_NS + 2 * SHORT_NS

    def saw_whole_runs(self, took_ns: int) -> None:
        """Learn from whole runs; the first also had to look at the original."""
        self.whole_runs_ns = min(self.whole_runs_ns, took_ns) if self.whole_runs_ns else took_ns

    def trial_ns(
        self,
        settings: int,
        *,
        compiles: bool = False,
        windows: int = 2,
        at_best: bool = False,
        promised: float = 0.0,
        saved: float = 0.0,
    ) -> int:
        """A trial up to its gate: the choice between settings, the turns, and so many profiler windows.

        `at_best`: if what nothing in this session has shown yet turns out short. `promised`: the share that it is
        predicted to save. `saved`: the share by which the patched program's steps are counted on to be shorter.
        """
        more_ns = self.compiling_ns(at_best=at_best) if compiles and self.start_ns else 0
        if compiles and self.ahead:
            more_ns += self.start_ns  # what one process has to compile, the next waits for
        sweep_ns = 0
        if settings > 1:
            one_ns = self._turns_ns(1, self.schedule.sweep_pairs) + more_ns
            sweep_ns = (settings - 1) * round(self.slack * one_ns)
        # Where each pair takes a start or two, to count more of them than a sure saving takes would give up too much.
        sure = self.alternates and promised >= LARGE_PROMISE
        return sweep_ns + self.check_ns(saved, sure=sure) + round(self.slack * self._windows_ns(windows)) + more_ns

    def check_ns(self, saved: float = 0.0, *, sure: bool = False) -> int:
        """The turns alone, as in a leave-one-out check: as many as a clear answer takes, which most answers are. One
        side's steps are shorter by the share that is `saved`; a large one, or one that is `sure` for another reason, is
        shown by the first processes.

        What is not clear takes longer, and ends with the budget.
        """
        if sure or saved >= LARGE_PROMISE:
            return round(self.slack * self._turns_ns(1, LEAST_PAIRS, saved, sure=True))
        return round(self.slack * self._turns_ns(self.schedule.generations, self._clear_pairs, saved))

    def least_ns(self, saved: float = 0.0, *, compiles: bool = False) -> int:
        """The start of both processes and one pair: what takes less shows nothing."""
        if not self.start_ns:
            return 0
        compiling_ns = self.compiling_ns(at_best=True) if compiles else 0
        times = 2 if self.alternates else 1  # starts follow each other, and each has the blocks of two pairs
        return times * (self.start_ns + round(self._block_ns * (2 - saved))) + compiling_ns

    def final_ns(self, *, held: bool = False, runs: int | None = None, rerun: bool = False) -> int:
        """The last runs, all or so many, and before them the numbers of the whole stack, unless those are `held`, and
        the whole runs that were put off; with `rerun` also those that were made, once more.
        """
        numbers_ns = 0 if held else max(self.gates_ns.values(), default=2 * self.start_ns)
        last_ns = self.last_runs_ns(runs)
        # Whole runs leave the last runs half as much again as those are expected to take.
        owed = self.owes_whole_runs or (rerun and self.whole_runs_ns > 0)
        return last_ns + numbers_ns + (self.next_whole_runs_ns + last_ns // 2 if owed else 0)

    def last_runs_ns(self, runs: int | None = None) -> int:
        """The last runs of the original and of the patched program alone; `runs` of each, or all."""
        starts_ns = self.first_start_ns, self.start_ns
        start_ns = sum(starts_ns) if self.alternates else max(starts_ns)  # where both fit, they start at once
        steps = self.final_steps + self.schedule.drops(self.first_step_ns)
        return (runs or self.schedule.final_runs) * (start_ns + steps * (self.first_step_ns + self.step_ns))

    @property
    def final_steps(self) -> int:
        """Return the steps of a last run that are timed: several blocks, and no fewer than hold what recurs in them."""
        return max(self.held_steps, FINAL_BLOCKS * self.schedule.block_steps(self.first_step_ns))

    @property
    def _clear_pairs(self) -> int:
        """After how many pairs, over all generations, a clear answer is accepted."""
        return min(self.schedule.pairs, self.schedule.generations * self.schedule.screened_pairs(self.step_ns))

    @property
    def _block_ns(self) -> int:
        steps = max(self.held_steps, self.schedule.block_steps(self.step_ns))
        return (steps + self.schedule.drops(self.step_ns)) * self.step_ns

    def _windows_ns(self, count: int) -> int:
        """Return the time of so many windows, one of each side at most."""
        return count * (self._window_steps * self.step_ns + (self.window_ns or WINDOW_NS)) if self.start_ns else 0

    @property
    def _window_steps(self) -> int:
        return max(self.schedule.trace_steps, steps_to_see(self.held_steps)) + self.schedule.drops(self.step_ns)

    def _turns_ns(self, generations: int, pairs: int, saved: float = 0.0, *, sure: bool = False) -> int:
        block_ns = round(self._block_ns * (1 - saved / 2))  # of both sides on average
        if self.alternates:
            pairs = max(LEAST_PAIRS, min(pairs, self.schedule.pairs // 2))
            generations = pairs // self.schedule.alternating_pairs
            starts = generations + 1 if sure else 2 * generations  # generations of a sure saving share processes
            return starts * self.start_ns + 2 * pairs * block_ns
        starts = 1 if self.ahead else generations * (2 if self.apart else 1)
        settling = 1 if self.step_ns >= LONG_STEP_NS else 2 * generations
        return starts * self.start_ns + (settling + 2 * pairs) * block_ns
