"""The answers of probes in words: the step with and without one of its parts, which every report says alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.model import ProbeResult
from diagnose.units import format_bytes, format_ns, format_setting, format_share

ABOUT = "the step with and without one of its parts; none of them is a fix"
NEAR_BEST = 0.95
"""A share of the most samples per second: a batch that reaches it is as good as the best, within what trials
resolve."""
SAME_STEP = 1.1
"""A batch twice as large whose step takes no more than this many times as long is not what the step waits for."""


def title(result: ProbeResult) -> str:
    """Return the probe with its setting: `batch-sweep with factor=2`."""
    words = format_setting(result.setting)
    return f"{result.probe} with {words}" if words else result.probe


def answer(result: ProbeResult) -> str:
    """Return one sentence: the two steps and their difference, or why there is none."""
    if result.step_ns is None or result.probed_ns is None or result.saved_ns is None:
        return f"no answer: {result.refused}"
    low, high = map(format_ns, result.saved_ns)
    said = f"{format_ns(result.step_ns)} a step, {format_ns(result.probed_ns)} with the probe, which saves "
    said += f"{low} to {high} ({result.pairs} pairs)"
    if result.delay_ns:
        share = (result.probed_ns - result.step_ns) / result.delay_ns
        said += f"; of a delay of {format_ns(result.delay_ns)} the step shows {format_share(min(max(share, 0.0), 1.0))}"
    elif result.peak_memory_bytes is not None:
        said += f"; memory peaks at {' and '.join(format_bytes(peak) for peak in result.peak_memory_bytes)}"
    return said


def left(result: ProbeResult) -> list[str]:
    """Return what the probe could not take away."""
    return [f"left as it is: {what}" for what in result.left]


@dataclass(frozen=True)
class _Sweep:
    """The words for a setting that probes vary, as a multiple of the program's own."""

    unit: str
    largest: str
    own: str
    twice: str


_SWEEPS = {
    "factor": _Sweep("samples", "the largest batch that was measured", "batch", "twice the batch"),
    "length": _Sweep("tokens", "the longest sequences that were measured", "length", "twice the length"),
}
"""The words for a sweep, by setting."""


def knees(results: Sequence[ProbeResult]) -> list[str]:
    """Return a sentence for each setting that was swept: where the samples or tokens per second stop growing."""
    return [said for setting in _SWEEPS if (said := _knee(results, setting))]


def _knee(results: Sequence[ProbeResult], setting: str) -> str:
    """One sentence; empty where fewer than two sizes were measured."""
    words, steps = _SWEEPS[setting], {}
    for one in results:
        factor = one.setting.get(setting)
        if one.probed_ns is not None and isinstance(factor, (int, float)):
            steps[factor] = one.probed_ns
    if len(steps) < 2:
        return ""
    rates = {factor: factor / step_ns for factor, step_ns in steps.items()}
    best = max(rates.values())
    least = min(factor for factor, rate in rates.items() if rate >= NEAR_BEST * best)
    if least == max(rates):
        said = f"{words.unit} per second grow up to {words.largest}, {least:g} times the program's"
    else:
        said = f"{least:g} times the program's {words.own} gives as many {words.unit} per second as any"
    if {1, 2} <= steps.keys() and steps[2] <= SAME_STEP * steps[1]:
        said += f"; {words.twice} takes no longer: the step waits for the host, or for kernels too small for the device"
    return said
