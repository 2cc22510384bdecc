"""Checks the rows of a benchmark against the goals of training on several ranks.

    goals("ddp", rows)  # ["at least 3 % faster than the default: 100 MB 42.00 against 46.20 ms, 1.10 x: held"]

A row is what `ddp_buckets.py` keeps of a configuration. What was not measured is told as that, and never as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
FASTER_THAN_DEFAULT = 1.03
SOCKETS_BY_TRAINING, SOCKETS_BY_ACCUMULATION = 1.8, 1.5
SHARDED, UNDER_A_CAP = 1.28, 3.0


def goals(part: str, rows: Sequence[Row]) -> list[str]:
    """A line for each goal of this part; one where it has no rows at all."""
    return list(_GOALS[part](rows)) if rows else ["not measured"]


def _ddp(rows: Sequence[Row]) -> Iterator[str]:
    sweep = [row for row in rows if row["name"].endswith(" MB")]
    yield _times("at least 3 % faster than the default", _fastest(sweep, ""), rows[0], FASTER_THAN_DEFAULT)


def _sockets(rows: Sequence[Row]) -> Iterator[str]:
    name = f"training allowed, {SOCKETS_BY_TRAINING:g} x of the default"
    yield _times(name, _fastest(rows, "(training)"), rows[0], SOCKETS_BY_TRAINING)
    last, each = _fastest(rows, "micro-steps, no_sync"), _fastest(rows, "micro-steps, reduced in each")
    yield _times(f"accumulation, {SOCKETS_BY_ACCUMULATION:g} x of all micro-steps", last, each, SOCKETS_BY_ACCUMULATION)


def _fsdp(rows: Sequence[Row]) -> Iterator[str]:
    yield _times(f"{SHARDED:g} x of fully_shard", _fastest(rows[1:], ""), rows[0], SHARDED)


def _cap(rows: Sequence[Row]) -> Iterator[str]:
    under = [row for row in rows[2:] if " under " in row["name"]]
    if not under:
        yield "under a cap: not measured"
        return
    default, offloaded, *plans = under
    fails = default["note"] == "out of memory"
    yield f"the default does not run under the cap: {default['note'] if fails else 'it ran'}: {_word(fails)}"
    yield _times(f"{UNDER_A_CAP:g} x of CPUOffloadPolicy", _fastest(plans, ""), offloaded, UNDER_A_CAP)


_GOALS: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "ddp": _ddp,
    "ddp-sockets": _sockets,
    "fsdp": _fsdp,
    "fsdp-8": _fsdp,
    "cap": _cap,
}


def _times(name: str, row: Row | None, against: Row | None, asked: float) -> str:
    """Whether `row` is so many times as fast as another."""
    if row is None or against is None or not _known(against):
        return f"{name}: not measured"
    times = _ms(against) / _ms(row)
    return f"{name}: {row['name']} {_ms(row):.2f} against {_ms(against):.2f} ms, {times:.2f} x: {_word(times >= asked)}"


def _fastest(rows: Sequence[Row], part_of_name: str) -> Row | None:
    return min((row for row in rows if part_of_name in row["name"] and _known(row)), key=_ms, default=None)


def _known(row: Row) -> bool:
    return row["ms"] is not None


def _ms(row: Row) -> float:
    return float(row["ms"])


def _word(held: bool) -> str:
    return "held" if held else "missed"
