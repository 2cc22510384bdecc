"""What is known of one program holds of another with the same bits, and not of one that rounds otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from diagnose.model import Gate
from diagnose.program import Program
from diagnose.trial.gates.capture_plan import Part
from diagnose.trial.gates.captures import Capture, Tensor
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.gates.trajectory import LEAST_SEEDS, Curve
from diagnose.trial.process.arm import Workplace
from diagnose.trial.schedule import Deadline

SEEDS = [f"seed-{seed}" for seed in range(LEAST_SEEDS)]


@dataclass
class Made(Gatekeeper):
    """Its captures are made up: bits by the program's name, losses that only luck tells apart."""

    bits: dict[str, str] = field(default_factory=dict)
    """By program; that of others is their own name."""
    drifts: frozenset[str] = frozenset()
    """Programs whose losses go astray."""
    missing: frozenset[str] = frozenset()
    """Captures that cannot be taken."""
    nondeterministic: frozenset[str] = frozenset()
    """Operators of all programs that torch has in no deterministic form."""
    strays: bool = False
    """Whether rounding moves the gradients of all programs far from every reference."""
    took: list[tuple[str, str]] = field(default_factory=list)

    def _take(self, some: Sequence[Any]) -> None:
        for one in some:
            program = one.program.root.name
            self.took.append((program, one.name))
            sign = -1 if self.strays and one.exact else 1
            taken = self._curve(program, one) if one.of_luck else self._capture(program, sign)
            self._taken[one.key] = "float64 is not known to its kernels" if one.name in self.missing else taken

    def _capture(self, program: str, sign: int) -> Capture:
        bits = self.bits.get(program, program)
        tensors = [Tensor(0, kind, kind, (1,), True, bits, 1) for kind in ("loss", "gradient")]
        values = {(0, *one.key): sign * np.ones(1) for one in tensors}
        return Capture({(0, *one.key): one for one in tensors}, values, nondeterministic=self.nondeterministic)

    def _curve(self, program: str, one: Any) -> Curve:
        luck = np.random.default_rng(one.recipe["seed"]).standard_normal(one.recipe["steps"])
        return Curve(3 + 0.1 * luck + (2 if program in self.drifts else 0))


def keeper(bits: dict[str, str], **more: Any) -> Made:
    return Made(cast("Workplace", None), 1, bits=bits, **more)


def program(name: str) -> Program:
    root = Path("/copies") / name
    return Program(("train.py",), "script", root / "train.py", root, root)


FOUND, STACK, NEXT, LAST = map(program, ("found", "stack", "next", "last"))


def test_what_equals_the_stack_bit_for_bit_has_its_training() -> None:
    made = keeper({"next": "stack", "last": "stack"})
    assert made.check(Gate.TRAINING, FOUND, STACK).passed
    assert made.check(Gate.BITWISE, STACK, NEXT).passed
    assert made.check(Gate.BITWISE, NEXT, LAST).passed  # and what equals that
    before = list(made.took)
    for one in (NEXT, LAST):
        answer = made.check(Gate.TRAINING, FOUND, one)
        assert answer.passed
        assert answer.detail.endswith("as captured of a program that it equals bit for bit")
    assert made.took == before


def test_what_rounds_otherwise_has_a_trajectory_of_its_own() -> None:
    made = keeper({}, drifts=frozenset({"next"}))
    assert made.check(Gate.TRAINING, FOUND, STACK).passed
    assert made.check(Gate.ROUNDING, STACK, NEXT).passed
    answer = made.check(Gate.TRAINING, FOUND, NEXT)
    assert answer.passed is False
    assert {name for root, name in made.took if root == "next"} >= set(SEEDS)
    assert "bit for bit" not in answer.detail


def test_other_bits_and_a_gate_that_failed_lend_nothing() -> None:
    made = keeper({})
    assert made.check(Gate.TRAINING, FOUND, STACK).passed
    made.check(Gate.BITWISE, STACK, NEXT)
    made.check(Gate.TRAINING, FOUND, NEXT)
    assert {name for root, name in made.took if root == "next"} >= set(SEEDS)


def test_the_first_that_compiles_has_a_trajectory_of_its_own() -> None:
    """Its first steps are equal; what compiled code does late shows in its losses only."""
    made = keeper({"next": "stack"}, compiling=frozenset({NEXT.root}))
    assert made.check(Gate.TRAINING, FOUND, STACK).passed
    assert made.check(Gate.BITWISE, STACK, NEXT).passed
    made.check(Gate.TRAINING, FOUND, NEXT)
    assert {name for root, name in made.took if root == "next"} >= set(SEEDS)
    both = keeper({"next": "stack"}, compiling=frozenset({STACK.root, NEXT.root}))
    assert both.check(Gate.TRAINING, FOUND, STACK).passed
    assert both.check(Gate.BITWISE, STACK, NEXT).passed
    assert "bit for bit" in both.check(Gate.TRAINING, FOUND, NEXT).detail


def test_a_program_is_not_held_against_itself() -> None:
    """The stack stands in for the original whose numbers it has, and has the bits of the next: not both at once."""
    made = keeper({"next": "stack"}, drifts=frozenset({"stack", "next"}))
    assert made.check(Gate.ROUNDING, FOUND, STACK).passed
    assert made.check(Gate.TRAINING, FOUND, STACK).passed is False
    assert made.check(Gate.BITWISE, STACK, NEXT).passed
    assert made.check(Gate.TRAINING, FOUND, NEXT).passed is False


@pytest.mark.parametrize("gate", [Gate.BITWISE, Gate.ROUNDING])
def test_first_steps_are_taken_once_of_all_with_the_same_bits(gate: Gate) -> None:
    made = keeper({"next": "found", "stack": "found"})
    assert made.check(Gate.BITWISE, FOUND, STACK).passed
    assert made.check(Gate.BITWISE, STACK, NEXT).passed
    if gate is Gate.ROUNDING:
        assert made.check(gate, FOUND, STACK).passed
    before = list(made.took)
    assert made.check(gate, FOUND, NEXT).passed
    assert made.took == before


def test_other_bits_prove_nothing_of_a_program_that_torch_calls_nondeterministic() -> None:
    """An operator that sums in any order gives the same bits most of the time: two equal runs do not tell."""
    assert keeper({}).check(Gate.BITWISE, FOUND, STACK).passed is False
    answer = keeper({}, nondeterministic=frozenset({"nll_loss2d"})).check(Gate.BITWISE, FOUND, STACK)
    assert (answer.gate, answer.passed) == (Gate.ROUNDING, True)
    assert "the original is not deterministic (nll_loss2d), so rounding was judged" in answer.detail


def test_what_was_captured_is_judged_after_the_time_is_up() -> None:
    now = [0]
    made = keeper({"next": "stack"}, deadline=Deadline(10, lambda: now[0]))
    assert made.check(Gate.TRAINING, FOUND, STACK).passed
    assert made.check(Gate.BITWISE, STACK, NEXT).passed
    now[0] = 20
    assert made.check(Gate.TRAINING, FOUND, STACK).passed
    assert made.check(Gate.TRAINING, FOUND, NEXT).passed
    late = made.check(Gate.TRAINING, FOUND, LAST)
    assert late.passed is None
    assert "the budget left no time" in late.detail


def test_a_trajectory_that_decides_alone_says_what_was_not_seen() -> None:
    made = keeper({}, missing=frozenset({"float64"}))
    answer = made.check(Gate.TRAINING, FOUND, STACK, "bfloat16")
    assert answer.passed
    assert "first steps were not compared with float64: float64 is not known to its kernels" in answer.detail
    assert "float64" not in keeper({}).check(Gate.TRAINING, FOUND, STACK, "bfloat16").detail


def test_the_training_stands_in_for_a_reference_that_cannot_be_made_where_the_user_allows_it() -> None:
    """Kernels of a program's own may know 16-bit formats only."""
    made = keeper({}, missing=frozenset({"float64"}), allows_training=True)
    answer = made.check(Gate.ROUNDING, FOUND, STACK)
    assert (answer.gate, answer.passed) == (Gate.TRAINING, True)
    assert "first steps were not compared with float64: float64 is not known to its kernels" in answer.detail
    astray = keeper({}, missing=frozenset({"float64"}), allows_training=True, drifts=frozenset({"stack"}))
    assert astray.check(Gate.ROUNDING, FOUND, STACK).passed is False


@pytest.mark.parametrize("rounds_to", [None, "tf32"])
def test_the_training_stands_in_for_a_reference_that_rounding_leads_away_from(rounds_to: str | None) -> None:
    made = keeper({}, strays=True, allows_training=True)
    answer = made.check(Gate.ROUNDING, FOUND, STACK, rounds_to)
    assert (answer.gate, answer.passed) == (Gate.TRAINING, True)
    assert "first steps were not compared with float64: the reference does not follow the program" in answer.detail
    assert keeper({}, strays=True).check(Gate.ROUNDING, FOUND, STACK, rounds_to).passed is None
    astray = keeper({}, strays=True, allows_training=True, drifts=frozenset({"stack"}))
    assert astray.check(Gate.ROUNDING, FOUND, STACK, rounds_to).passed is False


def test_where_no_reference_follows_a_program_the_training_of_all_stands_in_for_that_of_its_parts() -> None:
    part = Part(STACK, Gate.ROUNDING, "tf32")
    made = keeper({}, strays=True, allows_training=True)
    assert made.foresee(FOUND, part, NEXT, "bf16") is None, "nothing tells before the first captures"
    made = keeper({}, strays=True, allows_training=True)
    made.check(Gate.ROUNDING, FOUND, LAST, "tf32")
    made.took.clear()
    why = made.foresee(FOUND, part, NEXT, "bf16")
    assert why is not None and "the reference does not follow the program" in why
    assert made.took == [("next", seed) for seed in SEEDS], "of the part nothing is captured"
    assert made.check(Gate.TRAINING, FOUND, NEXT).passed
    for kind in ({"strays": False, "allows_training": True}, {"strays": True, "allows_training": False}):
        other = keeper({}, **kind)
        other.check(Gate.ROUNDING, FOUND, LAST, "tf32")
        assert other.foresee(FOUND, part, NEXT, "bf16") is None


@pytest.mark.parametrize("missing", ["float64", "values"])
def test_nothing_stands_in_for_numbers_that_the_user_asks_for_or_that_the_program_does_not_give(missing: str) -> None:
    made = keeper({}, missing=frozenset({missing}), allows_training=missing == "values")
    answer = made.check(Gate.ROUNDING, FOUND, STACK)
    assert (answer.gate, answer.passed) == (Gate.ROUNDING, None)
