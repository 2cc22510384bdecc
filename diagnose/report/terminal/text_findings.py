"""One finding as lines of text: its severity and gain, what it is, where, what proves it, what would be tried."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from diagnose.model import Finding, Place
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import clipped, clipped_path, place
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import MUTED, SEVERITIES
from diagnose.report.wording.phrases import by_hand, evidence, gain, sentence
from diagnose.units import format_share

_INDENT = 5
_NAME_WIDTH = 11
_PLACES = 3


def finding_lines(number: int, finding: Finding, root: str | None, width: int) -> list[Text]:
    """The finding, `number` in the ranking; file names are relative to `root`."""
    look = SEVERITIES[finding.severity]
    first = styled(f"{number:>2} ", MUTED).append(f"{look.mark} {look.label:<6} ", f"bold {look.colour}")
    name = finding.rule if finding.rank is None else f"{finding.rule} on rank {finding.rank}"
    first.append(name, "bold")
    back = gain(finding)
    if len(first) + len(back) + 3 <= width:
        lines = [first.append(" " * (width - len(first) - len(back))).append(back)]
    else:
        lines = [first, *_named("gain", back, width)]
    lines += [styled(" " * _INDENT + line) for line in wrap(sentence(finding.summary), width - _INDENT)]
    for index, where in enumerate(finding.where[:_PLACES]):
        alone = len(finding.where) == 1
        lines.append(_place("" if index else "where", where, root, width, alone))
    if finding.evidence:
        lines += _named("evidence", " · ".join(map(evidence, finding.evidence)), width)
    if finding.fixers:
        lines += _named("would try", ", ".join(finding.fixers), width)
    else:
        lines += _named("by hand", by_hand(finding), width)
    if finding.confirm:
        lines += _named("to confirm", finding.confirm, width)
    return lines


def _named(name: str, words: str, width: int) -> list[Text]:
    column = _INDENT + _NAME_WIDTH + 1
    first, *rest = wrap(words, width - column)
    lines = [styled(" " * _INDENT).append(f"{name:<{_NAME_WIDTH}} ", MUTED).append(first)]
    return lines + [styled(" " * column + more) for more in rest]


def _place(name: str, where: Place, root: str | None, width: int, alone: bool) -> Text:
    column = _INDENT + _NAME_WIDTH + 1
    line = styled(" " * _INDENT).append(f"{name:<{_NAME_WIDTH}} ", MUTED)
    spot = clipped_path(place(where, root), width - column)
    line.append(spot, "bold underline")
    share = f"  {format_share(where.share)} of it" if where.share is not None and not alone else ""
    room = width - column - cell_len(spot) - len(share) - 2
    if where.code and room >= 16:
        line.append("  ").append(clipped(where.code, room), "italic")
    if room >= 0:
        line.append(share, MUTED)
    return line
