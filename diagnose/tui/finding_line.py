"""One finding in one line."""

from __future__ import annotations

from rich.text import Text

from diagnose.model import Finding
from diagnose.report.paths import clipped, clipped_path, place
from diagnose.report.phrases import is_priced, sentence
from diagnose.report.styled import styled
from diagnose.report.vocabulary import SEVERITIES
from diagnose.tui.theme import FAINT
from diagnose.units import format_ns, format_share


def cost(finding: Finding) -> Text:
    """What it gives back, in two columns: time, and share of a step. Unknown is no zero."""
    if not is_priced(finding):
        return styled(f"{'unknown':>8} {'':>6}", FAINT)
    return styled(f"{format_ns(finding.recoverable_ns):>8}").append(f" {format_share(finding.share):>6}", FAINT)


def finding_line(finding: Finding, root: str | None, width: int) -> Text:
    """Severity, name, what it gives back, where: in one line of `width` columns."""
    look = SEVERITIES[finding.severity]
    line = styled(f"{look.mark} {look.label:<7}", look.colour)
    line.append(f"{clipped(finding.rule, 20):<21}", "bold")
    line.append_text(cost(finding))
    room = width - len(line) - 3
    spot = place(finding.where[0], root) if finding.where else ""
    if spot and room >= 8:
        line.append("   ").append(clipped_path(spot, room))
        room -= min(len(spot), room) + 3
    if room >= 24:
        line.append("   ").append(clipped(sentence(finding.summary), room), FAINT)
    line.rstrip()
    line.truncate(max(width, 1))
    return line
