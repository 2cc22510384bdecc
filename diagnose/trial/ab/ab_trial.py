"""Two arms against each other: blocks in ABBA order over generations of fresh processes.

Knows nothing of processes: an arm is anything that can be made ready, run a block, trace a window and be closed, so
that the order of turns is tested with arms whose clocks are made up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from diagnose.trial.ab.aa_control import MOST_OF_BUDGET
from diagnose.trial.ab.arm_protocol import ArmProtocol, OnPair, Starter
from diagnose.trial.ab.periodic_steps import Seen, steps_to_see
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison
from diagnose.trial.ab.sequential import SequentialStopping
from diagnose.trial.ab.side_failure import SideFailure
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble
from diagnose.trial.process.capacity import fits_twice
from diagnose.trial.schedule import LONG_STEP_NS, Deadline, Schedule
from diagnose.verdict import LEAST_PAIRS, LEAST_SAVING, Pair, estimate

Answer = TypeVar("Answer")


def never() -> bool:
    """Nobody leaves the trial."""
    return False


def nothing() -> None:
    """Nothing starts beside a duel, and nothing is waited for."""


@dataclass(frozen=True)
class ABTrial:
    """How two sides are compared."""

    schedule: Schedule
    deadline: Deadline
    resolution: float | None = None
    """Of the machine; None while it is being measured: then nothing stops early."""
    enough: float = LEAST_SAVING
    """The resolution to reach, while it is being measured."""
    needed: float | None = None
    """What a saving must exceed, where a finer resolution may yet be measured."""
    worth: float = 0.0
    """What is tried has to be able to save this much, where time is counted."""
    patience: Deadline | None = None
    """After this, as many pairs of each generation as are asked for a first look have to do."""
    fits: bool | None = None
    """Whether both arms fit side by side, where an earlier duel has seen it."""
    least_steps: int = 0
    """Of a block, where an earlier duel has seen that fewer do not hold what recurs."""
    control: bool = False
    """Both sides are the original."""
    mortal: bool = False
    """The program is known to run out of memory by itself: a side that does is not tried again alone."""
    on_pair: OnPair | None = None
    trace: bool = True
    window: Sequence[Path] = ()
    """Profiler windows of the original from an earlier duel; where there are none, it has one in this."""
    ahead: bool = False
    """Whether there is room for the next generation's processes to start beside the first's, and rest meanwhile."""
    apart: bool = False
    """Whether an arm starts once the one before it rests, as two would keep each other from the cores."""
    compiles: bool = False
    """Whether the patched program compiles what nothing before it has: then the next generation starts once that is
    done."""
    reassures: bool = False
    """The saving was shown before: one generation that shows it again is enough."""
    beside: Callable[[], None] = nothing
    """Starts what will be needed later, where there is room: called once, while the first generation starts."""
    rest: Callable[[], None] = nothing
    """Waits until nothing of that goes on: called before anything is measured."""
    clear: Callable[[str], bool] = lambda _why: False
    """Ends all of that for such a reason, and starts no more; whether there was any."""
    skipped: Callable[[], bool] = never
    """Whether the user has left this trial: asked between blocks, until it is decided."""
    start_limit_ns: int | None = None
    """Instead of the schedule's, once it is known how long a start takes."""

    def run(self, original: Starter, patched: Starter) -> Comparison:
        """Compare the two. Never raises ArmFailed: what went wrong is in the answer."""
        return _Run(self, (original, patched)).all_generations()


class _Run:
    def __init__(self, duel: ABTrial, starters: tuple[Starter, Starter]) -> None:
        self.duel = duel
        self.schedule = duel.schedule
        self.starters = starters
        self.stopping = SequentialStopping(
            duel.schedule.looks, duel.resolution, duel.enough, duel.needed, duel.reassures, duel.worth
        )
        self.found = Comparison(traces=(list(duel.window), []), apart=duel.apart)
        self.patience = duel.patience or Deadline()
        self.blocks: tuple[list[Block], list[Block]] = ([], [])
        self.seen = Seen()  # of the original
        self.started = 0
        self.measured = False  # any block, be it one that settles an arm
        self.fits = duel.fits
        self.ahead = duel.ahead and duel.schedule.generations > 1
        self.roomy = True
        """Memory has not run out beside what started early."""
        self.coming: dict[int, ArmProtocol] = {}
        """The arms of the next generation, warmed up."""
        self.held = contextlib.ExitStack()
        """Closes those."""
        self.limits_ns: dict[int, int] = {}
        """Of starts, by the arm's id: arms that start together have the same time, whichever is waited for first."""
        self.hung_start = False
        """A process hung before it was ready: once is bad luck (a fork beside a thread), twice is a failure."""

    def all_generations(self) -> Comparison:
        with self.held:
            self.run_generations()
        self.found.sum_up(*self.blocks)
        return self.found

    def run_generations(self) -> None:
        most = self.schedule.generations + self.schedule.extra_generations
        for generation in range(most):
            before, hung, roomy = len(self.found.pairs), self.hung_start, self.roomy
            began_ns = self.duel.deadline.clock()
            if self.fits is False:
                self.alternate()
            else:
                self.generation(generation)
            pairs = self.found.pairs
            enough = len(pairs) >= self.schedule.pairs or self.patience.passed or self.stopping.settled(pairs)
            if (self.found.generations >= self.schedule.generations and enough) or self.over or self.found.alternated:
                break
            if self.is_dear(self.duel.deadline.clock() - began_ns):
                break
            if (self.hung_start and not hung) or (roomy and not self.roomy and len(self.found.pairs) == before):
                continue
            if len(self.found.pairs) == before and self.fits is not False and not self.shrink():
                break

    def is_dear(self, generation_ns: int) -> bool:
        """Whether another generation of a control would take more of a budget than it is worth to those after it."""
        left_ns = self.duel.deadline.left_ns
        if left_ns is None or self.coming or not self.duel.control or len(self.found.pairs) < LEAST_PAIRS:
            return False
        return MOST_OF_BUDGET * generation_ns > left_ns

    @property
    def over(self) -> bool:
        self.found.skipped = self.found.skipped or (not self.found.over and self.duel.skipped())
        self.found.out_of_time = self.found.out_of_time or self.duel.deadline.passed
        return self.found.over

    def generation(self, number: int) -> None:
        """Fresh processes, started in swapped order every other time, then turns until there are enough pairs."""
        order = (ORIGINAL, PATCHED) if number % 2 == 0 else (PATCHED, ORIGINAL)
        with contextlib.ExitStack() as stack:
            try:
                arms = self.come(stack) or self.start_both(order, stack)
                if arms is None:
                    return
                self.settle(arms)
                # A program that is known to end early would end before a window at the end of its turns.
                if self.found.ended_after is not None:
                    self.trace_both(arms)
                self.take_turns(arms, number)
                self.trace_both(arms)
            except SideFailure as failure:
                self.note(failure)
                self.drop_coming()

    def start_both(self, order: tuple[int, int], stack: contextlib.ExitStack) -> tuple[ArmProtocol, ArmProtocol] | None:
        """Both arms after their warm-up, resting; None when they turn out not to fit side by side."""
        arms: dict[int, ArmProtocol] = {}
        if self.fits and not self.duel.apart:
            arms = {side: self.start(side, stack) for side in order}
            if not self.found.pairs:
                if not self.duel.compiles:
                    self.start_next(order)
                self.duel.beside()
        for side in order:
            if side not in arms:
                arms[side] = self.start(side, stack)
            ready = self.ready(side, arms[side])
            if side == ORIGINAL:
                self.found.memory = ready.memory
                self.found.step_ns = ready.step_ns
            if self.fits is None:
                self.fits = fits_twice(ready.memory)
                if self.fits is False:
                    return None
        if self.fits and self.duel.compiles and not self.found.pairs:
            self.start_next(order)  # what the first has compiled is there for the others
        self.fits = True
        self.ready_ahead()
        self.duel.rest()
        return arms[ORIGINAL], arms[PATCHED]

    def start_next(self, order: tuple[int, int]) -> None:
        """The next generation, where there is room."""
        if self.ahead:
            self.coming = {side: self.start(side, self.held) for side in reversed(order)}

    def ready_ahead(self) -> None:
        """Let the next generation warm up before anything is measured; whatever goes wrong, it starts again later."""
        try:
            for side, arm in self.coming.items():
                self.ready(side, arm)
        except SideFailure:
            self.ahead = self.roomy = False
            self.drop_coming()

    def drop_coming(self) -> None:
        """The next generation starts when it is its turn."""
        self.coming = {}
        self.held.close()

    def come(self, stack: contextlib.ExitStack) -> tuple[ArmProtocol, ArmProtocol] | None:
        """The arms that were started ahead, if there are any."""
        arms, self.coming = self.coming, {}
        stack.enter_context(self.held.pop_all())
        self.found.ahead = self.found.ahead or bool(arms)
        return (arms[ORIGINAL], arms[PATCHED]) if arms else None

    def start(self, side: int, stack: contextlib.ExitStack) -> ArmProtocol:
        limit_ns = self.duel.deadline.half_ns(self.usual_limit_ns)
        arm = self.starters[side](self.started)
        self.limits_ns[id(arm)] = limit_ns
        self.started += 1
        stack.callback(arm.close)
        return arm

    @property
    def usual_limit_ns(self) -> int:
        """The time limit of a start for which there is time enough."""
        return self.duel.start_limit_ns or self.schedule.start_limit_ns

    def ready(self, side: int, arm: ArmProtocol) -> Ready:
        limit = self.limits_ns[id(arm)]
        try:
            ready = self.call(side, lambda: arm.ready(limit))
        except SideFailure as failure:
            failure.starting, failure.cut_short = True, limit < self.usual_limit_ns
            raise
        self.found.starts_ns[side].append(ready.started_ns)
        self.found.left = ready.left if side == PATCHED else self.found.left
        return ready

    def settle(self, arms: Sequence[ArmProtocol]) -> None:
        """One unmeasured block each, undisturbed by the other's start; the original's sets the length of blocks.

        Where steps are long, that is what it is for: the step that heads each block is enough to recover.
        """
        for side in (ORIGINAL, PATCHED):
            if self.found.steps and self.found.step_ns >= LONG_STEP_NS:
                return
            known = self.schedule.block_steps(self.found.step_ns) if self.found.step_ns > 0 else 0
            steps = self.found.steps or min(self.schedule.least_steps, known or self.schedule.least_steps)
            block = self.block(side, arms[side], steps)
            if not self.found.steps:
                self.found.step_ns = round(block.mean_ns)
                self.found.steps = max(self.duel.least_steps, self.schedule.block_steps(self.found.step_ns))

    def take_turns(self, arms: Sequence[ArmProtocol], generation: int) -> None:
        long = self.found.step_ns >= LONG_STEP_NS and not self.duel.reassures
        screened = self.schedule.screened_pairs(self.found.step_ns if long else 0)
        left = self.schedule.generations - self.found.generations
        last = left <= 1
        most = max(
            self.schedule.pairs_per_generation, self.schedule.pairs - len(self.found.pairs) if long or last else 0
        )
        patience = self.patience.part(left)
        turn = 0
        while turn < most and not self.over:
            forward = len(self.found.pairs) % 2 == 0
            blocks: dict[int, Block] = {}
            for side in (ORIGINAL, PATCHED) if forward else (PATCHED, ORIGINAL):
                blocks[side] = self.block(side, arms[side], self.found.steps)
            self.add_pair(generation, blocks)
            if self.duel.skipped():
                continue  # which ends it, whatever these pairs would have shown
            turn = turn + 1 if not self.lengthen() else 0
            if turn >= screened and patience.passed:
                return
            if self.is_sure(turn, screened):
                self.found.sure = True
                return
            if turn == screened and long and not last and self.stopping.may_be_sure(self.found.pairs):
                screened = LEAST_PAIRS  # a few more take less time than other processes
                continue
            if turn == screened and (self.stopping.settled(self.found.pairs) or (long and not last)):
                self.found.reassured = self.duel.reassures
                return  # to the next generation, if this is not the last
            if turn == screened and self.stopping.fruitless(self.found.pairs):
                self.found.stopped_early = self.found.stopped_early or last
                return

    def is_sure(self, turn: int, screened: int) -> bool:
        """Whether the first processes alone have shown a saving that is larger than their luck."""
        asked = turn >= screened and (turn - screened) % self.schedule.sure_every == 0
        return asked and self.found.generations == 1 and self.stopping.sure(self.found.pairs)

    def lengthen(self) -> bool:
        """Begin anew with longer blocks, if these do not hold what recurs in the original, and there is time for it;
        not after a generation, nor once the program was seen to end before it has many blocks."""
        if self.found.generations > 1 or self.found.ended_after is not None:
            return False
        steps = self.seen.longer_than(self.found.steps, self.schedule.longest_ns(self.duel.deadline.left_ns))
        if steps:
            self.found.begin_anew(steps)
            self.blocks = ([], [])
        return steps > 0

    def alternate(self) -> None:
        """Where both do not fit: a process, warmed up, runs one long block and ends; each pair is a generation."""
        self.found.alternated = True
        wanted = max(LEAST_PAIRS, self.schedule.pairs // 2)
        for pair in range(wanted):
            blocks: dict[int, Block] = {}
            for side in (ORIGINAL, PATCHED) if pair % 2 == 0 else (PATCHED, ORIGINAL):
                if self.over or (not blocks and pair >= LEAST_PAIRS and self.patience.passed):
                    return
                with contextlib.ExitStack() as stack:
                    try:
                        blocks[side] = self.alone(side, stack, last=pair == wanted - 1)
                    except SideFailure as failure:
                        self.note(failure)
                        return
            # Numbered apart from generations that took turns, should memory have run out only after some of those.
            self.add_pair(_ALTERNATING + pair, blocks)

    def alone(self, side: int, stack: contextlib.ExitStack, *, last: bool) -> Block:
        arm = self.start(side, stack)
        ready = self.ready(side, arm)
        if side == ORIGINAL and self.found.memory is None:
            self.found.memory = ready.memory
        if not self.found.steps:
            self.found.step_ns = ready.step_ns
            self.found.steps = max(self.duel.least_steps, 2 * self.schedule.block_steps(ready.step_ns))
        block = self.block(side, arm, self.found.steps)
        if last and self.duel.trace and not self.found.traces[side]:
            self.trace_one(side, arm)
        return block

    def add_pair(self, generation: int, blocks: dict[int, Block]) -> None:
        for side in (ORIGINAL, PATCHED):
            self.blocks[side].append(blocks[side])
        pairs = self.found.pairs
        pairs.append(Pair(generation, blocks[ORIGINAL].mean_ns, blocks[PATCHED].mean_ns))
        self.found.generations = len({pair.generation for pair in pairs})
        if self.duel.on_pair is not None:
            self.duel.on_pair(len(pairs) - 1, pairs[-1], estimate(pairs) if len(pairs) >= LEAST_PAIRS else None)
        if self.schedule.looks_after(len(pairs)):
            self.found.stopped_early = self.stopping.hopeless(pairs)

    def block(self, side: int, arm: ArmProtocol, steps: int) -> Block:
        # A warm-up may have lived on what a loader had in stock: only a block tells how long a step may take.
        usual = self.schedule.block_limit_ns(steps, self.found.step_ns)
        limit = self.duel.deadline.limit_ns(usual if self.measured else max(usual, self.schedule.start_limit_ns))
        block = self.call(side, lambda: arm.run(steps, self.schedule.drops(self.found.step_ns), limit))
        self.measured = True
        if side == ORIGINAL or self.duel.control:
            self.seen.blocks.append(block)
        return block

    def trace_both(self, arms: Sequence[ArmProtocol]) -> None:
        if self.duel.trace and (self.found.sure or not self.over) and not all(self.found.traces):
            for side in (ORIGINAL, PATCHED):
                if not self.found.traces[side]:
                    self.trace_one(side, arms[side])

    def trace_one(self, side: int, arm: ArmProtocol) -> None:
        # Writing a trace takes its time: the limit is that of a start.
        limit, began_ns = self.duel.deadline.limit_ns(self.schedule.start_limit_ns), self.duel.deadline.clock()
        steps = max(self.schedule.trace_steps, steps_to_see(self.found.held_steps or self.duel.least_steps))
        paths = self.call(side, lambda: arm.trace(steps, self.schedule.drops(self.found.step_ns), limit))
        self.found.windows_taken += 1
        self.found.windows_ns += self.duel.deadline.clock() - began_ns
        self.found.traces = (paths, self.found.traces[1]) if side == ORIGINAL else (self.found.traces[0], paths)

    def call(self, side: int, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except ArmFailed as failure:
            raise SideFailure(side, failure) from failure

    def note(self, failure: SideFailure) -> None:
        """An early end only closes the generation; a lack of memory beside the other arm is tried again alone."""
        trouble, crowd = failure.reason.trouble, failure.crowd(control=self.duel.control)
        if trouble is Trouble.ENDED:
            self.found.ended_after = failure.reason.steps
        elif crowd is not None and (self.duel.clear(crowd) or self.coming):
            self.ahead = self.roomy = False
        elif trouble is Trouble.OUT_OF_MEMORY and not (self.found.alternated or self.duel.mortal):
            self.fits = False
            self.found.crowded = True
        elif trouble is Trouble.HUNG and (self.duel.deadline.passed or failure.cut_short):
            self.found.out_of_time = True
        elif trouble is Trouble.HUNG and failure.starting and not self.hung_start and not self.found.alternated:
            self.hung_start = True
        else:
            self.found.failed = (failure.side, failure.reason)

    def shrink(self) -> bool:
        """After a generation without a pair: shorter blocks, if they can be."""
        if self.found.steps > self.schedule.least_steps:
            self.found.steps, self.found.held_steps = self.schedule.least_steps, 0
            return True
        return False


_ALTERNATING = 1_000  # added to the number of such a pair, above all others
