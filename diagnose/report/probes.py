"""What probes measured: the step with and without a part of it, and what that says of the findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from diagnose.model import Bearing, ProbeResult
from diagnose.report.line_wrapping import wrap
from diagnose.report.styled_text import heading, printed, styled
from diagnose.report.vocabulary import BAD, GOOD, MUTED
from diagnose.units import format_bytes, format_ns

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
    return lines


def as_text(probes: Sequence[ProbeResult], width: int, *, colour: bool) -> str:
    """What `diagnose probe` prints."""
    return printed([probe_lines(probes, width)], colour)


def _title(result: ProbeResult) -> str:
    words = ", ".join(f"{name}={value}" for name, value in result.setting.items())
    return f"{result.probe} with {words}" if words else result.probe


def _answer(result: ProbeResult) -> str:
    """One sentence: the two steps and their difference, or why there is none."""
    if result.step_ns is None or result.probed_ns is None or result.saved_ns is None:
        return f"no answer: {result.refused}"
    low, high = (_signed(end) for end in result.saved_ns)
    said = f"{format_ns(result.step_ns)} a step, {format_ns(result.probed_ns)} with the probe, which saves "
    said += f"{low} to {high} ({result.pairs} pairs)"
    if result.peak_memory_bytes is not None:
        said += f"; memory peaks at {' and '.join(format_bytes(peak) for peak in result.peak_memory_bytes)}"
    return said


def _signed(time_ns: int) -> str:
    return f"−{format_ns(-time_ns)}" if time_ns < 0 else format_ns(time_ns)
