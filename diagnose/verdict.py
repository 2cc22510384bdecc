"""Decides whether a fix holds: paired block times in, an interval and a decision out. Pure; reads and writes nothing.

The original and the patched program take turns, block by block, in ABBA order. Two neighbouring blocks are a pair, and
a pair gives one number: the logarithm of patched over original mean step. Drift of clocks and neighbours that is slow
against a pair cancels. What does not cancel is the luck of a process (memory layout, core, kernel choice): two
processes of the same program differ by more than their own noise. Therefore pairs come in *generations*, each with
fresh processes, and the interval resamples generations as well as pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.model import Decision, GateResult, Interval, Mechanism
from diagnose.units import format_bytes, format_share, format_value, swap_sides

LEAST_SAVING = 0.01
"""A fix must save more than this share of the step: less is not worth a line of anyone's source."""
CLEAR_SAVING = 0.05
"""A saving beyond this, for certain, need not be measured any finer to be kept."""
SURE_SAVING = 2 * CLEAR_SAVING
"""A saving beyond this in every pair, and for certain, is no luck of two processes, which were never seen to differ by
half of it: it is kept before others have shown it too."""
LARGE_PROMISE = 2 * SURE_SAVING
"""A fix that gives half of what it promises is still kept after its first processes."""
LEAST_PAIRS = 4
"""Fewer pairs give no interval that deserves the name."""
LEAST_GENERATIONS = 2
"""One generation cannot tell a faster program from a luckier process."""
CONFIDENCE = 0.95
RESAMPLES = 10_000
_SEED = 20_240_229  # any fixed number: the same pairs always give the same interval


@dataclass(frozen=True, slots=True)
class Pair:
    """Mean step of two neighbouring blocks, one of each arm."""

    generation: int
    original_ns: float
    patched_ns: float


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision, and the sentence that explains it."""

    decision: Decision
    summary: str


def estimate(pairs: Sequence[Pair], confidence: float = CONFIDENCE) -> Interval:
    """The share of the step saved, with a hierarchical bootstrap interval. Raises ValueError without pairs.

    Each resample draws as many generations as there are, and within each as many pairs as it has, with replacement.
    A generation counts by its midmean, the mean of the middle half of its pairs: a neighbour that wakes up in one block
    of four does not decide a trial, while a stall of the program's own recurs in every block and so stays in.
    Deviations are first stretched by sqrt(n / (n - 1)) at both levels, which undoes the known shrinkage of a bootstrap
    over few units: with two generations the interval always reaches past both of their centres.
    """
    groups = _log_ratios(pairs)
    if not groups:
        raise ValueError("no pairs: nothing was measured")
    means = np.array([_midmean(group) for group in groups])
    centre = float(means.mean())
    between = _stretch(len(groups))
    rng = np.random.default_rng(_SEED)
    slots = (RESAMPLES, len(groups))
    drawn = np.empty((len(groups), *slots))
    for row, (group, mean) in enumerate(zip(groups, means, strict=True)):
        deviations = (group - mean) * _stretch(len(group))
        picks = rng.integers(len(group), size=(*slots, len(group)))
        drawn[row] = centre + (mean - centre) * between + _midmean(deviations[picks])
    chosen = rng.integers(len(groups), size=slots)
    resampled = np.take_along_axis(drawn, chosen[None], axis=0)[0].mean(axis=1)
    tail = (1 - confidence) / 2
    slow, fast = np.quantile(resampled, (1 - tail, tail))
    return Interval(_saved(centre), _saved(float(slow)), _saved(float(fast)))


def resolution(control: Interval) -> float:
    """The smallest saving that the machine can tell from none: the farther bound of the A/A control.

    Both sides of a control run the same program, so a bound says as much with the sides swapped: where one came out
    slower by all of a step, the other saved half of it.
    """
    return max(_as_saving(control.low), _as_saving(control.high))


def floor(smallest: float) -> float:
    """Return the value that the lower bound must exceed, given the machine's resolution."""
    return max(LEAST_SAVING, smallest)


def hopeless(pairs: Sequence[Pair], smallest: float, looks: int, needed: float | None = None) -> bool:
    """Whether a trial may stop early because the fix cannot be kept any more: how losers are screened out.

    The interval of the pairs so far is taken at confidence 1 - 0.05 / `looks` (Bonferroni over all looks, the last one
    included), so that looking often does not drop a good fix more often than looking once. Pairs of one generation say
    nothing of the luck of its processes, which the control has seen as part of the resolution; the two errors are
    independent, so they add as squares. The interval over several generations has that luck in it. The trial stops when
    even the upper bound stays below what must be exceeded: a clear loss or a clear "no change". `needed` is that, where
    a finer control than the one so far may yet be taken.

    Looking for losers cannot make a false keep: the decision to keep is taken once, at the end of the trial, on all of
    its pairs, those of the first look among them, and stopping can only take trials away from those that reach it. What
    makes a trial shorter for a winner is `clear`, whose bound lies far beyond the one that is needed.
    """
    if len(pairs) < LEAST_PAIRS:
        return False
    seen = estimate(pairs, confidence_of_each(looks))
    needed = floor(smallest) if needed is None else needed
    unseen = smallest if len({pair.generation for pair in pairs}) < LEAST_GENERATIONS else 0.0
    return seen.estimate + math.hypot(seen.high - seen.estimate, unseen) < needed


def nothing_in_sight(pairs: Sequence[Pair], smallest: float, looks: int, needed: float | None = None) -> bool:
    """Whether these processes show no saving to build on, whatever more is asked of them: others may.

    The rest of a generation would only make that surer, so the next one is asked. Stops nothing by itself.
    """
    if len(pairs) < LEAST_PAIRS:
        return False
    seen = estimate(pairs, confidence_of_each(looks))
    return seen.high < (floor(smallest) if needed is None else needed)


def clear(pairs: Sequence[Pair], smallest: float, looks: int, beyond: float = CLEAR_SAVING) -> bool:
    """Whether a saving is so large that the rest of its generation would only repeat it.

    The lower bound, at the confidence of `hopeless` and with the resolution taken off, exceeds `beyond`: unless said
    otherwise, several times what two processes of one program were ever seen to differ by. The next generation is still
    asked, and the decision to keep is still taken on the usual interval over all generations.
    """
    if len(pairs) < LEAST_PAIRS:
        return False
    seen = estimate(pairs, confidence_of_each(looks))
    return seen.low - smallest > beyond


def sure(pairs: Sequence[Pair], looks: int) -> bool:
    """Whether the processes of one generation show a saving that cannot be their luck: it is kept without others.

    Nobody has measured by then what the machine resolves. So both ask more than a control would: the lower bound, at
    the confidence of `hopeless`, and every single pair exceed `SURE_SAVING`. How often noise alone passes for such a
    saving, tests simulate.
    """
    if len(pairs) < LEAST_PAIRS or not beyond(pairs, SURE_SAVING):
        return False
    return estimate(pairs, confidence_of_each(looks)).low > SURE_SAVING


def beyond(pairs: Sequence[Pair], share: float) -> bool:
    """Whether every pair by itself shows a larger saving than this share."""
    return all(pair.patched_ns < (1 - share) * pair.original_ns for pair in pairs)


def precise(pairs: Sequence[Pair], looks: int, enough: float = LEAST_SAVING) -> bool:
    """Whether the original against itself shows already that the resolution is finer than `enough`."""
    return len(pairs) >= LEAST_PAIRS and resolution(estimate(pairs, confidence_of_each(looks))) < enough


def ruling_on_time(
    saving: Interval | None,
    pairs: int,
    generations: int,
    smallest: float,
    *,
    stopped_early: bool = False,
    beyond_luck: bool = False,
) -> Ruling | None:
    """The decision if the times alone settle it; None if the fix is faster and its other promises must be looked at.

    `beyond_luck`: the saving is so large that one generation of processes is enough (`sure`).
    """
    if saving is None or pairs < LEAST_PAIRS:
        return Ruling(Decision.FAILED, f"too few steps to compare: {_pairs(pairs)} of blocks measured")
    figures = f"{_pairs(pairs)}, {_signed(saving.low)} … {_signed(saving.high)}"
    needed = floor(smallest)
    if saving.high < 0 and _as_saving(saving.estimate) > smallest:
        return Ruling(Decision.SLOWER, f"slower by {format_share(-saving.estimate)} of the step ({figures})")
    if saving.low <= needed:
        early = ", stopped early" if stopped_early else ""
        found = "faster, though not surely by enough" if saving.low > 0 else "no measurable saving"
        return Ruling(Decision.NO_CHANGE, f"{found} ({figures}{early}; more than {format_share(needed)} needed)")
    if generations < LEAST_GENERATIONS and not beyond_luck:
        return Ruling(
            Decision.NOT_TRIED, f"looked faster ({figures}), but there was time for one generation of processes only"
        )
    return None


def ruling_on_mechanism(saving: Interval, pairs: int, mechanism: Mechanism) -> Ruling | None:
    """The decision on a fix that is faster, where what it claims to move did not move, or nobody saw whether it did;
    else None."""
    if mechanism.moved is True:
        return None
    return Ruling(Decision.UNEXPLAINED, f"{saved(saving, pairs)}, but {_unmoved(mechanism)}")


def ruling(
    saving: Interval,
    pairs: int,
    gate: GateResult,
    peak_bytes: tuple[int, int] | None = None,
    memory_bytes: int | None = None,
) -> Ruling:
    """The decision on a fix that is faster, and explained: it is kept only if memory and numbers agree.

    `peak_bytes` are the peaks before and after, `memory_bytes` what the device has; None is unknown, and a patched
    program that ran is taken to fit.
    """
    gain = f"{format_share(saving.estimate)} of the step saved"
    measured = saved(saving, pairs)
    if peak_bytes and memory_bytes and peak_bytes[1] > memory_bytes:
        peak, size = format_bytes(peak_bytes[1]), format_bytes(memory_bytes)
        return Ruling(Decision.OUT_OF_MEMORY, f"{gain}, but it peaks at {peak} of {size}")
    if gate.passed is False:
        return Ruling(Decision.CHANGES_NUMBERS, f"{gain}, but the numbers change: {gate.detail}")
    if gate.passed is None:
        return Ruling(Decision.UNVERIFIED, f"{measured}, but the numbers could not be checked: {gate.detail}")
    return Ruling(Decision.KEPT, f"{measured}; {gate.detail}")


def saved(saving: Interval, pairs: int) -> str:
    """A saving in words, with what it rests on."""
    figures = f"{_pairs(pairs)}, {_signed(saving.low)} … {_signed(saving.high)}"
    return f"{format_share(saving.estimate)} of the step saved ({figures})"


def confidence_of_each(looks: int) -> float:
    """Return the confidence of each of several looks that together err no more often than one at `CONFIDENCE`
    (Bonferroni).
    """
    return 1 - (1 - CONFIDENCE) / max(1, looks)


def _log_ratios(pairs: Sequence[Pair]) -> list[npt.NDArray[np.float64]]:
    """Per generation, the log of patched over original of each of its pairs."""
    groups: dict[int, list[float]] = {}
    for pair in pairs:
        groups.setdefault(pair.generation, []).append(pair.patched_ns / pair.original_ns)
    return [np.log(np.array(ratios)) for ratios in groups.values()]


def _midmean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of the middle half along the last axis: a quarter is left out at either end."""
    ordered = np.sort(values, axis=-1)
    cut = ordered.shape[-1] // 4
    middle: npt.NDArray[np.float64] = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
    return middle


def _stretch(units: int) -> float:
    return float(np.sqrt(units / (units - 1))) if units > 1 else 1.0


def _saved(log_ratio: float) -> float:
    return float(-np.expm1(log_ratio))


def _as_saving(share: float) -> float:
    """Return the saving of the faster side, where one side's step is shorter by `share`, or longer where it is
    negative.
    """
    return share if share >= 0 else swap_sides(share)


def _unmoved(mechanism: Mechanism) -> str:
    if mechanism.before is None or mechanism.after is None or mechanism.moved is None:
        return f"{mechanism.measure}, which it should lower, could not be measured"
    before, after = (format_value(value, mechanism.unit) for value in (mechanism.before, mechanism.after))
    return f"{mechanism.measure}, which it should lower, went from {before} to {after}"


def _signed(share: float) -> str:
    """Always with a decimal: the two ends of a narrow interval must not read the same."""
    return f"{'−' if share < 0 else '+'}{100 * abs(share):.1f} %"


def _pairs(number: int) -> str:
    return f"{number} pair{'' if number == 1 else 's'}"
