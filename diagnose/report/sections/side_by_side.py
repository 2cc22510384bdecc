"""The ranks of a job side by side, a line each: where a step goes, whom the rank waits for; live, how it keeps up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from rich.text import Text

from diagnose.model import Diagnosis, RankAccounting
from diagnose.report.style.step_bar import bar, slices
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import BAD, MUTED
from diagnose.session import RankSteps, State
from diagnose.units import format_ns, format_share

WAIT = 0.01
"""A share of the step: shorter waits are not worth a word."""
_RECENT = 200
_LEAST_BAR, _MOST_BAR = 8, 60
_WIDE = 100
_NAME = 10


def traced_lines(diagnosis: Diagnosis, width: int, most: int, solid: bool = False) -> list[Text]:
    """A line a rank from its traced steps; at most so many ranks, those that say most."""
    ranks = [one for one in diagnosis.per_rank if one.steps.count]
    if len(ranks) < 2:
        return []
    shown = _worth_showing(ranks, most)
    longest = max(_mean_ns(one) for one in ranks)
    tails = [whom(one, 2 if width >= _WIDE else 1) for one in shown]
    room = width - _NAME - 11 - max(len(tail) + 2 for tail in tails)
    room = max(min(room, _MOST_BAR), _LEAST_BAR)
    lines = []
    for one, tail in zip(shown, tails, strict=True):
        cells = max(round(room * _mean_ns(one) / longest), 1)
        line = styled(f"{_name(one.rank):<{_NAME}}").append(f"{format_ns(_mean_ns(one)):>9}  ", "bold")
        line.append_text(bar(slices(one.accounting), cells, solid)).append(" " * (room - cells))
        line.append(f"  {tail}" if tail else "", MUTED)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return [*lines, *_others(len(ranks) - len(shown))]


def spread_words(diagnosis: Diagnosis) -> str:
    """Return how far the ranks' steps are apart."""
    means = [_mean_ns(one) for one in diagnosis.per_rank if one.steps.count]
    if len(means) < 2:
        return ""
    return f"{len(means)} ranks, mean steps {format_share((max(means) - min(means)) / max(means))} apart"


@dataclass(frozen=True)
class Pace:
    """How one rank keeps up with the others of its host while the program runs."""

    rank: int
    step_ns: int
    """The median."""
    input_share: float
    behind_ns: int
    """How much later its steps end than those of the rank that ends first, in the median step."""


def paces(steps: Mapping[int, RankSteps]) -> list[Pace]:
    """Return the paces by rank, over the last steps that all have taken and of which each one's end is known; else
    none."""
    count = min((one.count for one in steps.values()), default=0)
    begin = max((count - _RECENT, *(one.earlier for one in steps.values())))
    if count - begin < 2 or any(one.skipped for one in steps.values()):
        return []
    last = {rank: slice(begin - one.earlier, count - one.earlier) for rank, one in steps.items()}
    ends = {rank: one.ends_ns[last[rank]] for rank, one in sorted(steps.items())}
    first = [min(column) for column in zip(*ends.values(), strict=True)]
    found = []
    for rank, column in ends.items():
        whole = column[-1] - column[0]
        waited = sum(steps[rank].input_ns[last[rank]][1:])
        found.append(
            Pace(
                rank,
                median_low(after - before for before, after in pairwise(column)),
                waited / whole if whole > 0 else 0.0,
                median_low(end - begin for end, begin in zip(column, first, strict=True)),
            )
        )
    return found


def live_lines(state: State, width: int, most: int) -> list[Text]:
    """A line a rank from its step log and counters."""
    found = paces(state.steps)
    if len(found) < 2:
        return []
    # Whose steps end later by less than this, keeps up.
    late = WAIT * median_low(one.step_ns for one in found)
    last = max(one.behind_ns for one in found)
    shown = sorted(sorted(found, key=lambda one: -one.behind_ns)[:most], key=lambda one: one.rank)
    lines = []
    for one in shown:
        line = styled(f"{_name(one.rank):<{_NAME}}").append(f"{format_ns(one.step_ns):>9}", "bold").append("  ")
        behind = f"ends {format_ns(one.behind_ns)} after the first" if one.behind_ns else "ends first"
        line.append(f"{behind:<31}", BAD if one.behind_ns >= late and one.behind_ns == last else MUTED)
        line.append(f"input {format_share(one.input_share):>6}", MUTED)
        line.append(_busy(state.counters.get(one.rank, {})), MUTED)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return [*lines, *_others(len(found) - len(shown))]


def _busy(counters: Mapping[str, float]) -> str:
    for name, label in (("gpu.sm_activity", "SMs"), ("gpu.utilization", "GPU busy"), ("host.cpu", "CPU")):
        if name in counters:
            return f"   {label} {counters[name]:.0f} %"
    return ""


def _worth_showing(ranks: Sequence[RankAccounting], most: int) -> list[RankAccounting]:
    """All; of many the one that others wait for most, the first, the last, others that are waited for, the slowest."""
    if len(ranks) <= most:
        return list(ranks)
    waited: dict[int | None, int] = {}
    for one in ranks:
        for wait in one.waits:
            waited[wait.rank] = waited.get(wait.rank, 0) + wait.time_ns
    late = max(waited, key=lambda rank: waited[rank], default=None)

    def place(at: int) -> tuple[bool, bool, float, float]:
        one = ranks[at]
        is_end = at in (0, len(ranks) - 1)
        return one.rank != late, not is_end, -waited.get(one.rank, 0), -_mean_ns(one)

    order = sorted(range(len(ranks)), key=place)
    return [ranks[at] for at in sorted(order[:most])]


def whom(one: RankAccounting, most: int) -> str:
    """Return for which ranks one waits, the longest waits first; empty where it hardly does."""
    worth = [wait for wait in one.waits if wait.time_ns >= WAIT * _mean_ns(one)]
    words = " and ".join(f"{format_ns(wait.time_ns)} for rank {wait.rank}" for wait in worth[:most])
    return f"waits {words}" if words else ""


def _mean_ns(one: RankAccounting) -> float:
    return one.steps.total_ns / one.steps.count


def _name(rank: int | None) -> str:
    return "a rank" if rank is None else f"rank {rank}"


def _others(count: int) -> list[Text]:
    return [styled(f"and {count} more: `diagnose ranks` has them all", MUTED)] if count > 0 else []
