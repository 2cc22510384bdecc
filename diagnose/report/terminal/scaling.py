"""How a program scales, as text and as JSON: a row a run, and what takes the rest."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from diagnose.comparison.scaling import STRONG, Run, Scaling
from diagnose.units import format_ns, format_share

_ROW = "{:>7}{:>12}{:>18}{:>12}{:>14}{:>14}{:>12}"


def render(scaling: Scaling) -> str:
    """The table and a sentence on the last row."""
    return "\n".join(_lines(scaling)) + "\n"


def to_json(scaling: Scaling) -> str:
    """Return how a program scales, as one JSON object."""
    record = {"schema": 1, **msgspec.to_builtins(scaling)}
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def _lines(scaling: Scaling) -> Iterator[str]:
    how = "ranks divide the work" if scaling.kind == STRONG else "each rank does the same work"
    told = ", told from the work of a rank" if scaling.told else ""
    yield f"{scaling.kind.capitalize()} scaling: {how}{told}"
    yield _ROW.format("ranks", "step", "efficiency", "compute", "exposed comm", "of it waiting", "other")
    for row in scaling.rows:
        run = row.run
        uncertain = f" ± {format_share(row.uncertain)}" if row.uncertain else ""
        times = (run.compute_ns, run.exposed_ns, run.waited_ns, run.other_ns)
        efficiency = f"{format_share(row.efficiency)}{uncertain}"
        cells = ("–" if time is None else format_ns(time) for time in times)
        yield _ROW.format(run.ranks, format_ns(run.step_ns), efficiency, *cells)
    yield from _last(scaling)
    unwatched = [str(row.run.ranks) for row in scaling.rows if not row.run.watched]
    if unwatched:
        yield (
            f"on {', '.join(unwatched)} ranks only traced steps are known, which the profiler lengthens: a live run "
            "(diagnose run) measures steps without it as well"
        )


def _last(scaling: Scaling) -> Iterator[str]:
    first, last = scaling.rows[0].run, scaling.rows[-1]
    divided = first.ranks / last.run.ranks if scaling.kind == STRONG else 1.0
    if last.lost_ns <= 0:
        yield f"on {last.run.ranks} ranks nothing is lost"
        return
    parts = _parts(first, last.run, divided)
    longest = sorted(((time, name) for name, time in parts.items() if time > 0), reverse=True)
    words = ", ".join(f"{format_ns(time)} {name}" for time, name in longest)
    yield (
        f"on {last.run.ranks} ranks a step takes {format_ns(last.lost_ns)} longer than it should"
        + (f"; in its traced steps: {words}" if words else "")
    )


def _parts(first: Run, last: Run, divided: float) -> dict[str, float]:
    """Return what each class of a rank's traced step exceeds its ideal by."""
    parts = {
        "more compute (beside collectives it is slower)": last.compute_ns - divided * first.compute_ns,
        "copies and idle time": last.other_ns - divided * first.other_ns,
    }
    exposed = last.exposed_ns - divided * first.exposed_ns
    if last.waited_ns is None or first.waited_ns is None:
        return parts | {"exposed communication, waiting for other ranks included": exposed}
    waited = last.waited_ns - divided * first.waited_ns
    return parts | {"waiting for other ranks": waited, "exposed communication": exposed - waited}
