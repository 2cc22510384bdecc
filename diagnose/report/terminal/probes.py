"""The output of probes: the step with and without a part of it, and what that says about the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from diagnose.model import Bearing, ProbeResult
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import heading, print_sections, styled
from diagnose.report.style.vocabulary import BAD, GOOD, MUTED
from diagnose.units import format_bytes, format_ns, format_share

NEAR_BEST = 0.95
"""A share of the most samples per second: a batch that reaches it is as good as the best, within what trials
resolve."""
SAME_STEP = 1.1
"""A batch twice as large whose step takes no more than this many times as long is not what the step waits for."""
_COLOURS = {Bearing.CONFIRMS: GOOD, Bearing.CONTRADICTS: BAD, Bearing.OPEN: MUTED}


def probe_lines(probes: Sequence[ProbeResult], width: int) -> list[Text]:
    """The section; empty where nothing was probed."""
    if not probes:
        return []
    lines = [heading("Probes", "the step with and without one of its parts; none of them is a fix", width)]
    for one in probes:
        first, *rest = wrap(f"{_title(one)}: {_answer(one)}", width - 2)
        lines += [styled(f"  {first}", MUTED if one.refused else "bold"), *(styled(f"    {line}") for line in rest)]
        for finding in one.findings:
            lines += [styled(f"    {line}", _COLOURS[finding.bearing]) for line in wrap(finding.summary, width - 4)]
        for what in one.left:
            lines += [styled(f"    {line}", MUTED) for line in wrap(f"left as it is: {what}", width - 4)]
    for knee in filter(None, (_knee(probes, setting) for setting in _SWEEPS)):
        lines += [styled(f"  {line}") for line in wrap(knee, width - 2)]
    return lines


def as_text(probes: Sequence[ProbeResult], width: int, *, colour: bool) -> str:
    """Return the output of `diagnose probe`."""
    return print_sections([probe_lines(probes, width)], colour)


def _title(result: ProbeResult) -> str:
    words = ", ".join(f"{name}={value}" for name, value in result.setting.items())
    return f"{result.probe} with {words}" if words else result.probe


def _answer(result: ProbeResult) -> str:
    """One sentence: the two steps and their difference, or why there is none."""
    if result.step_ns is None or result.probed_ns is None or result.saved_ns is None:
        return f"no answer: {result.refused}"
    low, high = (f"−{format_ns(-end)}" if end < 0 else format_ns(end) for end in result.saved_ns)
    said = f"{format_ns(result.step_ns)} a step, {format_ns(result.probed_ns)} with the probe, which saves "
    said += f"{low} to {high} ({result.pairs} pairs)"
    if result.delay_ns:
        share = (result.probed_ns - result.step_ns) / result.delay_ns
        said += f"; of a delay of {format_ns(result.delay_ns)} the step shows {format_share(min(max(share, 0.0), 1.0))}"
    elif result.peak_memory_bytes is not None:
        said += f"; memory peaks at {' and '.join(format_bytes(peak) for peak in result.peak_memory_bytes)}"
    return said


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
"""By setting."""


def _knee(results: Sequence[ProbeResult], setting: str) -> str:
    """One sentence on where the samples or tokens per second stop growing; empty where fewer than two sizes were
    measured.
    """
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
