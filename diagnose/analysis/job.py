"""Combines the digests of several ranks: who waits for whom, and what remains of each rank's own findings.

    ask_job_rules(digests, plugins.load())  →  JobFindings

A rank that waits in a collective lost no time to communication: what its findings claim of that time is taken from
them. Nor does a job lose more to a collective that all ranks share than the rank that loses least: where that one
computes beside it, the others come to wait for its compute instead. Rules that look at all ranks (`Rule.check_job`)
then say who is to blame; what the blamed rank's own findings claim of the same time becomes part of that, so that no
nanosecond is found twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from diagnose.analysis.rank_digest import SMALLEST_SHARE, Digest
from diagnose.measure.job.ranks import Job, job_of_records
from diagnose.measure.job.waits import who_waits
from diagnose.model import CannotTell, Evidence, Finding, RankWait, Severity
from diagnose.plugins import Catalogue
from diagnose.rule import JobClaim, Rule
from diagnose.trace.intervals import Intervals
from diagnose.units import format_ns

_IN_COLLECTIVES = 0.9
"""A finding that claims this part of its time while collectives run, and nothing else, is one of their exposure."""


_MOST_WAITS = 8
"""The most ranks that are listed as waited for: a job of a thousand ranks has a million pairs."""


@dataclass(frozen=True)
class JobFindings:
    """The findings of a job's ranks, settled against each other."""

    own: tuple[tuple[Finding, ...], ...]
    """The findings of each rank, in the order of the digests."""
    joint: tuple[Finding, ...]
    """The findings of all ranks together."""
    unknown: tuple[CannotTell, ...]
    failures: tuple[str, ...]
    waits: tuple[tuple[RankWait, ...], ...] = ()
    """The ranks that each rank waits for, in the order of the digests; none where no collectives could be matched."""
    step_ns: int = 0
    """The longest of the ranks' mean steps, which the shares of all findings are shares of; 0 without steps."""


def ask_job_rules(digests: Sequence[Digest], catalogue: Catalogue) -> JobFindings:
    """Ask the rules that look at all ranks. Without several ranks, what each one found alone stays as it is."""
    rules = [catalogue.rules[name] for name in sorted(catalogue.rules) if catalogue.rules[name].check_job]
    step_ns = max((digest.step_ns for digest in digests), default=0)
    own = [tuple(finding.of_step(step_ns) for finding in digest.findings) for digest in digests]
    if not rules or not digests:
        return JobFindings(tuple(own), (), (), (), step_ns=step_ns)
    job = job_of_records([digest.record for digest in digests])
    for member, number in enumerate(job.given):
        own[number] = _without_waiting(own[number], digests[number], step_ns, job.waiting[member])
    if job.matched and all(len(group.members) == len(job.table) for group in job.matched):
        for number, findings in zip(
            job.given, _shared_evenly([own[at] for at in job.given], digests, step_ns), strict=True
        ):
            own[number] = findings
    joint: list[Finding] = []
    unknown: list[CannotTell] = []
    failures: list[str] = []
    for rule in rules:
        try:
            answers = list(rule.check_job(job, [own[number] for number in job.given])) if rule.check_job else []
        except Exception as error:  # noqa: BLE001 - a rule may be the user's own; a broken one must not hide the others
            failures.append(f"rule {rule.name} failed and was left out: {type(error).__name__}: {error}")
            continue
        unknown += [answer for answer in answers if isinstance(answer, CannotTell)]
        for claim in (answer for answer in answers if isinstance(answer, JobClaim)):
            if claim.share >= SMALLEST_SHARE:
                joint.append(_finding(rule, claim, catalogue, step_ns))
                number = job.given[claim.member]
                own[number] = _without_reason(own, number, claim, step_ns)
    return JobFindings(tuple(own), tuple(joint), tuple(unknown), tuple(failures), _waits(job, digests), step_ns)


def _waits(job: Job, digests: Sequence[Digest]) -> tuple[tuple[RankWait, ...], ...]:
    if not job.matched:
        return ()
    first = digests[job.given[0]].record
    found: list[tuple[RankWait, ...]] = [() for _ in digests]
    for number, row in zip(job.given, who_waits(job, first.step_start_ns, first.step_end_ns), strict=True):
        longest = sorted(((wait, at) for at, wait in enumerate(row) if wait > 0), key=lambda one: (-one[0], one[1]))
        found[number] = tuple(RankWait(job.table[at].rank, wait) for wait, at in longest[:_MOST_WAITS])
    return tuple(found)


def _without_waiting(
    findings: tuple[Finding, ...], digest: Digest, step_ns: int, waiting: Intervals
) -> tuple[Finding, ...]:
    """A rank's findings less what they claim of the time in which it waited for other ranks."""
    left = []
    for finding, (claimed, whole) in zip(findings, digest.in_collectives, strict=True):
        waited = (claimed & waiting).total_ns
        if not waited:
            left.append(finding)
            continue
        steps = max(digest.steps.count, 1)
        gone = min(finding.estimate_ns * waited // max(whole, 1), finding.estimate_ns)
        note = Evidence("of it, waiting for other ranks", waited // steps, "ns")
        said = f"{finding.summary}; {format_ns(waited / steps)} of it is waiting for other ranks"
        left += _less(replace(finding, summary=said, evidence=(*finding.evidence, note)), gone, step_ns)
    return tuple(left)


def _shared_evenly(
    own: Sequence[tuple[Finding, ...]], digests: Sequence[Digest], step_ns: int
) -> list[tuple[Finding, ...]]:
    """The ranks' findings; those of exposed collectives with no more than the rank has that loses least."""
    of_exposure = {
        finding.rule
        for digest in digests
        for finding, (claimed, whole) in zip(digest.findings, digest.in_collectives, strict=True)
        if whole and (claimed - digest.record.computing).total_ns >= _IN_COLLECTIVES * whole
    }
    shared: list[list[Finding]] = [[] for _ in own]
    for rank, findings in zip(shared, own, strict=True):
        for finding in findings:
            least = finding.estimate_ns
            if finding.rule in of_exposure:
                least = min(sum(one.estimate_ns for one in theirs if one.rule == finding.rule) for theirs in own)
            rank += _less(finding, finding.estimate_ns - least, step_ns)
    return [tuple(findings) for findings in shared]


def _without_reason(
    own: Sequence[tuple[Finding, ...]], number: int, claim: JobClaim, step_ns: int
) -> tuple[Finding, ...]:
    """The findings of the blamed rank less what they claim beyond those of the other ranks, up to what is blamed."""
    left, budget = [], claim.recoverable_ns
    for finding in own[number]:
        others = [
            max((one.estimate_ns for one in theirs if one.rule == finding.rule), default=0)
            for other, theirs in enumerate(own)
            if other != number
        ]
        gone = min(max(finding.estimate_ns - int(median(others or [0])), 0), budget)
        budget -= gone
        left += _less(finding, gone, step_ns)
    return tuple(left)


def _less(finding: Finding, gone_ns: int, step_ns: int) -> list[Finding]:
    """A finding that lost some of its time; none where too little is left."""
    if not gone_ns:
        return [finding]
    left_ns = finding.estimate_ns - gone_ns
    if left_ns < SMALLEST_SHARE * step_ns:
        return []
    sure_ns = min(finding.recoverable_ns, left_ns)  # what was not sure of the whole is not of a part
    less = replace(finding, recoverable_ns=sure_ns, possible_ns=left_ns if sure_ns < left_ns else None)
    return [less.of_step(step_ns)]


def _finding(rule: Rule, claim: JobClaim, catalogue: Catalogue, step_ns: int) -> Finding:
    sure_ns = int(claim.recoverable_ns * claim.sure)
    found = Finding(
        rule=rule.name,
        severity=Severity.NOTE,
        rank=claim.rank,
        recoverable_ns=sure_ns,
        share=0.0,
        confidence=claim.confidence,
        summary=claim.summary,
        evidence=tuple(claim.evidence),
        where=tuple(claim.where),
        fixers=catalogue.tried_for(rule, claim.fixers),
        confirm=claim.confirm,
        possible_ns=claim.recoverable_ns if sure_ns < claim.recoverable_ns else None,
    )
    return found.of_step(step_ns)
