"""The output of probes: the step with and without a part of it, and what that says about the findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from diagnose.model import Bearing, ProbeResult
from diagnose.report.sections.probe_answers import ABOUT, answer, knees, left, title
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import heading, print_sections, styled
from diagnose.report.style.vocabulary import BAD, GOOD, MUTED

_COLOURS = {Bearing.CONFIRMS: GOOD, Bearing.CONTRADICTS: BAD, Bearing.OPEN: MUTED}


def probe_lines(probes: Sequence[ProbeResult], width: int) -> list[Text]:
    """The section; empty where nothing was probed."""
    if not probes:
        return []
    lines = [heading("Probes", ABOUT, width)]
    for one in probes:
        first, *rest = wrap(f"{title(one)}: {answer(one)}", width - 2)
        lines += [styled(f"  {first}", MUTED if one.refused else "bold"), *(styled(f"    {line}") for line in rest)]
        for finding in one.findings:
            lines += [styled(f"    {line}", _COLOURS[finding.bearing]) for line in wrap(finding.summary, width - 4)]
        for what in left(one):
            lines += [styled(f"    {line}", MUTED) for line in wrap(what, width - 4)]
    for knee in knees(probes):
        lines += [styled(f"  {line}") for line in wrap(knee, width - 2)]
    return lines


def as_text(probes: Sequence[ProbeResult], width: int, *, colour: bool) -> str:
    """Return the output of `diagnose probe`."""
    return print_sections([probe_lines(probes, width)], colour)
