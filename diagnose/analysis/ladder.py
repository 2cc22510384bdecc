"""Findings as a ladder: in which order they would be treated, which step each leads to, and where it ends.

    ladder_of(diagnosis, ceiling, trains)

The rungs come in the order of the findings, which is that of what is sure to be saved. No nanosecond is claimed by two
findings, so the savings add up. Each saving is an interval (`diagnose.prediction`); a rung's step lies between what all
lower ends and what all upper ends together leave, and not below the practical ceiling. Until a rung treats the loader,
nor below the step that its workers keep up with: what makes the device faster does not make them faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from diagnose.model import Diagnosis, Ladder, PracticalCeiling, Rung
from diagnose.prediction import interval_of
from diagnose.units import NS_PER_S

LEAST_SHARE = 0.01
"""The least share of a step that a rung is predicted to save: a fix must save 1 % to be kept (`diagnose.verdict`)."""


_OF_THE_LOADER = frozenset({"input-bound", "cpu-contention"})
"""Rules whose fixes let a loader keep up with shorter steps."""


def ladder_of(
    diagnosis: Diagnosis,
    ceiling: PracticalCeiling | None,
    trains: Callable[[str], bool],
    loader_ns: int | None = None,
) -> Ladder | None:
    """The ladder of the slowest rank; None without steps. `trains` says whether a fixer changes the training,
    `loader_ns` is the shortest step that the loader's workers keep up with."""
    if not diagnosis.step_ns:
        return None
    rungs = tuple(_rungs(diagnosis, ceiling, trains, loader_ns or 0))
    waits = any(rank.accounting.idle.get("input", 0) for rank in diagnosis.per_rank)
    return Ladder(
        step_ns=diagnosis.step_ns,
        utilisation=_utilisation(diagnosis, diagnosis.step_ns),
        rungs=rungs,
        ceiling=ceiling,
        apart=_parts_above(diagnosis, ceiling),
        loader_ns=loader_ns,
        loader_unknown=waits and loader_ns is None and not any(rung.rule in _OF_THE_LOADER for rung in rungs),
    )


def _rungs(
    diagnosis: Diagnosis, ceiling: PracticalCeiling | None, trains: Callable[[str], bool], loader_ns: int
) -> Iterator[Rung]:
    least_ns = ceiling.step_ns if ceiling is not None else 0
    floor_ns = min(max(least_ns, loader_ns), diagnosis.step_ns or 0)
    now_ns = likely_ns = low_ns = high_ns = diagnosis.step_ns or 0
    for finding in diagnosis.findings:
        if finding.estimate_ns < LEAST_SHARE * now_ns:
            continue
        if finding.rule in _OF_THE_LOADER:
            floor_ns = least_ns
        less_ns, more_ns = interval_of(finding.estimate_ns, finding.confidence)
        if finding.rule in _OF_THE_LOADER:
            more_ns = min(more_ns, max(now_ns - _computing_ns(diagnosis), finding.estimate_ns))
        likely_ns = max(likely_ns - finding.estimate_ns, floor_ns)
        low_ns = max(low_ns - more_ns, floor_ns)
        high_ns = max(high_ns - less_ns, likely_ns)
        yield Rung(
            rule=finding.rule,
            rank=finding.rank,
            fixers={name: trains(name) for name in finding.fixers},
            likely_ns=likely_ns,
            step_ns=(low_ns, high_ns),
            utilisation=_utilisation(diagnosis, likely_ns),
        )


def _computing_ns(diagnosis: Diagnosis) -> int:
    """Return how long the device computes in a mean step, on the rank where that is least: no loader makes it less. 0
    without a device, as a host that computes may be held up itself."""
    known = [rank for rank in diagnosis.per_rank if diagnosis.has_device and rank.steps.count]
    return min((rank.accounting.compute // rank.steps.count for rank in known), default=0)


def _utilisation(diagnosis: Diagnosis, step_ns: int) -> float | None:
    """The model's arithmetic in a step of that length, over the ceiling; None where it is not known."""
    work = diagnosis.work
    if work is None or step_ns <= 0:
        return None
    return work.flops_per_step / step_ns * NS_PER_S / work.ceiling_flops_per_s


def _parts_above(diagnosis: Diagnosis, ceiling: PracticalCeiling | None) -> dict[str, int]:
    """Divide the part of the step above the ceiling by what it is spent on; the parts sum to all of it."""
    if ceiling is None or not diagnosis.step_ns:
        return {}
    parts = {
        "products": ceiling.matmul_now_ns - ceiling.matmul_ns,
        "other kernels": ceiling.other_now_ns - ceiling.memory_ns - ceiling.launch_ns,
        "no compute": diagnosis.step_ns - ceiling.matmul_now_ns - ceiling.other_now_ns,
    }
    return dict(sorted(parts.items(), key=lambda part: -part[1]))
