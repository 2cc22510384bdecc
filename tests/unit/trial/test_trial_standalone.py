"""Programs that run by themselves in the end: what time their starts have."""

from __future__ import annotations

from typing import cast

import pytest

from diagnose.program import Program
from diagnose.trial import standalone
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble, Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.process.oom_progress import OomProgress, Phase
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.standalone import Standalone
from diagnose.units import NS_PER_S

STEP_NS = 100_000_000


class Clock:
    """Moves on while a program is waited for."""

    now_ns = 0
    fails: ArmFailed | None = None
    """What ends a block of steps."""

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()

    class Starting:
        """Takes as many seconds to start as its name says."""

        def __init__(self, _place: object, _program: object, name: str, _warmup: int) -> None:
            self.began_ns, self.takes_ns = made.now_ns, int(name) * NS_PER_S

        def close(self) -> None:
            """Nothing runs."""

        def ready(self, limit_ns: int) -> Ready:
            made.now_ns = max(made.now_ns, self.began_ns + min(limit_ns, self.takes_ns))
            if self.takes_ns > limit_ns:
                raise ArmFailed(Trouble.HUNG, "no answer in time")
            return Ready(5, STEP_NS, Memory(), self.takes_ns)

        def run(self, steps: int, _drop: int, _limit_ns: int) -> Block:
            if made.fails is not None:
                raise made.fails
            return Block(steps, steps * STEP_NS, 0, Memory())

        def __enter__(self) -> Starting:
            return self

        def __exit__(self, *_error: object) -> None:
            self.close()

    monkeypatch.setattr(standalone, "Arm", Starting)
    return made


def steps(clock: Clock, left_s: int, *starts_s: int, together: bool) -> list[int | None]:
    program = cast("Program", None)
    alone = Standalone(cast("Workplace", None), Schedule(), Deadline(left_s * NS_PER_S, clock))
    return alone.steps([(program, str(start)) for start in starts_s], 5, together=together)


def test_programs_that_start_together_have_the_same_time_whichever_is_waited_for_first(clock: Clock) -> None:
    assert steps(clock, 40, 20, 30, together=True) == [STEP_NS, STEP_NS]
    assert clock.now_ns == 30 * NS_PER_S


@pytest.mark.parametrize(("left_s", "second"), [(49, None), (50, STEP_NS)])
def test_programs_that_take_turns_have_what_is_left(clock: Clock, left_s: int, second: int | None) -> None:
    assert steps(clock, left_s, 20, 30, together=False) == [STEP_NS, second]


@pytest.mark.parametrize(("least", "taken"), [(0, 10), (8, 10), (12, 12), (64, 64)])
def test_a_program_runs_for_a_block_of_steps_or_as_many_as_it_has_to_get_through(
    clock: Clock, least: int, taken: int
) -> None:
    seen = Standalone(cast("Workplace", None), Schedule(), Deadline(None, clock)).run(cast("Program", None), "1", least)
    assert seen.steps == taken


def test_of_a_budget_the_steps_to_get_through_take_no_more_than_half_of_what_is_left(clock: Clock) -> None:
    alone = Standalone(cast("Workplace", None), Schedule(), Deadline(21 * NS_PER_S, clock))
    assert alone.run(cast("Program", None), "1", 1_000_000).steps == 5 + 100


@pytest.mark.parametrize(
    ("trouble", "reached"),
    [
        (Trouble.OUT_OF_MEMORY, OomProgress(7, Phase.OPTIMIZER)),
        (Trouble.CRASHED, OomProgress()),
        (Trouble.ENDED, OomProgress()),
    ],
)
def test_a_program_that_runs_out_of_memory_tells_how_far_it_came(
    clock: Clock, trouble: Trouble, reached: OomProgress
) -> None:
    words = '  File "/env/torch/optim/adamw.py", line 232, in step\ntorch.OutOfMemoryError: CUDA out of memory.'
    clock.fails = ArmFailed(trouble, words, 7)
    seen = Standalone(cast("Workplace", None), Schedule(), Deadline(None, clock)).run(cast("Program", None), "1")
    assert seen.reached == reached
    assert (seen.failure is None) is (trouble is Trouble.ENDED)
