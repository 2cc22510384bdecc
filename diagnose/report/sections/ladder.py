"""The ladder as lines of text: where the step is, the rungs in their order, the practical ceiling, what separates them.

One screen: of many rungs the first are shown, and how many follow.
"""

from __future__ import annotations

from rich.text import Text

from diagnose.model import Diagnosis, Ladder, Rung
from diagnose.prediction import COVERAGE
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import heading, styled
from diagnose.report.style.vocabulary import MUTED
from diagnose.report.wording.phrases import arithmetic
from diagnose.units import format_ns, format_share

MOST_RUNGS = 6
_FIXERS = 3


def ladder_lines(diagnosis: Diagnosis, width: int) -> list[Text]:
    """The section; empty where there is nothing to climb to and nothing known of the arithmetic."""
    ladder, done = diagnosis.ladder, arithmetic(diagnosis)
    said = [styled(line, MUTED) for line in wrap(done, width)] if done else []
    if ladder is None or not (ladder.rungs or ladder.ceiling):
        return said
    table = rows(ladder)
    name_width = max(len(name) for name, *_ in table) + 2
    head = "predicted step" if width >= _WIDE else "step"
    time_width = max(len(head), *(len(time) for _, time, *_ in table)) + 2
    share_width = _SHARE if has_utilisation(ladder) and 2 + name_width + time_width + _SHARE <= width else 0
    head = f"  {'rung':<{name_width}}{head:>{time_width}}{'of peak' if share_width else '':>{share_width}}"
    lines = [styled(head, MUTED)]
    for name, time, utilisation, fixers in table:
        line = styled(f"  {name:<{name_width}}").append(f"{time:>{time_width}}", "bold")
        line.append(f"{utilisation:>{share_width}}" if share_width else "")
        column = len(line) + 3
        first, *rest = wrap(fixers, width - column) if fixers and width - column >= _NARROWEST else [""]
        lines.append(line.append(f"   {first}" if first else "", MUTED))
        lines += [styled(" " * column + more, MUTED) for more in rest]
    last = summary(ladder)
    closing = [styled(line, MUTED) for line in wrap(last, width)] if last else []
    return [heading("The ladder", f"each rung on top of those above it; {_covers()}", width), *said, *lines, *closing]


_NARROWEST = 16
_WIDE = 60
_SHARE = 9  # columns


def has_utilisation(ladder: Ladder) -> bool:
    """Whether the share of the device's peak is known for any rung."""
    return any(utilisation for _, _, utilisation, _ in rows(ladder))


def rows(ladder: Ladder) -> list[tuple[str, str, str, str]]:
    """Return the rows to show: name, step, utilisation, fixers. The step as it is comes first, the ceiling last."""
    found = [("now", format_ns(ladder.step_ns), _percent(ladder.utilisation), "")]
    for number, rung in enumerate(ladder.rungs[:MOST_RUNGS], 1):
        name = rung.rule if rung.rank is None else f"{rung.rule} on rank {rung.rank}"
        found.append((f"{number} {name}", span(rung), _percent(rung.utilisation), fixers_of(rung)))
    if ladder.ceiling is not None:
        share = _percent(ladder.ceiling.utilisation)
        found.append(("practical ceiling", format_ns(ladder.ceiling.step_ns), share, ""))
    return found


def span(rung: Rung) -> str:
    """The predicted step as an interval."""
    low, high = rung.step_ns
    return f"{format_ns(low)} … {format_ns(high)}" if low else f"up to {format_ns(high)}"


def fixers_of(rung: Rung) -> str:
    """The first fixers by name, those marked that change the training."""
    if not rung.fixers:
        return "by hand"
    names = [f"{name} (changes training)" if trains else name for name, trains in rung.fixers.items()]
    more = len(names) - _FIXERS
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_FIXERS])} and {more} more"


def summary(ladder: Ladder) -> str:
    """Return where the step is, where the rungs lead, where they could end, and what separates these."""
    said = []
    more = len(ladder.rungs) - MOST_RUNGS
    if more > 0:
        said.append(f"{more} smaller rungs follow." if more > 1 else "A smaller rung follows.")
    last = ladder.rungs[-1] if ladder.rungs else None
    if last is not None and last.utilisation is not None and ladder.utilisation is not None:
        said.append(
            f"You are at {format_share(ladder.utilisation)}; these rungs are predicted to lead to "
            f"{format_share(last.utilisation)}."
        )
    if ladder.loader_ns is not None and last is not None and last.likely_ns <= ladder.loader_ns < ladder.step_ns:
        said.append(f"Below {format_ns(ladder.loader_ns)} its loader's workers, as they are, do not keep up.")
    if ladder.loader_unknown and last is not None:
        said.append("Whether its loader keeps up with shorter steps is not known.")
    apart = [f"{what} {format_ns(ns)}" for what, ns in ladder.apart.items() if ns > 0]
    if ladder.ceiling is not None and apart:
        above_ns = ladder.step_ns - ladder.ceiling.step_ns
        said.append(f"Of today's step {format_ns(max(above_ns, 0))} lie above the ceiling: {', '.join(apart)}.")
    return " ".join(said)


def _percent(share: float | None) -> str:
    return "" if share is None else format_share(share)


def _covers() -> str:
    return f"intervals hold {COVERAGE * 100:.0f} % of measured savings"
