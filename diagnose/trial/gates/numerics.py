"""The numerics gates: does a patched program still compute what the original computes?

*Bitwise*: loss, gradients, parameters and buffers of the first steps are equal bit for bit under deterministic
settings, and so is what the optimizers keep; the random generators advance alike, perhaps some steps ahead. Where the
original does not even equal itself, or calls what torch has in no deterministic form, other bits are no refusal: the
rounding gate decides instead, and says so.

*Rounding*: with C the same steps in float64 (`diagnose.collect.inside.modes.reference`), for every tensor

    RMSE(patched, C)  ≤  3 × max(RMSE(original, C), RMSE(C', C))  +  one float32 rounding of C

A program whose products are in a narrower format than float32 has its C in float32, which rounds thousands of times as
finely and needs half the memory; where its gradients are not that far from such a C, C is in float64 after all.

C' is C with the operands of matrix products rounded to the number format that the fix declares, and nothing else; it
takes part only for fixers that declare one. So a fix that keeps the format may be at most three times as wrong as the
original, and a fix that changes the format at most three times as wrong as that format's rounding itself is. A dropped
gradient, a wrong scale or another batch is wrong by far more. A tensor of few elements has an error that is luck: for
it, the typical relative error of all gradients (of the larger of the two captures) stands in where its own is smaller.

A gradient that is zero but for rounding (of a bias before a normalisation) has no size of its own to measure an error
by: it is measured by the usual size of the others.

Optimizers that divide a gradient by its own size, as Adam does, make a whole step of an element whose gradient is zero
but for rounding, and part of one where it is nearly zero. How far such errors reach is luck, and so is a sum of squares
made of a few of them. Of a parameter's elements, one in a thousand may therefore be off by up to two such steps in
either program; the rest is compared as above. Or else its errors are counted: where gradients are normally distributed
and wrong by a share e of their size, √(2/π) e / x of the elements are off by more than x steps. Three times as many may
be, e being the typical error of all gradients. Where torch's Adam and its gradients are seen, both are granted only to
elements whose own gradients are off by that much of their size (adam_sensitivity.py). What gradients are held to knows
no such exception.

For both, the optimizers are made of the same parameters with the same settings, a checkpoint of the one program fits
the other (the same names and shapes), and memory does not grow from step to step where the original's does not. NaN and
infinity never pass. What cannot be compared is "unverified" (`passed` None), never passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.model import Gate, GateResult
from diagnose.trace.schema import Float64
from diagnose.trial.gates.adam_sensitivity import reach
from diagnose.trial.gates.captures import Capture, Tensor
from diagnose.trial.gates.step_state import states_differ

FACTOR = 3.0
GROSS_FACTOR = 10.0
"""The factor beyond which an error is no rounding, for a fix that is judged by its trajectory."""
FACTOR_OF_FEW = 8.0
"""The factor for tensors of few elements, as in torch._dynamo.utils.same: a sum over many rows depends on its order."""
FEW_ELEMENTS = 1024
"""The number of elements below which the root mean square error of one rounding is too much of a lottery to divide
by."""
AMPLIFIED = 1e-3
"""Share of a parameter's elements of which an optimizer may have made a whole step out of rounding."""
_TWO_STEPS = 2 * (1 + 2.0**-7)
"""The way from one sign to the other, in steps, as a narrow format writes them down."""
_FLOAT32_ROUNDING = 2.0**-23
_FLOAT64_ROUNDING = 2.0**-40
"""The rounding error of a gradient that cancels, relative to the usual gradient: thousands of terms whose sizes are
thousands of times its own."""
_STRAYED = 0.1  # relative: a reference this far from the original does not compute the same thing
_LEAST_COARSE = 2.0**-13
"""The relative error of gradients from which a program rounds more coarsely than its reference in float32: TF32, the
finest of the formats below float32, rounds an operand by up to 2^-11, float32 by up to 2^-24."""


def bitwise(original: Capture, patched: Capture) -> GateResult:
    """Whether `patched` equals `original` bit for bit."""
    unusable = _unusable(Gate.BITWISE, original, patched)
    if unusable is not None:
        return unusable
    difference = _first_difference(original, patched)
    difference = difference or states_differ(original.states, patched.states)
    if difference:
        return GateResult(Gate.BITWISE, False, difference)
    count = len(original.tensors)
    detail = f"{count} losses, gradients, parameters, buffers and states of {_steps(original)} are equal bit for bit"
    return GateResult(Gate.BITWISE, True, detail)


def repeats(original: Capture, again: Capture) -> bool:
    """Whether a program gave the same bits twice: only then a difference is the patched program's doing."""
    return not (_first_difference(original, again) or states_differ(original.states, again.states))


def rounding(original: Capture, patched: Capture, reference: Capture, rounded: Capture | None = None) -> GateResult:
    """The rounding gate; `rounded` is C' for a fix that declares a number format."""
    if _losses(original) != _losses(patched):
        original, patched, reference = _summed(original), _summed(patched), _summed(reference)
        rounded = rounded and _summed(rounded)
    for capture in (patched, reference, rounded):
        if capture is not None:
            unusable = _unusable(Gate.ROUNDING, original, capture, same=capture is patched)
            if unusable is not None:
                return unusable
    missing = next((key for key in original.values if key not in reference.values), None)
    if missing is not None:
        return _unverified(f"the reference has no {original.tensors[missing].title}")
    different = states_differ(original.states, patched.states, random=False)
    if different:
        return GateResult(Gate.ROUNDING, False, different)
    typical = max(_typical(original, reference), _typical(rounded, reference) if rounded else 0.0)
    if not typical < _STRAYED:
        return _unverified(_strays_by(typical))
    errors = list(_errors(original, patched, reference, rounded, typical))
    worst = max(errors, key=lambda error: error.excess)
    factor = f"{worst.title}: error {worst.patched:.2g} against the reference, allowed {worst.allowed:.2g}"
    if not worst.excess <= 1:
        return GateResult(Gate.ROUNDING, False, f"{factor} (original {worst.original:.2g})")
    return GateResult(Gate.ROUNDING, True, f"{len(errors)} tensors of {_steps(original)} within the bound; {factor}")


def strays(original: Capture, reference: Capture) -> str | None:
    """Return why no error can be held against a reference: the program's rounding moves its gradients too far from it.
    None where it does not."""
    typical = _typical(original, reference)
    return None if typical < _STRAYED else _strays_by(typical)


def _strays_by(typical: float) -> str:
    return (
        f"the reference does not follow the program (its gradients differ by {typical:.1%}): "
        "rounding grows too fast in it, or its random numbers depend on the number format"
    )


def rounds_finely(original: Capture, reference: Capture) -> bool:
    """Whether a program rounds too finely for a reference in float32: its gradients are as near to that as those of a
    program in float32 may be."""
    return _typical(original, reference) < _LEAST_COARSE


def equal_in_float64(original: Capture, patched: Capture, reference: Capture, patched_reference: Capture) -> GateResult:
    """Whether two programs compute the same function, from the float64 references of both, with no coarser rounding.

    For programs whose own rounding hides what an edit does: deep networks with batch statistics multiply it a
    thousandfold in one backward pass. In float64 as much growth is still far below what float32 can hold. How coarsely
    the patched program rounds shows where little has grown yet: in the losses and buffers of the first step.
    """
    if _losses(original) != _losses(patched):
        original, patched = _summed(original), _summed(patched)
        reference, patched_reference = _summed(reference), _summed(patched_reference)
    unusable = _unusable(Gate.ROUNDING, reference, patched_reference)
    if unusable is not None:
        return unusable
    worst = max(_errors_in_float64(reference, patched_reference), key=lambda error: error.excess)
    if not worst.excess <= 1:
        detail = f"{worst.title}: in float64 it differs {worst.excess:.2g} times as much as float32 can tell"
        return GateResult(Gate.ROUNDING, False, detail)
    coarser = _coarser(original, patched, reference)
    if coarser is None:
        return _unverified("rounding hides every number of the first step")
    if not coarser <= FACTOR:
        return GateResult(Gate.ROUNDING, False, f"it rounds {coarser:.2g} times as coarsely in the first step")
    detail = f"{len(reference.tensors)} tensors of {_steps(reference)} are equal in float64, as far as float32 can tell"
    return GateResult(Gate.ROUNDING, True, f"{detail}; rounding by itself moves its gradients further than any bound")


def _errors_in_float64(reference: Capture, patched_reference: Capture) -> Iterator[_Error]:
    usual = _usual_gradient(reference)
    for key, tensor in reference.tensors.items():
        # A gradient that cancels to nothing is nothing but rounding.
        allowed = _FLOAT32_ROUNDING * _rms(reference.values[key]) + _FLOAT64_ROUNDING * usual
        wrong = _rms(patched_reference.values[key] - reference.values[key])
        yield _Error(tensor.kind, tensor.title, wrong, 0.0, allowed)


def _coarser(original: Capture, patched: Capture, reference: Capture) -> float | None:
    """Return by what factor the patched program's errors in the first step exceed the original's, in the median over
    tensors whose rounding has not grown beyond `_STRAYED`; None where there is none."""
    ratios = []
    for key in original.tensors.keys() & reference.values.keys() & patched.values.keys():
        own = _rms(original.values[key] - reference.values[key])
        if key[1] == 0 and 0 < own < _STRAYED * _rms(reference.values[key]):
            ratios.append(_rms(patched.values[key] - reference.values[key]) / own)
    return float(np.median(ratios)) if ratios else None


def gross(original: Capture, patched: Capture, reference: Capture, rounded: Capture) -> GateResult | None:
    """A failure if losses or gradients are far beyond what the format of `rounded` explains; None otherwise.

    For fixes whose promise is the trajectory, where a dropped gradient may hide within luck for a while. A loss scaler
    leaves whole updates out until its factor fits: then the trajectory alone decides.
    """
    if _leaves_updates_out(original, patched):
        return None
    unusable = _unusable(Gate.TRAINING, original, patched)
    if unusable is not None:
        return unusable if unusable.passed is False else None
    typical = max(_typical(original, reference), _typical(rounded, reference))
    if not typical < _STRAYED or not original.values.keys() <= reference.values.keys():
        return None
    errors = _errors(original, patched, reference, rounded, typical)
    far = [error for error in errors if error.kind in ("loss", "gradient") and error.excess > GROSS_FACTOR / FACTOR]
    if not far:
        return None
    worst = max(far, key=lambda error: error.excess)
    detail = f"{worst.title}: error {worst.patched:.2g} against the reference, where its number format explains"
    return GateResult(Gate.TRAINING, False, f"{detail} {worst.allowed / FACTOR:.2g}")


def _leaves_updates_out(original: Capture, patched: Capture) -> bool:
    """Whether the patched program took a step without any update, in which the original has one."""
    with_losses = _steps_with(patched, "loss") & _steps_with(original, "gradient")
    return not with_losses <= _steps_with(patched, "gradient")


def _steps_with(capture: Capture, kind: str) -> set[tuple[int, int]]:
    return {(rank, step) for rank, step, what, _ in capture.tensors if what == kind}


@dataclass(frozen=True)
class _Error:
    kind: str
    title: str
    patched: float
    original: float
    allowed: float

    @property
    def excess(self) -> float:
        """The error as a multiple of the allowed one; NaN counts as infinitely much."""
        ratio = self.patched / self.allowed if self.allowed else (0.0 if self.patched == 0 else np.inf)
        return float(ratio) if np.isfinite(ratio) else np.inf


def _errors(
    original: Capture, patched: Capture, reference: Capture, rounded: Capture | None, typical: float
) -> Iterator[_Error]:
    usual = _usual_gradient(reference)
    for key, tensor in original.tensors.items():
        ideal = reference.values[key]
        size = _rms(ideal)
        step = _largest_step(reference, key)
        own = _rms(_unamplified(original.values[key] - ideal, step, reach(original, reference, key, step)))
        base = own
        if rounded is not None and key in rounded.values:
            far = reach(rounded, reference, key, step)
            base = max(base, _rms(_unamplified(rounded.values[key] - ideal, step, far)))
        if len(ideal) < FEW_ELEMENTS:
            base = max(base, typical * size) * FACTOR_OF_FEW / FACTOR
        if tensor.kind == "gradient" and own >= size:
            base = max(base, typical * usual)
        allowed = FACTOR * base + _FLOAT32_ROUNDING * size
        errors = patched.values[key] - ideal
        far = reach(patched, reference, key, step)
        wrong = _rms(_unamplified(errors, step, far))
        within = bool((np.abs(errors) <= np.maximum(allowed, far)).all())
        if wrong > allowed and within and _explained(errors, step, tensor.step + 1, typical):
            allowed = wrong
        yield _Error(tensor.kind, tensor.title, wrong, own, allowed)


def _usual_gradient(reference: Capture) -> float:
    """The median size of all gradients; 0 where there is none."""
    sizes = [_rms(reference.values[key]) for key, tensor in reference.tensors.items() if tensor.kind == "gradient"]
    return float(np.median(sizes)) if sizes else 0.0


def _largest_step(reference: Capture, key: tuple[int, int, str, str]) -> float:
    """Return how far the optimizer moves an element of a parameter at most, per step; 0 where that is not known."""
    rank, step, kind, name = key
    if kind != "parameter":
        return 0.0
    here = reference.values[key]
    others = (reference.values.get((rank, step + by, kind, name)) for by in (-1, 1))
    return max((float(np.abs(here - other).max(initial=0.0)) for other in others if other is not None), default=0.0)


def _unamplified(errors: Float64, step: float, far: Float64 | float) -> Float64:
    """The errors without the few largest, as far as these may be steps that an optimizer made out of rounding.

    `far`: by how much each element may be off for what its gradient is off by.
    """
    few = int(AMPLIFIED * len(errors))
    if few == 0 or step == 0.0:
        return errors
    sizes = np.abs(errors)
    excused = np.zeros(len(errors), np.bool_)
    excused[np.argpartition(sizes, -few)[-few:]] = True
    return errors[~(excused & (sizes <= np.minimum(_TWO_STEPS * step, far)))]


def _explained(errors: Float64, step: float, steps: int, typical: float) -> bool:
    """Whether no size of error is met more often than gradients explain that are wrong by `typical` of their size."""
    if step == 0.0:
        return False
    ranked = np.sort(np.abs(errors))[::-1]
    share = np.arange(1, len(ranked) + 1) / len(ranked)
    reach = FACTOR * np.sqrt(2 / np.pi) * typical / share
    return bool((ranked <= step * np.minimum(steps * _TWO_STEPS, reach)).all())


def _losses(capture: Capture) -> list[tuple[int, int, str, str]]:
    return [key for key, tensor in capture.tensors.items() if tensor.kind == "loss"]


def _summed(capture: Capture) -> Capture:
    """Return the capture with the losses of a step as one, their sum: the same samples may go through fewer backward
    passes."""
    tensors, values = dict(capture.tensors), dict(capture.values)
    for key in _losses(capture):
        tensor, value = tensors.pop(key), values.pop(key)
        total = (*key[:2], "loss", "in all")
        before = values.get(total, np.zeros(1))
        finite = tensor.finite and (total not in tensors or tensors[total].finite)
        tensors[total] = Tensor(tensor.step, "loss", "in all", (), finite)
        values[total] = before + np.sum(value)
    return Capture(tensors, values, capture.states)


def _typical(capture: Capture, reference: Capture) -> float:
    """The median over all gradients of RMSE against the reference, relative to the tensor's own size."""
    relative = []
    for key, tensor in capture.tensors.items():
        size = _rms(reference.values[key]) if key in reference.values else 0.0
        if tensor.kind == "gradient" and size > 0:
            relative.append(_rms(capture.values[key] - reference.values[key]) / size)
    return float(np.median(relative)) if relative else 0.0


def _unusable(gate: Gate, original: Capture, other: Capture, *, same: bool = True) -> GateResult | None:
    """Why these two cannot be compared, or differ before any number is looked at."""
    if not original.has("loss"):
        return GateResult(gate, None, "no loss was seen: no backward pass in the first steps")
    if not original.has("gradient"):
        return GateResult(gate, None, "no gradient was seen: no optimizer's step in the first steps")
    broken = _first(original, lambda tensor: not tensor.finite)
    if broken is not None:
        return GateResult(gate, None, f"the original itself has NaN or infinity in {broken.title}")
    if not same:
        return None
    broken = _first(other, lambda tensor: not tensor.finite)
    if broken is not None:
        return GateResult(gate, False, f"NaN or infinity in {broken.title}")
    for key in (*original.tensors, *other.tensors):
        mine, theirs = original.tensors.get(key), other.tensors.get(key)
        present = mine or theirs
        if present is not None and (mine is None or theirs is None):
            return GateResult(gate, False, f"{present.title} is {'new' if mine is None else 'missing'}")
        if mine is not None and theirs is not None and mine.shape != theirs.shape:
            return GateResult(gate, False, f"{mine.title} has shape {list(theirs.shape)}, was {list(mine.shape)}")
    return None


def _first_difference(original: Capture, other: Capture) -> str | None:
    for key, tensor in original.tensors.items():
        if key not in other.tensors or other.tensors[key].sha256 != tensor.sha256:
            return f"{tensor.title} differs"
    return None


def _first(capture: Capture, wanted: Callable[[Tensor], bool]) -> Tensor | None:
    return next((tensor for tensor in capture.tensors.values() if wanted(tensor)), None)


def _rms(values: Float64) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0


def _unverified(detail: str) -> GateResult:
    return GateResult(Gate.ROUNDING, None, detail)


def _steps(capture: Capture) -> str:
    return f"{capture.steps} step{'' if capture.steps == 1 else 's'}"
