"""Runs a gate: asks for the captures that it needs (capture_runner.py), all at once, and compares them.

What it costs is bounded: few steps, of which the original's are captured once for all fixes; seeds run side by side
where memory allows; and a trajectory has no more steps than it takes, or than `TRAJECTORY_NS` holds of them. Where a
fix that keeps the numbers has been kept, its program stands in for the original, so that the slow original does not run
`LEAST_STEPS` under every seed if a faster program with its numbers has done so.

Promises add up only where they are exact. A program that was shown to equal another bit for bit has its captures too,
unless only one of the two compiles, which shows late. One that equals it up to rounding has not: each such
step may err three times as much as the one before, so the whole is held against the original itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial.gates import numerics
from diagnose.trial.gates.capture_plan import (
    SEEDS,
    CaptureRequest,
    Part,
    bits,
    bits_again,
    exact,
    for_gate,
    luck,
    rounding,
    trajectory_steps,
)
from diagnose.trial.gates.capture_runner import CaptureRunner
from diagnose.trial.gates.captures import Capture
from diagnose.trial.gates.trajectory import LEAST_STEPS, Curve, beyond_luck, trajectory
from diagnose.units import NS_PER_S, format_ns

UNASKED_NS = 20 * NS_PER_S
"""A trajectory that no fix's promise asks for is taken if the original's steps take no longer than this."""


@dataclass
class Gatekeeper(CaptureRunner):
    """Judges patched programs by what it records of them."""

    step_ns: int = -1
    """The step of the slower program, where a trial has measured it; else -1."""
    allows_training: bool = False
    """Whether a fix may be kept whose promise is no more than the same training."""
    precision: str = "float64"
    """The number format of references: "float32" where the program multiplies in a narrower one."""
    _same_numbers: dict[Path, Path] = field(default_factory=dict)
    """Programs that passed a gate against another, of whose numbers theirs are."""
    _same_bits: dict[Path, Path] = field(default_factory=dict)
    """The programs among `_same_numbers` that passed bit for bit."""
    _restless: set[Path] = field(default_factory=set)
    """Programs that gave other bits the second time."""
    _borrowed: bool = False
    """Whether the check that goes on rests on captures of a program with the same bits."""
    _steps: int = 0
    """The number of steps of a trajectory, the same for all programs."""

    def check(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
    ) -> GateResult:
        """Whether the patched program keeps the promise `gate`.

        `asked` False: a trajectory beside the promise of the fixes, not worth more than `UNASKED_NS`.
        """
        self._borrowed = False
        try:
            if gate is Gate.TRAINING:
                self._trajectory_steps()
                if asked and not self.deadline.passed:
                    self._take_all(self._missing(self.needed(gate, original, patched, rounds_to)))
                gross, unseen = self._gross(original, patched, rounds_to) if rounds_to else (None, "")
                answer = gross or self._trajectory(original, patched, asked=asked)
                return self._tell_if_borrowed(replace(answer, detail=f"{answer.detail}{unseen}"))
            answer = self._equal(gate, original, patched, rounds_to)
        except _NoCaptureError as error:
            by_training = None
            if gate is not Gate.TRAINING and error.wanted.exact:
                by_training = self._by_training(original, patched, error.wanted.recipe["precision"], str(error))
            return by_training or GateResult(gate, None, str(error))
        if answer.passed and _end(self._same_numbers, original.root) != patched.root:
            self._same_numbers.setdefault(patched.root, original.root)
        one_compiles = (patched.root in self.compiling) is not (original.root in self.compiling)
        if answer.passed and answer.gate is Gate.BITWISE and not one_compiles:
            self._equals(patched.root, original.root)
        return self._tell_if_borrowed(answer)

    def _equals(self, one: Path, other: Path) -> None:
        first, second = _end(self._same_bits, one), _end(self._same_bits, other)
        if first != second:
            self._same_bits[first] = second

    def _tell_if_borrowed(self, answer: GateResult) -> GateResult:
        if not self._borrowed:
            return answer
        return replace(answer, detail=f"{answer.detail}; as captured of a program that it equals bit for bit")

    def foresee(self, original: Program, part: Part, patched: Program, rounds_to: str | None) -> str | None:
        """Take all that two checks need at once: the part against `original`, then the training of `patched`.

        Where no reference can be held against the part, and the user allows no less than its promise, one check of the
        training of `patched` against that of `original` says as much: what that needs is taken, and the reason is
        returned. What cannot be had is told by the checks.
        """
        steps, why = self._trajectory_steps(), self._strays(original, part)
        both = luck([original, patched], SEEDS, steps)
        needed = both if why else self.needed(Gate.TRAINING, original, patched, rounds_to, part)
        self._take_all(self._missing(needed))
        return why

    def _strays(self, original: Program, part: Part) -> str | None:
        """Return why no reference of the original can be held against a part that declares a number format, as far as
        what tells was captured early; None where it can, or that is not known yet."""
        if not self.allows_training or part.gate is not Gate.ROUNDING or part.rounds_to is None:
            return None
        first, _, reference = rounding(original, part.program, None, self.precision)
        before, exactly = (self._taken.get(self._key(one)) for one in (first, reference))
        if not isinstance(before, Capture) or not isinstance(exactly, Capture):
            return None
        return numerics.strays(before, exactly)

    def needed(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None,
        part: Part | None = None,
    ) -> list[CaptureRequest]:
        """Return the captures that a passing numerics check needs, with the programs that stand in for the original."""
        steps = self.trajectory_steps
        if part is not None or gate is not Gate.TRAINING:
            return for_gate(gate, original, patched, rounds_to, steps, part, self.precision)
        base = self._captured_alike(original, patched, ["values", self.precision]) or original
        stands_in = self._captured_alike(original, patched, [f"seed-{seed}" for seed in range(SEEDS)]) or original
        gross = rounding(base, patched, rounds_to, self.precision) if rounds_to is not None else []
        return [*gross, *luck([stands_in, patched], SEEDS, steps)]

    def spare(self, part: Part, original: Program) -> list[CaptureRequest]:
        """Return the captures that a numerics check asks for only if the first ones leave it open."""
        if part.gate is Gate.BITWISE:
            return [bits_again(original)]
        if part.gate is Gate.ROUNDING and part.rounds_to is None and self.precision == "float64":
            return [replace(exact(part.program), spare=True)]
        return []

    def _missing(self, wanted: Sequence[CaptureRequest]) -> list[CaptureRequest]:
        return [one for one in wanted if self._key(one) not in self._taken]

    def _equal(self, gate: Gate, original: Program, patched: Program, rounds_to: str | None) -> GateResult:
        if gate is Gate.BITWISE:
            answer = self._bitwise(original, patched)
            if answer is not None:
                return answer
        return self._rounding(original, patched, rounds_to, fell_back=gate is Gate.BITWISE)

    def _gross(self, original: Program, patched: Program, rounds_to: str) -> tuple[GateResult | None, str]:
        """A failure if the first steps are wrong by far more than rounding to a format explains; what to add to the
        answer of the trajectory where that could not be seen.
        """
        try:
            base = self._captured_alike(original, patched, ["values", self.precision]) or original
            captures = self._captures(*rounding(base, patched, rounds_to, self.precision))
        except _NoCaptureError as error:
            return None, f"; its first steps were not compared with {self.precision}: {error}"
        return numerics.gross(*captures), ""

    def _trajectory(self, original: Program, patched: Program, *, asked: bool) -> GateResult:
        steps = self._trajectory_steps()
        first = [f"seed-{seed}" for seed in range(SEEDS)]
        stands_in = self._captured_alike(original, patched, first) if asked else None
        cost_ns = LEAST_STEPS * SEEDS * max(self.step_ns, 0)
        if not asked and cost_ns > UNASKED_NS:
            reason = f"{LEAST_STEPS} steps of the original under {SEEDS} seeds would take {format_ns(cost_ns)}"
            return GateResult(Gate.TRAINING, None, f"its trajectory was not compared: {reason}")
        original = stands_in or original
        if self._missing(luck([original, patched], SEEDS, steps)) and self.deadline.passed:
            return GateResult(Gate.TRAINING, None, f"the budget left no time for {steps} steps under {SEEDS} seeds")
        curves = self._curves(original, patched, SEEDS, steps)
        answer = trajectory(*curves)
        if answer.passed is False and beyond_luck(*curves) is None and not self.deadline.passed:
            with contextlib.suppress(_NoCaptureError):  # then the first answer stands
                answer = trajectory(*self._curves(original, patched, 2 * SEEDS, steps))
        return answer

    def _curves(self, original: Program, patched: Program, seeds: int, steps: int) -> tuple[list[Curve], list[Curve]]:
        found = self._found(luck([original, patched], seeds, steps))
        curves = [curve for curve in found if isinstance(curve, Curve)]
        return curves[:seeds], curves[seeds:]

    def _trajectory_steps(self) -> int:
        self._steps = self._steps or self.trajectory_steps
        return self._steps

    @property
    def trajectory_steps(self) -> int:
        """Steps of a trajectory, as it is or would be now."""
        return self._steps or trajectory_steps(self.step_ns)

    def _captured_alike(self, original: Program, patched: Program, names: Sequence[str]) -> Program | None:
        """A program with the numbers of `original` of which all these captures are there already."""
        root, own = _end(self._same_numbers, original.root), _end(self._same_bits, patched.root)
        for path in {path: None for path, _ in self._taken if _end(self._same_bits, path) != own}:
            taken = [self._taken.get((path, name), "") for name in names]
            if _end(self._same_numbers, path) == root and not any(isinstance(one, str) for one in taken):
                return replace(original, root=path)
        return None

    def _bitwise(self, original: Program, patched: Program) -> GateResult | None:
        """None where the original does not even equal itself."""
        if original.root in self._restless:
            return None
        before, after = self._captures(bits(original), bits(patched))
        answer = numerics.bitwise(before, after)
        # Programs that agree need no proof that the original agrees with itself. Two runs that agree are no proof where
        # torch knows of an operator in them that gives other bits now and then.
        if answer.passed is False and (
            before.nondeterministic or not numerics.repeats(*self._captures(bits(original), bits_again(original)))
        ):
            self._restless.add(original.root)
            return None
        return answer

    def _rounding(self, original: Program, patched: Program, rounds_to: str | None, *, fell_back: bool) -> GateResult:
        wanted = rounding(original, patched, rounds_to, self.precision)
        answer = self._by_reference_of_another(original, patched, wanted)
        if answer is None:
            before, after, reference, *rounded = self._captures(*wanted)
            if numerics.rounds_finely(before, reference) and not wanted[2].in_float64:
                self.precision = "float64"
                return self._rounding(original, patched, rounds_to, fell_back=fell_back)
            answer = numerics.rounding(before, after, reference, *rounded)
            if answer.passed is None and numerics.strays(before, reference):
                why = answer.detail
                if not rounded:
                    answer = self._in_float64(before, after, original, patched) or answer
                if answer.passed is None:
                    answer = self._by_training(original, patched, self.precision, why) or answer
        if not fell_back:
            return answer
        named = ", ".join(sorted(self._captures(bits(original))[0].nondeterministic))
        why = f"the original is not deterministic{f' ({named})' if named else ''}"
        return replace(answer, detail=f"{why}, so rounding was judged: {answer.detail}")

    def _by_training(self, original: Program, patched: Program, precision: str, why: str) -> GateResult | None:
        """The answer of the training gate where nothing can be held against a reference, and `why`: kernels of the
        program's own know narrow formats only, or its rounding grows too fast. None where the user allows no less than
        the promise, or there is no time."""
        if not self.allows_training or self.deadline.passed:
            return None
        with contextlib.suppress(_NoCaptureError):
            answer = self._trajectory(original, patched, asked=True)
            return replace(answer, detail=f"{answer.detail}; its first steps were not compared with {precision}: {why}")
        return None

    def _in_float64(self, before: Capture, after: Capture, original: Program, patched: Program) -> GateResult | None:
        """The answer from float64, where the program's own rounding hides more than a fix may change."""
        if self.deadline.passed:
            return None
        try:
            reference, patched_reference = self._captures(exact(original), exact(patched))
        except _NoCaptureError:
            return None
        return numerics.equal_in_float64(before, after, reference, patched_reference)

    def _by_reference_of_another(
        self, original: Program, patched: Program, wanted: Sequence[CaptureRequest]
    ) -> GateResult | None:
        """The gate by the reference of a program that the original has the numbers of; None unless it passes.

        In float64 both are the same function: where they are not after all, the error of either is too large to pass,
        and the original has a reference made of its own.
        """
        names = [one.name for one in wanted[2:]]
        stands_in = self._captured_alike(original, patched, names)
        if stands_in is None or stands_in.root == original.root:
            return None
        before, after = self._captures(*wanted[:2])
        reference, *rounded = self._captures(*(replace(one, program=stands_in) for one in wanted[2:]))
        shapes = {key: tensor.shape for key, tensor in reference.tensors.items()}
        if any(shapes.get(key) != tensor.shape for key, tensor in before.tensors.items()):
            return None
        answer = numerics.rounding(before, after, reference, *rounded)
        return answer if answer.passed else None

    def _captures(self, *wanted: CaptureRequest) -> list[Capture]:
        """Return what is wanted, in that order. Raises _NoCaptureError for the first that cannot be had."""
        return [capture for capture in self._found(wanted) if isinstance(capture, Capture)]

    def _found(self, wanted: Sequence[CaptureRequest]) -> list[Capture | Curve]:
        self._take_all(self._missing(wanted))
        found = []
        for one in wanted:
            key = self._key(one)
            self._borrowed = self._borrowed or key != one.key
            taken = self._taken[key]
            if isinstance(taken, str):
                raise _NoCaptureError(taken, one)
            found.append(taken)
        return found

    def _key(self, wanted: CaptureRequest) -> tuple[Path, str]:
        """The key of the capture itself, or of that capture of a program with the same bits where there is one."""
        if wanted.key in self._taken:
            return wanted.key
        bits = _end(self._same_bits, wanted.program.root)
        for (path, name), taken in self._taken.items():
            if name == wanted.name and not isinstance(taken, str) and _end(self._same_bits, path) == bits:
                return path, name
        return wanted.key


def _end(links: Mapping[Path, Path], root: Path) -> Path:
    """Return where a chain of programs ends."""
    while root in links:
        root = links[root]
    return root


class _NoCaptureError(Exception):
    """A capture that a gate needs could not be taken."""

    def __init__(self, why: str, wanted: CaptureRequest) -> None:
        super().__init__(why)
        self.wanted = wanted
