"""Candidates for a trial: findings with one of their fixers, the largest predicted saving first. Computed again after
each kept fix.

The profiler window of the patched program decides what comes next. It is a few steps long: what it claims too little of
to stand out from its noise is not gone for that, and is still tried where the first diagnosis, which knew more, claimed
enough of a step of today's length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnose.compose.stack.run_context import RunContext, absolute
from diagnose.compose.stack.stack import moved
from diagnose.engine import SMALLEST_SHARE, DiagnosisWithClaims, examine
from diagnose.errors import InputError
from diagnose.fixer import Fixer
from diagnose.model import Confidence, Finding, Place
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.source.rewrite.line_map import LineMap
from diagnose.trace.readers import open_traces
from diagnose.units import format_share
from diagnose.verdict import LEAST_SAVING


@dataclass(frozen=True)
class Candidate:
    """A fixer for a finding."""

    finding: Finding
    fixer: Fixer


@dataclass(frozen=True)
class Review:
    """The candidates that remain after the patched program's own profiler window."""

    queue: tuple[Candidate, ...]
    gone: tuple[tuple[Candidate, str], ...] = ()
    """The fixes that need not be tried any more, and what became of them."""


def candidates(program: Program, findings: Sequence[Finding], catalogue: Catalogue) -> Iterator[Candidate]:
    """Yield the candidates in the order of the findings, which are sorted by weight."""
    for finding in (one.with_doubtful() for one in findings):
        places = tuple(replace(place, file=absolute(program, place.file)) for place in finding.where)
        for name in finding.fixers:
            if name in catalogue.fixers:
                yield Candidate(replace(finding, where=places), catalogue.fixers[name])


def followed(queue: Sequence[Candidate], before: Mapping[str, str], after: Mapping[str, str]) -> list[Candidate]:
    """The candidates with their places where the lines of the texts `before` went in those `after`."""
    lines = LineMap.between(before, {path: text for path, text in after.items() if text != before.get(path)})
    return [replace(one, finding=moved(one.finding, lines, after)) for one in queue]


def review(
    queue: Sequence[Candidate],
    windows: Sequence[Path],
    program: Program,
    known: RunContext,
    catalogue: Catalogue,
    step_ns: int | None = None,
    kept: Collection[str] = (),
) -> Review:
    """Let the findings of the new state decide what is tried next; without a readable window all stays as it was.

    `step_ns` is the new state's step without a profiler: what it would save is predicted of that. `kept` are the
    fixers kept so far.
    """
    try:
        traces = open_traces(windows) if windows else []
    except InputError:
        traces = []
    if not traces:
        return Review(tuple(queue))
    facts = replace(known.facts, step_ns_watched=step_ns)
    now = examine([replace(trace, sites=known.sites, facts=facts) for trace in traces], catalogue)
    before = {candidate.finding.rule: candidate.finding for candidate in queue}
    # The window of a trial has no samples: where the first run knew the lines, they still hold.
    found = [
        replace(finding, where=_shareless(before[finding.rule]))
        if not finding.where and finding.rule in before
        else finding
        for finding in now.diagnosis.findings
    ]
    seen = {finding.rule for finding in found}
    coming = list(candidates(program, found, catalogue))
    gone = []
    for candidate in queue:
        if candidate.finding.rule in seen:
            continue
        stays = candidate.fixer.whole_step or not set(candidate.fixer.completes).isdisjoint(kept)
        fate = None if stays else _fate(candidate.finding, now)
        if fate is None:
            coming.append(_of_a_step(candidate, step_ns) if stays else candidate)
        else:
            gone.append((candidate, fate))
    waiting = {candidate.fixer.name for candidate in coming}
    return Review(tuple(coming), tuple(entry for entry in gone if entry[0].fixer.name not in waiting))


def _shareless(finding: Finding) -> tuple[Place, ...]:
    """The places of a finding without their parts of its time, which are others since a fix was kept."""
    return tuple(replace(place, share=None) for place in finding.where)


def _of_a_step(candidate: Candidate, step_ns: int | None) -> Candidate:
    """The candidate with its promise, which was one of an earlier state, as the same share of a step of today."""
    finding = candidate.finding
    promised_ns = min(finding.recoverable_ns, round(finding.share * step_ns)) if step_ns else finding.recoverable_ns
    return replace(candidate, finding=replace(finding, recoverable_ns=promised_ns, confidence=Confidence.HINT))


def _fate(finding: Finding, now: DiagnosisWithClaims) -> str | None:
    """Return what became of a finding that is no longer one; None where it is still worth a trial."""
    if any(answer.rule == finding.rule for answer in now.diagnosis.cannot_tell):
        return None
    if now.claimed.get(finding.rule, 0.0) < SMALLEST_SHARE:
        return f"{finding.rule} is gone"
    step_ns = now.diagnosis.steps.mean_ns
    if step_ns and finding.recoverable_ns < LEAST_SAVING * step_ns:
        return f"{finding.rule} is down to less than {format_share(LEAST_SAVING)} of a step"
    return None
