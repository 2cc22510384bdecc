"""One finding in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from diagnose.model import Confidence, Finding
from diagnose.report.style.paths import clip, clipped_path, place
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import SEVERITIES
from diagnose.report.wording.phrases import is_priced, sentence, share
from diagnose.tui.theme import FAINT
from diagnose.units import format_ns, format_share

_OF_STEP = re.compile(r" of each [a-z ]*step of [^()]*(?=\()")
"""The words of `diagnose.measure.steps.step_share` that name the step: where there is one line, its end says more."""
_PLACE = 32  # columns; a longer place pushes what follows it aside
_NAME = 23  # columns; as the longest name of a rule that ships with the project


def cost(finding: Finding) -> Text:
    """Return the saving in two columns: time, and share of a step. An unknown one says so; it is not zero.

    A hint, and a finding of which nothing is sure, have `perhaps` in place of the time: no figure stands there as if
    it were known, and none as if nothing could be gained.
    """
    if not is_priced(finding):
        return styled(f"{'unknown':>8} {'':>6}", FAINT)
    if not finding.recoverable_ns and finding.estimate_ns:
        return styled(f"{'perhaps':>8}").append(f" {format_share(finding.estimate_share):>6}", FAINT)
    hint = finding.confidence is Confidence.HINT and finding.possible_ns is None
    time = "perhaps" if hint else format_ns(finding.recoverable_ns)
    return styled(f"{time:>8}").append(f" {share(finding):>6}", FAINT)


def finding_lines(findings: Sequence[Finding], root: str | None, width: int) -> list[Text]:
    """Return one line for each finding, their parts in columns no wider than the widest entry."""
    name_width = max((len(finding.rule) for finding in findings), default=0)
    place_width = max((min(len(_spot(finding, root)), _PLACE) for finding in findings), default=0)
    return [_finding_line(finding, root, width, min(name_width, _NAME), place_width) for finding in findings]


def _finding_line(finding: Finding, root: str | None, width: int, name_width: int, place_width: int) -> Text:
    """Severity, name, what it gives back, where, and why: what has room in `width` columns."""
    look = SEVERITIES[finding.severity]
    line = styled(f"{look.mark} {look.label:<7}", look.colour)
    line.append(f"{clip(finding.rule, name_width):<{name_width + 1}}", "bold")
    line.append_text(cost(finding))
    room = width - len(line) - 3
    spot = _spot(finding, root)
    if (spot or place_width) and room >= 8:
        spot = f"{clipped_path(spot, room):<{min(place_width, room)}}"
        line.append("   ").append(spot)
        room -= len(spot) + 3
    if room >= 24:
        line.append("   ").append(clip(_OF_STEP.sub(" ", sentence(finding.summary)), room), FAINT)
    line.rstrip()
    line.truncate(max(width, 1))
    return line


def _spot(finding: Finding, root: str | None) -> str:
    return place(finding.where[0], root) if finding.where else ""
