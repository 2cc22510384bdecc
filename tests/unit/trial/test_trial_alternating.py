"""Arms that do not fit side by side: one process after the other, and when two pairs share one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_arms import SCHEDULE, Machine, turns

from diagnose.trial.ab.result import ORIGINAL, PATCHED, Ending
from diagnose.trial.process.arm import ArmFailed, Trouble
from diagnose.trial.process.capacity import Memory


def test_arms_that_do_not_fit_side_by_side_alternate() -> None:
    machine = Machine(memory=Memory(reserved_bytes=60, free_bytes=40, device_bytes=100, peak_bytes=50))
    found = machine.run(fits=None)
    assert found.alternated
    assert (found.generations, len(found.pairs)) == (2, 4)
    assert turns(machine.diary) == "AABBBBAA"
    assert machine.diary.count("start A") == 2  # the one that showed it runs the first blocks
    assert machine.alive == 0


@pytest.mark.parametrize(("patched_ns", "starts"), [(9.6e6, 4), (5e6, 3)], ids=["small", "beyond all luck"])
def test_arms_that_alternate_share_processes_only_where_their_luck_is_nothing_beside_the_saving(
    patched_ns: float, starts: int
) -> None:
    machine = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else patched_ns)
    found = machine.run(schedule=replace(SCHEDULE, pairs=8), fits=False, resolution=0.01)
    assert (found.generations, len(found.pairs)) == (2, 4)
    assert turns(machine.diary) == "AABBBBAA"
    assert sum(line.startswith("start") for line in machine.diary) == starts
    assert machine.alive == 0


@pytest.mark.parametrize(("patched_ns", "pairs"), [(9.2e6, 4), (9.7e6, 10)], ids=["clear", "small"])
def test_arms_that_alternate_end_with_the_first_generation_after_which_the_answer_is_clear(
    patched_ns: float, pairs: int
) -> None:
    machine = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else patched_ns)
    found = machine.run(schedule=replace(SCHEDULE, pairs=20), fits=False, resolution=0.01)
    assert (len(found.pairs), found.ending) == (pairs, Ending.MEASURED)
    assert machine.diary.count("trace A") == machine.diary.count("trace B") == 1


def test_running_out_of_memory_beside_the_other_arm_is_tried_again_alone() -> None:
    machine = Machine(fails={PATCHED: ArmFailed(Trouble.OUT_OF_MEMORY, "CUDA out of memory")})
    found = machine.run()
    assert found.crowded
    assert found.alternated
    assert found.failed is None
    assert len(found.pairs) >= 4


def test_of_a_program_that_dies_of_memory_by_itself_the_other_arm_is_not_to_blame() -> None:
    machine = Machine(fails={PATCHED: ArmFailed(Trouble.OUT_OF_MEMORY, "CUDA out of memory")})
    found = machine.run(mortal=True)
    assert not found.alternated
    assert found.failed is not None and found.failed[1].trouble is Trouble.OUT_OF_MEMORY
    assert machine.alive == 0
