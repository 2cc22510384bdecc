"""Where an A/B trial stands: what it was asked, which stage it is in, what it has measured, which arms live."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.trial.ab.arm_protocol import ArmProtocol, OnPair
from diagnose.trial.ab.live_arms import LiveArms, answer_of
from diagnose.trial.ab.periodic_steps import SeenBlocks, steps_to_see
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison, Ending
from diagnose.trial.ab.sequential import SequentialStopping
from diagnose.trial.process.arm import Block, Ready
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.verdict import LEAST_PAIRS, LEAST_SAVING, estimate


class Stage(enum.Enum):
    """A stage of a trial.

    ::

        STARTING ──▶ SETTLING ──▶ TURNS ──▶ WINDOWS ──▶ CLOSING ──▶ ENDED
         ▲ │ └──────────┴───────────┴───────────┴────────▲ │ ▲
         │ └──────────────────────▶ ALTERNATING ◀──────────┤ │
         │                               └─────────────────│─┘
         └─────────────── another generation ──────────────┘

    A trial begins with STARTING, or with ALTERNATING where an earlier one has seen that two arms do not fit side by
    side; where its first arm shows that, STARTING leads there. From every stage of a generation an arm that fails, or
    ends, leads to CLOSING, which alone decides what is next.
    """

    STARTING = "the processes of a generation start and warm up"
    SETTLING = "each arm runs a block that does not count"
    TURNS = "the arms run blocks in ABBA order"
    WINDOWS = "each arm runs a profiler window"
    ALTERNATING = "one process after the other runs its blocks"
    CLOSING = "the processes of the generation have ended"
    ENDED = "nothing more is measured"


FOLLOWS: Mapping[Stage, frozenset[Stage]] = {
    Stage.STARTING: frozenset({Stage.SETTLING, Stage.ALTERNATING, Stage.CLOSING}),
    Stage.SETTLING: frozenset({Stage.TURNS, Stage.CLOSING}),
    Stage.TURNS: frozenset({Stage.WINDOWS, Stage.CLOSING}),
    Stage.WINDOWS: frozenset({Stage.CLOSING}),
    Stage.ALTERNATING: frozenset({Stage.CLOSING}),
    Stage.CLOSING: frozenset({Stage.STARTING, Stage.ALTERNATING, Stage.ENDED}),
    Stage.ENDED: frozenset(),
}
"""The stages that may follow each."""


def never() -> bool:
    """Return False: nobody leaves the trial."""
    return False


def nothing() -> None:
    """Do nothing: nothing starts beside a trial, and nothing is waited for."""


def untold(_side: str) -> None:
    """Do nothing: nobody is told."""


@dataclass(frozen=True)
class ABTrial:
    """How two sides are compared; `ab_trial.compare` does it."""

    schedule: Schedule
    deadline: Deadline
    resolution: float | None = None
    """The machine's resolution; None while it is being measured: then nothing stops early."""
    enough: float = LEAST_SAVING
    """The resolution to reach, while it is being measured."""
    needed: float | None = None
    """The least saving that counts, where a finer resolution may yet be measured."""
    worth: float = 0.0
    """The saving that a fix has to be able to reach, where time is counted."""
    patience: Deadline = field(default_factory=Deadline)
    """The time after which as many pairs of each generation as are asked for a first look have to do."""
    fits: bool | None = None
    """Whether both arms fit side by side, where an earlier trial has seen it."""
    least_steps: int = 0
    """The least number of steps of a block, where an earlier trial has seen that fewer do not hold what recurs."""
    control: bool = False
    """Both sides are the original."""
    mortal: bool = False
    """The program is known to run out of memory by itself: a side that does is not tried again alone."""
    on_pair: OnPair | None = None
    on_window: Callable[[str], None] = untold
    """Told of which side a profiler window begins: writing its trace may take longer than the pairs did."""
    trace: bool = True
    window: Sequence[Path] = ()
    """Profiler windows of the original from an earlier trial; where there are none, it has one in this."""
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
    """The time limit of a start instead of the schedule's, once it is known how long a start takes."""

    @property
    def usual_start_ns(self) -> int:
        """The time limit of a start for which there is time enough."""
        return self.start_limit_ns or self.schedule.start_limit_ns

    @property
    def stopping(self) -> SequentialStopping:
        """The stopping rule: when its pairs say enough."""
        looks = self.schedule.looks
        return SequentialStopping(looks, self.resolution, self.enough, self.needed, self.reassures, self.worth)


@dataclass
class TrialState:
    """Where a trial stands. What it has measured is in `found`, the processes that live are in `arms`."""

    trial: ABTrial
    arms: LiveArms
    found: Comparison
    fits: bool | None
    """Whether both arms fit side by side; None until that is known."""
    generation: int = -1
    began_ns: int = 0
    """The time at which this generation began."""
    pairs_before: int = 0
    """Pairs of earlier generations."""
    again: bool = False
    """Whether what went wrong in this generation will not do so again."""
    sides: tuple[ArmProtocol, ArmProtocol] | None = None
    """The arms of this generation, once they rest after their warm-up."""
    resting: ArmProtocol | None = None
    """The arm that lives on and runs the next block, where arms alternate."""
    crowded: bool = False
    """Arms that started early have failed, or made others fail: no more do."""
    hung: bool = False
    """A process hung before it was ready: once is bad luck (a fork beside a thread), twice is a failure."""
    measured: bool = False
    """A block has ended, be it one that settles an arm."""
    seen: SeenBlocks = field(default_factory=SeenBlocks)
    """Blocks of the original, in which something may recur."""

    @property
    def starts_early(self) -> bool:
        """Whether the next generation starts with the first."""
        return self.trial.ahead and self.trial.schedule.generations > 1 and not self.crowded


def is_over(state: TrialState) -> bool:
    """Whether nothing more is to be measured."""
    if state.found.ending is None and state.trial.skipped():
        state.found.end(Ending.SKIPPED)
    if state.trial.deadline.passed:
        state.found.end(Ending.OUT_OF_TIME)
    return state.found.ending is not None


def wait_until_ready(state: TrialState, side: int, arm: ArmProtocol) -> Ready:
    """Return what an arm says after its warm-up. Raises SideFailure."""
    ready = state.arms.ready(side, arm)
    state.found.starts_ns[side].append(ready.started_ns)
    state.found.left = ready.left if side == PATCHED else state.found.left
    return ready


def add_pair(state: TrialState, generation: int, blocks: Mapping[int, Block]) -> None:
    """Another pair, which may show that what is tried cannot be kept."""
    trial, found = state.trial, state.found
    found.add(generation, blocks)
    count = len(found.pairs)
    if trial.on_pair is not None:
        trial.on_pair(count - 1, found.pairs[-1], estimate(found.pairs) if count >= LEAST_PAIRS else None)
    if trial.schedule.looks_after(count) and trial.stopping.hopeless(found.pairs):
        found.end(Ending.HOPELESS)


def run_block(state: TrialState, side: int, arm: ArmProtocol, steps: int) -> Block:
    """A block of one side. Raises SideFailure."""
    trial, schedule, step_ns = state.trial, state.trial.schedule, state.found.step_ns
    # A warm-up may have lived on what a loader had in stock: only a block tells how long a step may take.
    usual = schedule.block_limit_ns(steps, step_ns)
    limit = trial.deadline.limit_ns(usual if state.measured else max(usual, schedule.start_limit_ns))
    block = answer_of(side, lambda: arm.run(steps, schedule.drops(step_ns), limit))
    state.measured = True
    if side == ORIGINAL or trial.control:
        state.seen.blocks.append(block)
    return block


def trace_missing(state: TrialState, arms: Sequence[ArmProtocol]) -> None:
    """A profiler window of each side that has had none."""
    found = state.found
    if state.trial.trace and (found.ending is Ending.SURE or not is_over(state)):
        for side, arm in enumerate(arms):
            if not found.traces[side]:
                trace_side(state, side, arm)


def trace_side(state: TrialState, side: int, arm: ArmProtocol) -> None:
    """A profiler window of one side. Raises SideFailure."""
    trial, found = state.trial, state.found
    trial.on_window("original" if side == ORIGINAL else "patched")
    # Writing a trace takes its time: the limit is that of a start.
    limit, began_ns = trial.deadline.limit_ns(trial.schedule.start_limit_ns), trial.deadline.clock()
    steps = max(trial.schedule.trace_steps, steps_to_see(found.held_steps or trial.least_steps))
    paths = answer_of(side, lambda: arm.trace(steps, trial.schedule.drops(found.step_ns), limit))
    found.windows_taken += 1
    found.windows_ns += trial.deadline.clock() - began_ns
    found.traces = (paths, found.traces[1]) if side == ORIGINAL else (found.traces[0], paths)
