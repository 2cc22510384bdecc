"""Where the median step, which is drawn, is not the average one, which findings weigh."""

from __future__ import annotations

from diagnose.model import Accounting, Diagnosis, RankAccounting
from diagnose.report.style.step_bar import slices
from diagnose.units import format_ns

_UNLIKE = 0.1
"""A share of the average step: a class whose time in the median step is further from its average is told of."""


def on_average(diagnosis: Diagnosis) -> str:
    """Return a sentence about the average step where it differs from the median one; empty where they are alike."""
    known = [row for row in diagnosis.per_rank if row.steps.count and row.accounting.total_ns]
    longest_ns = max((_mean_ns(row) for row in known), default=0)
    # Of ranks that are as slow, whichever was drawn.
    said = [_apart(row, diagnosis.accounting) for row in known if _mean_ns(row) == longest_ns]
    return said[0] if said and all(said) else ""


def _mean_ns(rank: RankAccounting) -> int:
    return rank.accounting.total_ns // rank.steps.count


def _apart(rank: RankAccounting, median: Accounting) -> str:
    """Return what differs most between the average step of a rank and a median one; empty where that is little."""
    looks = {part.kind: part.look for part in (*slices(rank.accounting), *slices(median))}
    drawn = {part.kind: part.ns for part in slices(median)}
    average = {part.kind: part.ns // rank.steps.count for part in slices(rank.accounting)}
    apart = {kind: abs(average.get(kind, 0) - drawn.get(kind, 0)) for kind in looks}
    kind = max(apart, key=lambda kind: apart[kind])
    if apart[kind] <= _UNLIKE * _mean_ns(rank):
        return ""
    return (
        f"Steps are uneven: the average one takes {format_ns(_mean_ns(rank))}, {format_ns(average.get(kind, 0))} of it "
        f"{looks[kind].label}; the median one drawn here has {format_ns(drawn[kind]) if kind in drawn else 'none'} of "
        "that. Findings weigh the average step."
    )
