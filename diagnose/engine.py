"""Traces in, ranked findings out.

    diagnose(open_traces(paths), plugins.load())  →  Diagnosis

Each rank is reduced to a digest (`diagnose.analysis.rank_digest`), here or on another machine; the diagnosis of a job
is made of the digests of its ranks alone: what several ranks say alike is merged, and all is ranked.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from diagnose.analysis.job import JobFindings, ask_job_rules
from diagnose.analysis.ladder import ladder_of
from diagnose.analysis.rank_digest import SMALLEST_SHARE, Digest, digest_of
from diagnose.measure.job.ranks import roll_call
from diagnose.model import (
    SCHEMA,
    Accounting,
    CannotTell,
    ComputePart,
    Diagnosis,
    Finding,
    MemoryPeak,
    Place,
    RankAccounting,
    Severity,
    Steps,
    StepWork,
)
from diagnose.plugins import Catalogue
from diagnose.trace import Trace
from diagnose.units import NS_PER_S, format_ranks

__all__ = ["SMALLEST_SHARE", "DiagnosisWithClaims", "diagnose", "diagnose_digests", "examine", "examine_digests"]

_LONGEST_SOURCE_BYTES = 16 << 20


@dataclass(frozen=True)
class DiagnosisWithClaims:
    """A diagnosis, and what the rules claimed before anything was weighed."""

    diagnosis: Diagnosis
    claimed: Mapping[str, float]
    """By rule: its largest claim as a share of the counted steps of a rank, whatever else claims the same time and
    however noisy the steps are. A rule that claims nothing is absent."""


def diagnose(traces: Sequence[Trace], catalogue: Catalogue) -> Diagnosis:
    """Findings, accounting and what could not be told, of one job's ranks. A rule that raises becomes a warning."""
    return examine(traces, catalogue).diagnosis


def examine(traces: Sequence[Trace], catalogue: Catalogue) -> DiagnosisWithClaims:
    """The diagnosis together with the raw claims: a claim too small for a finding is not the same as none."""
    return examine_digests([digest_of(trace, catalogue) for trace in traces], catalogue)


def diagnose_digests(digests: Sequence[Digest], catalogue: Catalogue) -> Diagnosis:
    """The diagnosis of ranks that were reduced elsewhere, with these rules."""
    return examine_digests(digests, catalogue).diagnosis


def examine_digests(digests: Sequence[Digest], catalogue: Catalogue) -> DiagnosisWithClaims:
    """The diagnosis of ranks that were reduced elsewhere, with its claims. Where some ranks were traced and others only
    watched, those that were traced answer for the job.
    """
    given = digests
    traced = [digest for digest in given if digest.is_traced]
    digests = traced or given
    whole = ask_job_rules(digests, catalogue)
    merged = [_with_code(finding) for finding in _merge_ranks(whole)]
    found = {finding.rule for finding in merged}
    slowest = max(digests, key=_mean_ns, default=None)
    unknown: dict[CannotTell, None] = dict.fromkeys(whole.unknown)
    claimed: dict[str, float] = {}
    for digest in digests:
        unknown |= dict.fromkeys(digest.unknown)
        claimed |= {rule: max(share, claimed.get(rule, 0.0)) for rule, share in digest.claimed.items()}
    diagnosis = Diagnosis(
        schema=SCHEMA,
        source=tuple(digest.source for digest in digests),
        ranks=len(digests),
        device=next((digest.device for digest in digests if digest.device is not None), None),
        steps=slowest.steps if slowest else Steps(0, None),
        accounting=slowest.median_step if slowest else Accounting(),
        findings=tuple(merged),
        cannot_tell=tuple(answer for answer in unknown if answer.rule not in found),
        warnings=tuple(dict.fromkeys((*_warnings(digests, given, catalogue), *whole.failures))),
        per_rank=tuple(
            RankAccounting(digest.rank, digest.source, digest.steps, digest.accounting, waits)
            for digest, waits in zip(digests, whole.waits or [()] * len(digests), strict=True)
        ),
        has_device=any(digest.has_device for digest in digests),
        work=_work_of_step(slowest.work if slowest else None, whole.step_ns),
        memory=_fullest(digests),
        step_ns=whole.step_ns or None,
        critical_path=slowest.critical_path if slowest else None,
        compute=_with_lines(slowest.compute) if slowest else (),
        unclaimed=_unclaimed(slowest, whole),
    )
    ceiling, loader_ns = (slowest.ceiling, slowest.loader_ns) if slowest else (None, None)
    ladder = ladder_of(diagnosis, ceiling, catalogue.changes_training, loader_ns)
    return DiagnosisWithClaims(replace(diagnosis, ladder=ladder), claimed)


def _fullest(digests: Iterable[Digest]) -> MemoryPeak | None:
    """The peak of the rank that died of it, or whose device is fullest, with the text of its lines."""
    peaks = [digest.memory for digest in digests if digest.memory is not None]
    peak = max(peaks, key=lambda one: (one.wanted_bytes or 0, one.held_bytes), default=None)
    if peak is None:
        return None
    parts = (replace(part, place=_line(part.place) if part.place else None) for part in peak.parts)
    return replace(peak, parts=tuple(parts))


def _work_of_step(work: StepWork | None, step_ns: int) -> StepWork | None:
    """The arithmetic over the step that all shares are of."""
    if work is None or step_ns <= 0:
        return work
    rate = work.flops_per_step / step_ns * NS_PER_S
    return replace(work, flops_per_s=rate, utilisation=min(rate / work.ceiling_flops_per_s, 1.0))


def _unclaimed(slowest: Digest | None, whole: JobFindings) -> Accounting | None:
    """Return the time of a rank's steps, by class, that no finding claims; None without steps.

    What ranks wait for each other belongs to the findings about all of them.
    """
    if slowest is None or slowest.steps.count == 0:
        return None
    return replace(slowest.unclaimed, exposed_comm=0) if whole.joint else slowest.unclaimed


def _mean_ns(digest: Digest) -> float:
    return digest.steps.total_ns / digest.steps.count if digest.steps.count else 0.0


def _with_code(finding: Finding) -> Finding:
    return replace(finding, where=tuple(_line(place) for place in finding.where))


def _line(place: Place) -> Place:
    if place.code is not None or not _is_source(place.file):
        return place
    return replace(place, code=linecache.getline(place.file, place.line).strip() or None)


def _with_lines(parts: Iterable[ComputePart]) -> tuple[ComputePart, ...]:
    return tuple(replace(part, place=_line(part.place)) if part.place else part for part in parts)


def _is_source(file: str) -> bool:
    """Whether a file may be quoted. A recording may name any: a device without end, or what is nobody's business."""
    if file in linecache.cache:  # this process's own: a module that it loaded, a cell of a notebook
        return True
    try:
        return file.endswith(".py") and Path(file).is_file() and Path(file).stat().st_size <= _LONGEST_SOURCE_BYTES
    except (OSError, ValueError):
        return False


def _merge_ranks(whole: JobFindings) -> list[Finding]:
    """One finding where several ranks have the same one, with the figure of the rank that it costs most."""
    ordinal: list[tuple[str, int, Finding]] = []
    for findings in whole.own:
        seen: dict[str, int] = {}
        for finding in findings:
            number = seen[finding.rule] = seen.get(finding.rule, -1) + 1
            ordinal.append((finding.rule, number, finding))
    ordinal.sort(key=lambda entry: entry[:2])
    merged = [*whole.joint]
    for _, same in groupby(ordinal, key=lambda entry: entry[:2]):
        group = [finding for _, _, finding in same]
        worst = max(group, key=lambda finding: (finding.recoverable_ns, -(finding.rank or 0)))
        if len(group) == len(whole.own):
            merged.append(replace(worst, rank=None))
            continue
        others = sorted(finding.rank for finding in group if finding is not worst and finding.rank is not None)
        also = f"; also on {format_ranks(others)}" if others else ""
        merged.append(replace(worst, summary=worst.summary + also))
    return sorted(merged, key=_place)


def _place(finding: Finding) -> tuple[bool, bool, int, str]:
    """Sort key of findings: those that ended the run or will, then by cost, the largest first."""
    is_minor = finding.severity in (Severity.LOW, Severity.NOTE)
    return is_minor, not finding.ends_run, -finding.recoverable_ns, finding.rule


def _warnings(digests: Sequence[Digest], given: Sequence[Digest], catalogue: Catalogue) -> Iterable[str]:
    yield from (f"{problem.module} could not be loaded: {problem.message}" for problem in catalogue.problems)
    for digest in digests:
        named = f"rank {digest.rank}: " if len(digests) > 1 and digest.rank is not None else ""
        yield from digest.failures
        yield from (named + text for text in (*digest.recorded, *digest.measured))
    if len(given) > 1:
        yield from roll_call(given).warnings
    watched = sorted(one.rank for one in given if one.rank is not None and not one.is_traced)
    if watched and len(watched) < len(given):
        yield (
            f"{format_ranks(watched)} {'was' if len(watched) == 1 else 'were'} watched and not traced, "
            "as others are: --trace-ranks all traces every one"
        )
