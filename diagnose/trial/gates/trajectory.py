"""The trajectory gate: does a program that changes its training still train as the original does?

Original and patched run the same steps under the same seeds (`diagnose.collect.inside.modes.trajectory`); steps whose
update a loss scaler leaves out, as `GradScaler` does until its factor fits, are none of them. What luck
alone does is the spread of the original's losses over the seeds; the patched program must stay inside of it, paired by
seed.
With the steps cut into `PARTS`, and of each part the mean loss, the fix fails where

- a loss is NaN or infinite and the original's is not,
- in some part it is off in the same direction under every seed, by more than `BAND` spreads in the mean,
- it drifts away in the same direction under every seed, by more than `BAND` spreads of the original's own slopes, or
- under one seed it is off by more than `GROSS` spreads.

Three seeds may have a small spread by chance. So that of a part counts with its neighbours', and whoever strays is
asked again under as many seeds more (`diagnose.trial.gates.gate`) and judged under all of them. A difference below
`LEAST` of the first loss is none (an operand's rounding to bfloat16 is about as large). So a fix that is wrong by less
than that, or less than luck is, passes here: that is what "inside the band" means.

Memory must not grow: bytes held after a step that rise in the patched program, step after step, and not in the
original. The optimizers must be made of the same parameters with the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.collect.records import TRAJECTORY
from diagnose.model import Gate, GateResult
from diagnose.trace.schema import Float64
from diagnose.trial.gates.step_state import optimizers_differ
from diagnose.units import format_bytes, format_share

LEAST_STEPS = 50
LEAST_SEEDS = 3
PARTS = 5
BAND = 2.0
GROSS = 8.0
LEAST = 2e-3
"""The smallest difference that counts, as a share of the mean loss of the original's first part."""
GROWS_BYTES = 64 << 10
"""A step; log lines and the allocator's own lists stay below."""


@dataclass(frozen=True)
class Curve:
    """One program under one seed; the losses of several ranks are averaged."""

    losses: Float64
    memory_bytes: Float64 = field(default_factory=lambda: np.zeros(0))
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    seeds_itself: bool = False


def read_curve(folder: Path) -> Curve | None:
    """The curve below `folder`; None where there is none."""
    found = [json.loads(path.read_bytes()) for path in sorted(folder.glob(f"rank*/{TRAJECTORY}"))]
    if not found:
        return None
    steps = min(len(one["losses"]) for one in found)
    losses = [[np.nan if loss is None else loss for loss in one["losses"][:steps]] for one in found]
    first = found[0]
    return Curve(
        np.mean(np.array(losses, np.float64).reshape(len(found), steps), axis=0),
        np.array(first["memory_bytes"], np.float64),
        first["optimizers"],
        bool(first["seeds_itself"]),
    )


def trajectory(originals: Sequence[Curve], patched: Sequence[Curve]) -> GateResult:
    """The gate; the curves of both are in the order of the same seeds."""
    certain = beyond_luck(originals, patched)
    if certain is not None:
        return certain
    before, after = _losses(originals, patched)
    strayed = _strayed(before, after)
    if strayed:
        return _answer(False, strayed)
    return _answer(True, _inside(before, after, seeds_itself=originals[0].seeds_itself))


def beyond_luck(originals: Sequence[Curve], patched: Sequence[Curve]) -> GateResult | None:
    """The answer where no further seed could change it; None where the losses have to be weighed."""
    if len(originals) < LEAST_SEEDS:
        return _answer(None, f"{len(originals)} seeds are too few to see what luck does")
    before, after = _losses(originals, patched)
    steps = before.shape[1]
    if steps < LEAST_STEPS:
        return _answer(None, f"the program ends after {steps} steps; {LEAST_STEPS} are needed to compare losses")
    if not np.isfinite(before).all():
        return _answer(None, "the original's own loss is missing, NaN or infinite in some steps")
    if not np.isfinite(after).all():
        seed, step = np.argwhere(~np.isfinite(after))[0]
        return _answer(False, f"the loss of step {step + 1} is NaN, infinite or missing (seed {seed})")
    for one, other in zip(originals, patched, strict=True):
        for at, optimizers in one.optimizers.items():
            different = optimizers_differ(optimizers, other.optimizers.get(at))
            if different:
                return _answer(False, different)
    grows = _grows(originals, patched)
    return _answer(False, grows) if grows else None


def _losses(originals: Sequence[Curve], patched: Sequence[Curve]) -> tuple[Float64, Float64]:
    """The losses of both sides, of shape (seeds, steps), as many steps as all of them took."""
    steps = min(len(curve.losses) for curve in (*originals, *patched))
    before = np.array([curve.losses[:steps] for curve in originals])
    return before, np.array([curve.losses[:steps] for curve in patched])


def _strayed(before: Float64, after: Float64) -> str:
    """Return how the losses leave the band; empty where they do not."""
    differences = _parts(after) - _parts(before)
    spread = _spread(before)
    seeds, parts = differences.shape
    for part in range(parts):
        here, allowed = differences[:, part], float(spread[part])
        worst = float(np.abs(here).max())
        if (_same_sign(here) and abs(float(here.mean())) > BAND * allowed) or worst > GROSS * allowed:
            off = float(here.mean()) if _same_sign(here) else float(here[np.abs(here).argmax()])
            at = float(_parts(before)[:, part].mean())
            return (
                f"the loss is off by {off:+.3g} of {at:.3g} in part {part + 1} of {parts} of {before.shape[1]} steps, "
                f"where {seeds} seeds of the original differ by {allowed:.2g}"
            )
    drift, usual = _slopes(differences), _slopes(_parts(before))
    least = LEAST * _first(before) / parts
    allowed = BAND * max(float(np.std(usual, ddof=1)), least)
    if _same_sign(drift) and abs(float(drift.mean())) > allowed:
        return f"the loss drifts away from the original's by {float(drift.mean()) * (parts - 1):+.3g} under every seed"
    return ""


def _inside(before: Float64, after: Float64, *, seeds_itself: bool) -> str:
    differences = np.abs((_parts(after) - _parts(before)).mean(axis=0))
    spread = _spread(before)
    at = int(np.argmax(differences / spread))
    seeds = "seeds shifted from the program's own" if seeds_itself else "seeds"
    relative = format_share(float(differences[at] / abs(_parts(before)[:, at].mean())))
    return (
        f"losses of {before.shape[1]} steps under {len(before)} {seeds} stay inside the original's spread; at most "
        f"{relative} off, {float(differences[at] / spread[at]):.1f} of that spread"
    )


def _parts(losses: Float64) -> Float64:
    """Mean loss per seed and part, of shape (seeds, PARTS); steps beyond a multiple of PARTS go to the last."""
    ends = np.linspace(0, losses.shape[1], PARTS + 1).astype(int)
    return np.stack([losses[:, a:b].mean(axis=1) for a, b in pairwise(ends)], axis=1)


def _spread(before: Float64) -> Float64:
    """Standard deviation over the seeds, of each part together with its neighbours; never below LEAST."""
    variance = np.var(_parts(before), axis=0, ddof=1)
    padded = np.pad(variance, 1, mode="edge")
    pooled: Float64 = np.sqrt((padded[:-2] + padded[1:-1] + padded[2:]) / 3)
    return np.maximum(pooled, LEAST * _first(before), dtype=np.float64)


def _first(before: Float64) -> float:
    return max(abs(float(_parts(before)[:, 0].mean())), float(np.finfo(np.float32).tiny))


def _slopes(parts: Float64) -> Float64:
    """Per seed, by least squares, a part."""
    at = np.arange(parts.shape[1]) - (parts.shape[1] - 1) / 2
    slopes: Float64 = np.asarray(np.sum(parts * at, axis=1), np.float64) / float(np.sum(at * at))
    return slopes


def _same_sign(values: Float64) -> bool:
    return bool((values > 0).all() or (values < 0).all())


def _grows(originals: Sequence[Curve], patched: Sequence[Curve]) -> str:
    """Whether the patched program holds more after every step, under every seed; empty where it does not."""
    before = [_growth(curve.memory_bytes) for curve in originals]
    after = [_growth(curve.memory_bytes) for curve in patched]
    if min(after) > GROWS_BYTES + 2 * max(0.0, *before):
        return f"the memory held grows by {format_bytes(round(min(after)))} every step"
    return ""


def _growth(memory: Float64) -> float:
    """Bytes a step over the later half, taken where three of four stretches grow that much: a jump is no growth."""
    later = memory[len(memory) // 2 :]
    if len(later) < 8 or (later < 0).any():
        return 0.0
    means = np.array([part.mean() for part in np.array_split(later, PARTS)])
    return float(np.sort(np.diff(means))[1]) / (len(later) / PARTS)


def _answer(passed: bool | None, detail: str) -> GateResult:
    return GateResult(Gate.TRAINING, passed, detail)
