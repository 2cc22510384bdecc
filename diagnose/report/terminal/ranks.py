"""Ranks side by side: where each one's time goes, who waits for whom, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from diagnose.measure.job.bus_bandwidth import CALIBRATED, BusBandwidth
from diagnose.report.style.line_wrapping import wrap
from diagnose.units import format_bytes, format_count, format_ns, format_share

if TYPE_CHECKING:
    from diagnose.measure.job.job_report import JobReport
    from diagnose.measure.job.ranks import JobRow

_GB = 1e9
_MOST_ROWS = 16
_LARGE_BYTES = 4 << 20  # from here on a link's rate says something of a message's time
_WAIT = 0.01
"""A share of the step: shorter waits are not worth a word."""


def render(between: JobReport, width: int = 100) -> str:
    """Everything, as text."""
    lines: list[str] = []
    for section in (_table, _waits, _groups, _pipeline, _buckets, _modules, _bandwidth):
        found = list(section(between))
        if found:
            lines += [*([""] if lines else []), *(part for line in found for part in _fitted(line, width))]
    return "\n".join(lines) + "\n"


def to_json(between: JobReport) -> str:
    """The ranks of a job as one JSON object; times in ns, None for what is unknown."""
    job = between.job
    record: dict[str, Any] = {
        "schema": 1,
        "world_size": job.roll.world_size,
        "missing": job.roll.missing,
        "table": [_row(row) for row in job.table],
        "waits": between.waits,
        "late": [
            {"rank": one.rank, "cost_ns": sum(one.cost_ns) // max(len(one.cost_ns), 1), "share": one.share}
            for one in job.stragglers
        ],
        "ranks": [msgspec.to_builtins(one) for one in between.ranks],
        "shown": job.table[between.shown].rank if job.table else None,
        "buckets": [msgspec.to_builtins(one) for one in between.buckets],
        "least_exposed_ns": between.least_exposed_ns,
        "modules": [msgspec.to_builtins(one) for one in between.modules],
        "blocking": None
        if between.blocking is None
        else {**msgspec.to_builtins(between.blocking), "trusted": between.blocking.trusted},
        "bandwidth": [{**msgspec.to_builtins(one), "share": one.share} for one in between.bandwidth],
    }
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def _row(row: JobRow) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "source": row.source,
        "steps": row.steps,
        "mean_step_ns": round(row.mean_step_ns),
        "compute_ns": _per_step(row, row.accounting.compute),
        "exposed_comm_ns": _per_step(row, row.accounting.exposed_comm),
        "exposed_copy_ns": _per_step(row, row.accounting.exposed_copy),
        "idle_ns": _per_step(row, sum(row.accounting.idle.values())),
        "last": row.last,
        "clock_ns": row.clock_ns,
        "clock_spread_ns": row.clock_spread_ns,
    }


def _per_step(row: JobRow, time_ns: int) -> int:
    return time_ns // max(row.steps, 1)


def _table(between: JobReport) -> Iterator[str]:
    job = between.job
    world = f" of {job.roll.world_size}" if job.roll.world_size else ""
    devices = ", ".join(dict.fromkeys(one.device for one in between.ranks if one.device))
    devices = devices or ("devices not named" if any(one.has_device for one in between.ranks) else "CPU only")
    yield f"{len(job.table)} rank{'s' if len(job.table) > 1 else ''}{world} · {devices}"
    settings = {f"{name}={value}" for one in between.ranks for name, value in one.host_settings.items()}
    if settings:
        yield f"under {' '.join(sorted(settings))}"
    yield _columns(("rank", "step", "compute", "exposed comm", "of it waiting", "other", "last in", "clock"), _TABLE)
    for row, of_rank in zip(job.table, between.ranks, strict=True):
        other = sum(row.accounting.idle.values()) + row.accounting.exposed_copy
        wait = "–" if of_rank.exposed_wait_ns is None else format_ns(of_rank.exposed_wait_ns)
        clock = "–" if row.clock_ns is None else f"{format_ns(row.clock_ns)} ± {format_ns(row.clock_spread_ns or 0)}"
        cells = (
            "–" if row.rank is None else str(row.rank),
            format_ns(row.mean_step_ns),
            format_ns(_per_step(row, row.accounting.compute)),
            format_ns(_per_step(row, row.accounting.exposed_comm)),
            wait,
            format_ns(_per_step(row, other)),
            "–" if row.last is None else str(row.last),
            clock,
        )
        yield _columns(cells, _TABLE)
    lengths = [row.mean_step_ns for row in job.table if row.steps]
    if len(lengths) > 1 and max(lengths) > 0:
        spread = (max(lengths) - min(lengths)) / max(lengths)
        yield f"mean steps differ by {format_share(spread)}; times are per step, the clock's against the first rank's"
    yield from job.roll.warnings
    yield from _blocking(between)


_TABLE = (4, 10, 10, 13, 14, 10, 8, 20)


def _blocking(between: JobReport) -> Iterator[str]:
    """Exposed is not yet blocking: what a replay across ranks says of the difference."""
    found = between.blocking
    if found is None or not found.exposed_ns:
        return
    if not found.trusted:
        yield f"a replay across ranks misses the measured steps by {format_share(found.off)}: what blocks is not known"
        return
    waited = sum(one.exposed_wait_ns or 0 for one in between.ranks) / len(between.ranks)
    yield (
        f"of {format_ns(found.exposed_ns)} exposed communication in the mean rank's step, {format_ns(waited)} is "
        f"waiting for other ranks; were every transfer instant, the step would end {format_ns(found.saved_ns)} sooner "
        f"(a replay across ranks, {format_share(found.off)} off)"
    )


def _waits(between: JobReport) -> Iterator[str]:
    job = between.job
    if not between.waits:
        return
    yield "Who waits for whom"
    said = False
    for one, row in zip(job.table, between.waits, strict=True):
        whom = sorted(((wait, at) for at, wait in enumerate(row) if wait >= _WAIT * one.mean_step_ns), reverse=True)
        if whom:
            said = True
            words = ", ".join(f"{format_ns(wait)} for rank {_name(job.table[at].rank)}" for wait, at in whom[:4])
            yield f"  rank {_name(one.rank)} waits {words} per step"
    if not said:
        yield "  nobody, for 1 % of a step or more"
    for late in job.stragglers:
        cost = sum(late.cost_ns) / max(len(late.cost_ns), 1)
        yield (
            f"  rank {_name(late.rank)} is late: all others wait for it at least {format_ns(cost)} per step "
            f"({format_share(late.share)}), in {late.late_steps} of {len(late.cost_ns)} steps"
        )


def _groups(between: JobReport) -> Iterator[str]:
    lines: dict[str, list[str]] = {}
    for one in between.ranks:
        for group in one.groups:
            members = _listed(group.members) if group.members else f"{group.ranks} ranks" if group.ranks > 0 else "?"
            counted = ((format_count(often), kind.replace("_", "-")) for kind, often in group.collectives.items())
            kinds = ", ".join(f"{often} × {kind}" for often, kind in counted)
            moved = f" of {format_bytes(group.bytes_per_step)}" if group.bytes_per_step >= 0 else ""
            key = f"  {group.role:<22}{group.name or 'unnamed'} ({members}): {kinds}{moved} per step"
            lines.setdefault(key, []).append(format_ns(group.exposed_ns))
    if lines:
        yield "Groups of ranks"
    for line, exposed in list(lines.items())[:_MOST_ROWS]:
        yield f"{line}; exposed {', '.join(exposed[:8])}"


def _pipeline(between: JobReport) -> Iterator[str]:
    found = [(one.rank, one.bubble) for one in between.ranks if one.bubble is not None]
    if found:
        bubble = found[0][1]
        yield (
            f"Pipeline of {bubble.stages} stages, {bubble.microbatches} micro-batches: an even one idles "
            f"{format_share(bubble.least_share)}"
        )
    for rank, bubble in found[:_MOST_ROWS]:
        yield f"  rank {_name(rank)} idles {format_ns(bubble.idle_ns)} per step ({format_share(bubble.share)})"


def _buckets(between: JobReport) -> Iterator[str]:
    if not between.buckets or between.modules:
        return  # of sharded modules the next table says more
    rank = _name(between.job.table[between.shown].rank)
    yield f"Buckets of gradients on rank {rank}, the least delayed one; since its backward pass began to compute"
    columns = ("", "size", "ready", "sent", "done", "transfer", "exposed", "tail")
    yield _columns(columns, _BUCKETS)
    for number, one in enumerate(between.buckets[:_MOST_ROWS]):
        moments = (one.ready_ns, one.start_ns, one.end_ns, one.transfer_ns, one.exposed_ns, one.tail_ns)
        size = format_bytes(one.size_bytes) if one.size_bytes >= 0 else "–"
        yield _columns((str(number), size, *map(format_ns, moments)), _BUCKETS)
    yield from _more(len(between.buckets))
    tail = sum(one.tail_ns for one in between.buckets)
    least = between.least_exposed_ns
    bound = "" if least is None else f"; whatever the buckets, at least {format_ns(least)} do at this link's speed"
    yield f"  {format_ns(tail)} of them lie after the backward pass, where nothing hides them{bound}"


_BUCKETS = (4, 11, 10, 10, 10, 10, 10, 10)


def _modules(between: JobReport) -> Iterator[str]:
    if not between.modules:
        return
    yield f"Sharded modules on rank {_name(between.job.table[between.shown].rank)}, the least delayed one; per step"
    widths = (28, 11, 9, 8, 10, 10, 10, 10, 10)
    columns = ("", "gathered", "gathers", "again", "gather", "late", "early", "reduce", "exposed")
    yield _columns(columns, widths)
    for one in between.modules[:_MOST_ROWS]:
        times = (one.gather_ns, one.late_ns, one.early_ns, one.reduce_ns, one.reduce_exposed_ns)
        cells = (f"{format_count(one.gathers)}", f"{format_count(one.again)}", *map(format_ns, times))
        size = format_bytes(one.gather_bytes) if one.gather_bytes >= 0 else "–"
        yield _columns((one.name[:28], size, *cells), widths)
    yield from _more(len(between.modules))


def _bandwidth(between: JobReport) -> Iterator[str]:
    if not between.bandwidth:
        return
    yield "Bandwidth over the bus, without waiting (as nccl-tests define it)"
    widths = (16, 6, 11, 7, 11, 11, 12)
    yield _columns(("", "ranks", "size", "count", "transfer", "GB/s", "of"), widths)
    for one in between.bandwidth[:_MOST_ROWS]:
        ceiling = one.ceiling_bytes_per_s
        against = f"{ceiling / _GB:.1f}" if ceiling else "–"
        small = one.size_bytes < _LARGE_BYTES and one.ceiling_source != CALIBRATED
        against = "" if small else against
        cells = (
            one.kind.replace("_", "-"),
            str(one.ranks),
            format_bytes(one.size_bytes),
            str(one.count),
            format_ns(one.transfer_ns),
            f"{one.bytes_per_s / _GB:.2f}",
            against,
        )
        yield _columns(cells, widths) + f"  {_against(one)}"
    yield from _more(len(between.bandwidth))


def _against(one: BusBandwidth) -> str:
    """Small messages take as long as they do whatever the link carries: only a measured curve knows how long."""
    if one.share is None:
        return "not calibrated"
    if one.ceiling_source == CALIBRATED:
        return f"{format_share(one.share)} of what {CALIBRATED} measured"
    return f"{format_share(one.share)} of the {one.ceiling_source}" if one.size_bytes >= _LARGE_BYTES else ""


def _more(count: int) -> Iterator[str]:
    if count > _MOST_ROWS:
        yield f"  and {count - _MOST_ROWS} more: --json has them all"


def _columns(cells: Iterable[str], widths: Sequence[int]) -> str:
    """The first column to the left, all others to the right."""
    first, *rest = zip(cells, widths, strict=True)
    return (f"  {first[0]:<{first[1]}}" + "".join(f" {cell:>{width}}" for cell, width in rest)).rstrip()


def _fitted(line: str, width: int) -> list[str]:
    """Sentences are wrapped; rows of tables are not, so that columns stay columns."""
    if len(line) <= width or "  " in line.strip():
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return [indent + part for part in wrap(line.strip(), width - len(indent))]


def _listed(members: Sequence[int]) -> str:
    """`0–7`, `0, 2, 4`; long lists are cut."""
    if len(members) > 2 and list(members) == list(range(members[0], members[-1] + 1)):
        return f"ranks {members[0]}–{members[-1]}"
    shown = ", ".join(map(str, members[:8]))
    return f"ranks {shown}" + (f" and {len(members) - 8} more" if len(members) > 8 else "")


def _name(rank: int | None) -> str:
    return "?" if rank is None else str(rank)
