"""Traces in, ranked findings out.

    diagnose(open_traces(paths), plugins.load())  →  Diagnosis

Every rule is asked about every rank. Claims to the same time are settled, the largest first, so that no nanosecond is
found twice; what is left is divided by the steps, ranked, and merged over the ranks.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.ranks import roll_call
from diagnose.model import (
    SCHEMA,
    Accounting,
    CannotTell,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Place,
    RankAccounting,
    Severity,
    Steps,
)
from diagnose.plugins import Catalogue
from diagnose.rule import Claim, Rule
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.units import format_ns, format_share

SMALLEST_SHARE = 0.005
"""A claim to less of the step than this is no finding: half of the 1 % that a fix must bring to be kept."""

_LOW = 0.02
"""From here on a share is a finding whatever the noise of the step lengths: steps of varying work are noisy as a whole
while the shares of their causes are not."""

_DOUBT = 0.1
"""A claim of which this share lies where the recording contradicts itself is a bound, not a measurement."""

_OVERHEAD = 1.1
"""Traced steps this much longer than watched ones are said to be: host causes then weigh more than they really do."""


@dataclass(frozen=True)
class _Settled:
    """A claim after others took their share of its time."""

    rule: Rule
    claim: Claim
    recoverable_ns: int
    lost_to: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Examination:
    """A diagnosis, and what the rules claimed before anything was weighed."""

    diagnosis: Diagnosis
    claimed: Mapping[str, float]
    """By rule: its largest claim as a share of the counted steps of a rank, whatever else claims the same time and
    however noisy the steps are. A rule that claims nothing is absent."""


def diagnose(traces: Sequence[Trace], catalogue: Catalogue) -> Diagnosis:
    """Findings, accounting and what could not be told, of one job's ranks. A rule that raises becomes a warning."""
    return examine(traces, catalogue).diagnosis


def examine(traces: Sequence[Trace], catalogue: Catalogue) -> Examination:
    """The diagnosis together with the raw claims: a claim too small for a finding is not the same as none."""
    ranks = [Measures(trace) for trace in traces]
    warnings = [f"{problem.module} could not be loaded: {problem.message}" for problem in catalogue.problems]
    findings: list[list[Finding]] = []
    unknown: dict[CannotTell, None] = {}
    claimed: dict[str, float] = {}
    for measures in ranks:
        answers = _ask(measures, catalogue, warnings)
        unknown |= dict.fromkeys(answer for _, answer in answers if isinstance(answer, CannotTell))
        claims = [(rule, answer) for rule, answer in answers if isinstance(answer, Claim)]
        for rule, claim in claims:
            share = claim.recoverable_ns / measures.total_ns if measures.total_ns else 0.0
            claimed[rule.name] = max(share, claimed.get(rule.name, 0.0))
        findings.append([_finding(settled, measures, catalogue) for settled in _settle(claims, measures)])
        warnings += _warnings(measures, named=len(ranks) > 1)
    if len(ranks) > 1:
        warnings += roll_call(traces).warnings
    merged = _merged(findings, ranks)
    slowest = max(ranks, key=lambda measures: measures.mean_ns, default=None)
    diagnosis = Diagnosis(
        schema=SCHEMA,
        source=tuple(trace.source for trace in traces),
        ranks=len(ranks),
        device=_device(traces),
        steps=_steps(slowest) if slowest else Steps(0, None),
        accounting=_median_step(slowest) if slowest else Accounting(),
        findings=tuple(merged),
        cannot_tell=tuple(answer for answer in unknown if all(answer.rule != found.rule for found in merged)),
        warnings=tuple(dict.fromkeys(warnings)),
        per_rank=tuple(
            RankAccounting(measures.trace.rank, measures.trace.source, _steps(measures), measures.accounting)
            for measures in ranks
        ),
    )
    return Examination(diagnosis, claimed)


def _ask(measures: Measures, catalogue: Catalogue, warnings: list[str]) -> list[tuple[Rule, Claim | CannotTell]]:
    answers: list[tuple[Rule, Claim | CannotTell]] = []
    for name in sorted(catalogue.rules):
        rule = catalogue.rules[name]
        try:
            answers += [(rule, answer) for answer in rule.check(measures)]
        except Exception as error:  # noqa: BLE001 - a rule may be the user's own; a broken one must not hide the others
            warnings.append(f"rule {name} failed and was left out: {type(error).__name__}: {error}")
    return answers


def _settle(claims: Iterable[tuple[Rule, Claim]], measures: Measures) -> list[_Settled]:
    """Give each nanosecond to one claim: the largest first, of equals the one nearest the source, then by name."""
    ordered = sorted(claims, key=lambda pair: (-pair[1].recoverable_ns, pair[0].nearness, pair[0].name))
    taken: list[tuple[str, Intervals]] = []
    settled = []
    for rule, claim in ordered:
        wanted = claim.claims & measures.counted
        free = wanted - Intervals.union(times for _, times in taken)
        whole = wanted.total_ns
        # What a claim loses of its time it loses of its gain, in proportion.
        gain = min(claim.recoverable_ns, whole)
        gain = gain * free.total_ns // whole if whole else 0
        lost = tuple((name, (wanted & times).total_ns) for name, times in taken)
        settled.append(_Settled(rule, claim, gain, tuple((name, length) for name, length in lost if length)))
        taken.append((rule.name, free))
    return [one for one in settled if _counts(one, measures)]


def _counts(one: _Settled, measures: Measures) -> bool:
    """Whether a claim is a finding: a hint without a figure is; a figure must exceed what the steps can tell."""
    if one.claim.confidence is Confidence.HINT and one.claim.recoverable_ns == 0:
        return True
    noise = _noise_ns(measures) or 0.0
    share = one.recoverable_ns / measures.total_ns if measures.total_ns else 0.0
    if share < SMALLEST_SHARE:
        return False
    return share >= _LOW or one.recoverable_ns >= noise * measures.step_count


def _noise_ns(measures: Measures) -> float | None:
    """What the mean step is uncertain by: two standard errors, from the median absolute deviation."""
    lengths = measures.steps.length_ns
    if len(lengths) < 3:
        return None
    deviation = float(np.median(np.abs(lengths - np.median(lengths))))
    return 2 * 1.4826 * deviation / math.sqrt(len(lengths))


def _finding(one: _Settled, measures: Measures, catalogue: Catalogue) -> Finding:
    count = measures.step_count
    per_step = one.recoverable_ns // count if count else 0
    share = one.recoverable_ns / measures.total_ns if measures.total_ns else 0.0
    fixers = one.rule.fixers if one.claim.fixers is None else tuple(one.claim.fixers)
    evidence = [*one.claim.evidence]
    evidence += [Evidence(f"also claimed by {name}", length // count, "ns") for name, length in one.lost_to]
    return Finding(
        rule=one.rule.name,
        severity=Severity.of_share(share),
        rank=measures.trace.rank,
        recoverable_ns=per_step,
        share=share,
        confidence=_confidence(one.claim, measures),
        summary=one.claim.summary,
        evidence=tuple(evidence),
        where=tuple(_with_code(place) for place in one.claim.where),
        fixers=tuple(name for name in fixers if name in catalogue.fixers),
        confirm=_confirm(one, measures),
    )


def _confidence(claim: Claim, measures: Measures) -> Confidence:
    """The claim's own, unless the recording contradicts itself in too much of the time that it claims."""
    if claim.confidence is not Confidence.MEASURED:
        return claim.confidence
    doubted = (claim.claims & measures.doubt).total_ns
    return Confidence.BOUND if doubted > _DOUBT * claim.claims.total_ns else Confidence.MEASURED


def _confirm(one: _Settled, measures: Measures) -> str | None:
    noise = _noise_ns(measures)
    if noise is None or one.recoverable_ns >= noise * measures.step_count:
        return one.claim.confirm
    doubt = f"the measured steps vary by ±{format_ns(noise)}, more than this: trace more steps"
    return f"{one.claim.confirm}; {doubt}" if one.claim.confirm else doubt


def _with_code(place: Place) -> Place:
    if place.code is not None:
        return place
    return replace(place, code=linecache.getline(place.file, place.line).strip() or None)


def _merged(findings: Sequence[Sequence[Finding]], ranks: Sequence[Measures]) -> list[Finding]:
    """One finding where several ranks have the same one, with the figure of the rank that it costs most."""
    ordinal: list[tuple[str, int, Finding]] = []
    for of_rank in findings:
        seen: dict[str, int] = {}
        for finding in of_rank:
            number = seen[finding.rule] = seen.get(finding.rule, -1) + 1
            ordinal.append((finding.rule, number, finding))
    ordinal.sort(key=lambda entry: entry[:2])
    merged = []
    for _, same in groupby(ordinal, key=lambda entry: entry[:2]):
        group = [finding for _, _, finding in same]
        worst = max(group, key=lambda finding: (finding.recoverable_ns, -(finding.rank or 0)))
        if len(group) == len(ranks):
            merged.append(replace(worst, rank=None))
            continue
        others = sorted(finding.rank for finding in group if finding is not worst and finding.rank is not None)
        also = f"; also on rank {', '.join(map(str, others))}" if others else ""
        merged.append(replace(worst, summary=worst.summary + also))
    return sorted(merged, key=lambda finding: (-finding.recoverable_ns, finding.rule))


def _steps(measures: Measures) -> Steps:
    if measures.step_count == 0:
        return Steps(0, None)
    lengths = np.sort(measures.steps.length_ns)
    return Steps(
        count=measures.step_count,
        median_ns=int(lengths[(len(lengths) - 1) // 2]),
        mean_ns=measures.total_ns // measures.step_count,
        total_ns=measures.total_ns,
        found_by=measures.steps.found_by,
    )


def _median_step(measures: Measures) -> Accounting:
    if measures.step_count == 0:
        return measures.accounting
    order = np.argsort(measures.steps.length_ns, kind="stable")
    return measures.accounting_of(int(order[(len(order) - 1) // 2]))


def _device(traces: Sequence[Trace]) -> str | None:
    for trace in traces:
        if trace.facts.device_name:
            return trace.facts.device_name
        if trace.has_device and trace.device_names:
            return trace.device_names[0]
    return None


def _warnings(measures: Measures, *, named: bool) -> list[str]:
    trace = measures.trace
    found = [*trace.warnings, *measures.steps.left_out, *(violation.sentence for violation in measures.violations)]
    devices = len(np.unique(trace.device.device)) if trace.has_device else 0
    if devices > 1:
        found.append(f"work on {devices} devices in one process; the accounting is that of the busiest")
    if measures.step_count == 0:
        found.append("no step was found: nothing that could be accounted for was recorded")
    elif measures.steps.found_by == "whole trace":
        found.append("no steps are marked and none repeat: the whole recording counts as one step")
    elif measures.steps.found_by == "period":
        found.append("no steps are marked: they were inferred from the period with which the kernels repeat")
    watched, traced = trace.facts.step_ns_watched, _steps(measures).median_ns
    if watched and traced and traced > _OVERHEAD * watched:
        found.append(
            f"the profiler made steps {traced / watched:.2f} times as long ({format_ns(traced)} against "
            f"{format_ns(watched)}): causes on the host weigh more here than without it"
        )
    noise = _noise_ns(measures)
    if noise is not None and noise > _LOW * measures.mean_ns:
        found.append(
            f"the {measures.step_count} counted steps vary: their mean is known to "
            f"±{format_share(noise / measures.mean_ns)} (two standard errors from the median absolute deviation)"
        )
    return [f"rank {trace.rank}: {text}" for text in found] if named and trace.rank is not None else found
