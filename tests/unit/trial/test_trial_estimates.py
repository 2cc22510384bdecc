"""What a look at the numbers will take, counted by the processes that it needs and how they fit side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from diagnose.fixer import Fixer
from diagnose.model import Gate
from diagnose.program import Program
from diagnose.trial.ab.result import Comparison
from diagnose.trial.gates.capture_plan import SEEDS, Part, for_gate
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.planning.estimates import Estimates, Plan
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.process.makespan import Process, makespan_ns
from diagnose.trial.schedule import Schedule
from diagnose.units import NS_PER_MS, NS_PER_S

GIB = 1 << 30
PROGRAM = Program(("train.py",), "script", Path("/a/train.py"), Path("/a"), Path("/a"))
PATCHED, HALFWAY = (replace(PROGRAM, root=Path(name)) for name in ("/b", "/c"))
ROOMY = Memory(GIB, GIB, 99 * GIB, 100 * GIB, 1)
TIGHT = Memory(40 * GIB, 40 * GIB, 60 * GIB, 100 * GIB, 1)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(16)))


def test_starts_go_on_side_by_side_and_steps_one_after_the_other() -> None:
    three = [Process(1.3, 10, 2)] * 3
    assert makespan_ns(three, ROOMY) == 10 + 3 * 2
    assert makespan_ns([], ROOMY) == 0


def test_what_does_not_fit_waits_for_the_end_of_another() -> None:
    three = [Process(1.1, 10, 2)] * 3
    assert makespan_ns(three, TIGHT) == 10 + 2 + 10 + 2  # the third starts once the first of two has ended
    large = [Process(2.0, 10, 2), Process(2.0, 10, 2), Process(0.4, 10, 2)]
    assert makespan_ns(large, TIGHT) == 2 * (10 + 2)  # and the small one beside the first of the others
    assert makespan_ns([Process(9.0, 10, 2)] * 2, TIGHT) == 2 * (10 + 2)  # one runs, whatever it needs


def names(wanted: object) -> list[tuple[str, str]]:
    return sorted((str(one.program.root), one.name) for one in cast("list", wanted))  # type: ignore[type-arg]


def test_what_each_gate_needs_is_each_process_once() -> None:
    assert names(for_gate(Gate.BITWISE, PROGRAM, PATCHED, None, 50)) == [("/a", "bits"), ("/b", "bits")]
    rounding = [("/a", "float64"), ("/a", "values"), ("/b", "values")]
    assert names(for_gate(Gate.ROUNDING, PROGRAM, PATCHED, None, 50)) == rounding
    seeds = [(root, f"seed-{seed}") for root in ("/a", "/b") for seed in range(SEEDS)]
    assert names(for_gate(Gate.TRAINING, PROGRAM, PATCHED, None, 50)) == seeds
    declared = [*rounding, ("/a", "float64-bf16"), *seeds]
    assert names(for_gate(Gate.TRAINING, PROGRAM, PATCHED, "bf16", 50)) == sorted(declared)


def test_a_part_is_held_against_the_original_and_the_training_against_the_part() -> None:
    part = Part(HALFWAY, Gate.ROUNDING, "tf32")
    found = for_gate(Gate.TRAINING, PROGRAM, PATCHED, "bf16", 50, part)
    references = [("/a", name) for name in ("float64", "float64-bf16", "float64-tf32", "values")]
    seeds = [(root, f"seed-{seed}") for root in ("/b", "/c") for seed in range(SEEDS)]
    assert names(found) == sorted([*references, ("/b", "values"), ("/c", "values"), *seeds])


def costs(step_ms: int = 100) -> CostModel:
    found = Comparison(step_ns=step_ms * NS_PER_MS)
    found.starts_ns[0].append(10 * NS_PER_S)
    found.starts_ns[1].append(10 * NS_PER_S)
    known = CostModel(Schedule())
    known.saw(found, 0)
    return known


def fix(gate: Gate, rounds_to: str | None = None) -> Fixer:
    return Fixer("fix", lambda _: None, gate, "compute", rounds_to=rounds_to)


def estimates(known: CostModel, memory: Memory = ROOMY) -> Estimates:
    keeper = Gatekeeper(cast("Workplace", None), 1, memory=memory, step_ns=known.step_ns)
    return Estimates(known, keeper)


def test_of_a_gate_that_was_looked_at_that_look_tells() -> None:
    known = costs()
    before_ns = estimates(known).trial_ns(Plan(fix(Gate.BITWISE)), PROGRAM, compiles=False)
    captures_ns = 9_500 * NS_PER_MS + 2 * 5 * 100 * NS_PER_MS  # five steps of warm-up are no part of a capture
    assert before_ns - known.trial_ns(1) == captures_ns
    known.saw_gate(Gate.BITWISE, 30 * NS_PER_S, 2)
    after_ns = estimates(known).trial_ns(Plan(fix(Gate.BITWISE)), PROGRAM, compiles=False)
    assert after_ns - known.trial_ns(1) == 15 * NS_PER_S


def test_short_steps_make_long_trajectories() -> None:
    """More steps are taken of a program whose steps are short, and all of them count."""
    known = costs(step_ms=20)
    training = estimates(known).trial_ns(Plan(fix(Gate.TRAINING)), PROGRAM, compiles=False)
    assert training - known.trial_ns(1) >= 2 * SEEDS * 200 * 20 * NS_PER_MS


def test_steps_that_are_expected_to_be_shorter_make_shorter_trajectories() -> None:
    known, part = costs(), fix(Gate.ROUNDING)
    slow = Plan(fix(Gate.TRAINING), part=part)
    fast = replace(slow, saved_ns=80 * NS_PER_MS)
    beyond = replace(slow, saved_ns=10**12)
    some = [estimates(known).trial_ns(plan, PROGRAM, compiles=False) for plan in (slow, fast, beyond)]
    assert some[0] - some[1] == 2 * SEEDS * 50 * 80 * NS_PER_MS
    assert some[1] - some[2] == 2 * SEEDS * 50 * 10 * NS_PER_MS  # a tenth of a step is left at least


def test_at_best_what_is_promised_holds_for_the_patched_programs_blocks_and_trajectories() -> None:
    known, plan = costs(), Plan(fix(Gate.TRAINING), promised=0.5)
    likely = estimates(known).trial_ns(plan, PROGRAM, compiles=False)
    at_best = estimates(known).trial_ns(plan, PROGRAM, compiles=False, at_best=True)
    trajectories_ns = SEEDS * 50 * 50 * NS_PER_MS  # those of the original take as long as ever
    assert likely - at_best == known.check_ns() - known.check_ns(0.5) + trajectories_ns


def test_little_memory_makes_a_look_longer() -> None:
    known, plan = costs(), Plan(fix(Gate.ROUNDING, "tf32"))
    roomy, tight = (estimates(known, memory).trial_ns(plan, PROGRAM, compiles=False) for memory in (ROOMY, TIGHT))
    assert tight - roomy >= 2 * known.first_step_after_ns


def test_nothing_is_expected_where_nothing_has_run() -> None:
    assert estimates(CostModel(Schedule())).trial_ns(Plan(fix(Gate.TRAINING)), None, compiles=True) == 0


def test_captures_of_what_compiles_start_later_though_all_is_compiled_by_then() -> None:
    known, plan = costs(), Plan(fix(Gate.BITWISE))
    plain, compiling = (estimates(known).trial_ns(plan, PROGRAM, compiles=one) for one in (False, True))
    turns_ns = known.trial_ns(1, compiles=True) - known.trial_ns(1)
    assert compiling - plain - turns_ns == known.warm_ns


def test_captures_that_start_beside_the_arms_take_their_steps_alone() -> None:
    known, plan = costs(), Plan(fix(Gate.BITWISE))
    asked = estimates(known)
    apart = asked.trial_ns(plan, PROGRAM, compiles=False)
    beside = asked.trial_ns(plan, PROGRAM, compiles=False, beside=[1.2, 1.4, 1.2, 1.4])
    assert apart - beside == known.first_step_after_ns
    full = estimates(known, TIGHT).trial_ns(plan, PROGRAM, compiles=False, beside=[1.2, 1.4])
    assert full == estimates(known, TIGHT).trial_ns(plan, PROGRAM, compiles=False)
