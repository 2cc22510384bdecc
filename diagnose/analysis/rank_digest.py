"""One rank's recording, reduced to what a job's diagnosis needs of it: a few kB of plain data that travel.

    digest_of(trace, plugins.load())  →  Digest

Every rule is asked. Claims to the same time are settled, the largest first, so that no nanosecond is found twice; what
is left is divided by the steps. `diagnose.engine` makes a diagnosis of the digests of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diagnose.analysis.attribution import AttributedClaim, attribute
from diagnose.analysis.doubt import MUCH, doubtful_ns, hidden_ns, recurring, unreplayed
from diagnose.analysis.evidence_events import require_rows, with_events
from diagnose.analysis.telemetry import readings_in_words
from diagnose.measure import Measures
from diagnose.measure.job.rank_record import RankRecord, record_of
from diagnose.measure.lines.compute_parts import compute_parts
from diagnose.measure.replay.critical_path import critical_path
from diagnose.measure.replay.savings import untraced_ns
from diagnose.measure.steps.loader_capacity import busy_loader_ns
from diagnose.measure.steps.pace import watched_step_ns
from diagnose.measure.views.noise import mean_uncertain_by
from diagnose.model import (
    Accounting,
    CannotTell,
    ComputePart,
    Confidence,
    Evidence,
    Finding,
    MemoryPeak,
    PracticalCeiling,
    Severity,
    Steps,
    StepWork,
)
from diagnose.plugins import Catalogue
from diagnose.rule import Claim, Rule
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.units import format_ns, format_share, format_value

SMALLEST_SHARE = 0.005
"""A claim to less of the step than this is no finding: half of the 1 % that a fix must bring to be kept."""

_LOW = 0.02
"""The share from which on a finding is one whatever the noise of the step lengths: steps of varying work are noisy
as a whole while the shares of their causes are not."""

_OVERHEAD = 1.1
"""Traced steps this much longer than watched ones are said to be: host causes then weigh more than they really do."""


@dataclass(frozen=True)
class Digest:
    """The digest of one rank's recording."""

    source: str
    rank: int | None
    world_size: int | None
    device: str | None
    """The device's name, where the recording tells."""
    has_device: bool
    """Whether work of a device was recorded."""
    is_traced: bool
    """Whether a profiler was on: of the ranks of a large job some are watched only."""
    steps: Steps
    accounting: Accounting
    """All counted steps together."""
    median_step: Accounting
    """The step of median length."""
    findings: tuple[Finding, ...]
    """The findings once the claims were settled, without the source lines' text."""
    claimed: Mapping[str, float]
    """By rule: its largest claim as a share of the counted steps, before anything was weighed."""
    unknown: tuple[CannotTell, ...]
    failures: tuple[str, ...]
    """Rules that raised."""
    recorded: tuple[str, ...]
    """Warnings of whoever read the recording."""
    measured: tuple[str, ...]
    """Warnings that came up in measuring it."""
    in_collectives: tuple[tuple[Intervals, int], ...]
    """Per finding, the part of the time it claims that lies in collectives, and how long all of that time is: what of
    it turns out to be waiting for other ranks is not the finding's."""
    work: StepWork | None
    """The arithmetic of a step; None where it is not known."""
    memory: MemoryPeak | None
    """The contents of the device's memory at its peak; None where they are not known."""
    critical_path: Mapping[str, int] | None
    """The causes that the end of a step waited for, by class; None where no replay tells."""
    compute: tuple[ComputePart, ...]
    """The parts of the compute, all counted steps together."""
    record: RankRecord
    """The record that `diagnose.measure.job.ranks.job_of_records` compares with the other ranks."""
    ceiling: PracticalCeiling | None
    """The shortest step that the model could have; None where too little is known."""
    unclaimed: Accounting
    """The time that no finding claims, of all counted steps together."""
    loader_ns: int | None
    """The shortest step that its loader's workers keep up with; None where nobody watched them."""
    step_ns: int
    """The step that findings are shares of; see `Diagnosis.step_ns`. 0 without steps."""


def digest_of(trace: Trace, catalogue: Catalogue) -> Digest:
    """Ask every rule about one rank; what they claim is settled here, where the trace is at hand."""
    measures = Measures(trace)
    failures: list[str] = []
    answers = ask_rules(measures, catalogue, failures)
    claims = [(rule, answer) for rule, answer in answers if isinstance(answer, Claim) and not answer.once]
    claimed: dict[str, float] = {}
    for rule, claim in claims:
        unseen_ns = claim.unseen_ns * measures.step_count
        whole_ns = measures.total_ns + unseen_ns
        share = (claim.recoverable_ns + unseen_ns) / whole_ns if whole_ns else 0.0
        claimed[rule.name] = max(share, claimed.get(rule.name, 0.0))
    found = _settle(claims, measures)
    return Digest(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=_device(trace),
        has_device=trace.has_device,
        is_traced=trace.has_device or len(trace.ops) > 0 or len(trace.calls) > 0,
        steps=_steps(measures),
        accounting=measures.accounting,
        median_step=_median_step(measures),
        findings=tuple(finding_of(one, measures, catalogue) for one in found),
        claimed=claimed,
        unknown=tuple(dict.fromkeys(answer for _, answer in answers if isinstance(answer, CannotTell))),
        failures=tuple(failures),
        recorded=trace.warnings,
        measured=(*_warnings(measures), *_longer_in_the_run(found, measures)),
        in_collectives=tuple(
            (one.claim.claims & measures.counted & measures.comm, (one.claim.claims & measures.counted).total_ns)
            for one in found
        ),
        work=measures.step_work,
        memory=measures.memory_peak,
        critical_path=path.per_step if (path := critical_path(measures)) is not None else None,
        compute=compute_parts(measures),
        record=record_of(measures),
        ceiling=measures.practical_ceiling,
        unclaimed=measures.accounting_within(measures.counted - Intervals.union(one.claim.claims for one in found)),
        loader_ns=busy_loader_ns(measures),
        step_ns=_step_ns(found, measures),
    )


def ask_rules(measures: Measures, catalogue: Catalogue, failures: list[str]) -> list[tuple[Rule, Claim | CannotTell]]:
    """Return the answers of every rule. A rule that raises is listed in `failures`."""
    answers: list[tuple[Rule, Claim | CannotTell]] = []
    for name in sorted(catalogue.rules):
        rule = catalogue.rules[name]
        try:
            given = list(rule.check(measures))
            for answer in given:
                if isinstance(answer, Claim):
                    require_rows(answer.evidence, measures.trace)
            answers += [(rule, answer) for answer in given]
        except Exception as error:  # noqa: BLE001 - a rule may be the user's own; a broken one must not hide the others
            failures.append(f"rule {name} failed and was left out: {type(error).__name__}: {error}")
    return answers


def _settle(claims: Iterable[tuple[Rule, Claim]], measures: Measures) -> list[AttributedClaim]:
    """The findings: claims that still weigh enough once no time is given to two of them, naming none that do not."""
    found = [one for one in _with_unseen(attribute(claims, measures), measures) if counts(one, measures)]
    names = {one.rule.name for one in found}
    return [replace(one, shared=tuple(other for other in one.shared if other[0] in names)) for one in found]


def _with_unseen(claims: list[AttributedClaim], measures: Measures) -> list[AttributedClaim]:
    """Add what claims lose outside the counted steps, by which the mean step of the run is longer than theirs."""
    count = measures.step_count
    unseen_ns = sum(one.claim.unseen_ns for one in claims) * count
    return [
        replace(one, recoverable_ns=one.recoverable_ns + one.claim.unseen_ns * count, unseen_ns=unseen_ns)
        for one in claims
    ]


def _step_ns(found: Sequence[AttributedClaim], measures: Measures) -> int:
    """The mean step that shares are of."""
    if measures.step_count == 0:
        return 0
    return (untraced_ns(measures) + max((one.unseen_ns for one in found), default=0)) // measures.step_count


def counts(one: AttributedClaim, measures: Measures) -> bool:
    """Whether a claim is a finding: a hint without a figure is; a figure must exceed what the steps can tell."""
    if one.claim.confidence is Confidence.HINT and one.claim.recoverable_ns == 0:
        return True
    noise = _noise_ns(measures) or 0.0
    possible_ns = one.recoverable_ns + _hidden_ns(one, measures)
    share = _share(possible_ns, one, measures)
    if share < SMALLEST_SHARE:
        return False
    return share >= _LOW or possible_ns >= noise * measures.step_count


def _noise_ns(measures: Measures) -> float | None:
    """Return the uncertainty of the mean step, two standard errors; a periodic pattern of steps is no noise."""
    return mean_uncertain_by(measures.steps.length_ns)


def finding_of(one: AttributedClaim, measures: Measures, catalogue: Catalogue) -> Finding:
    """A settled claim as a finding."""
    count = measures.step_count
    share, sure = _share(one.recoverable_ns, one, measures), _sure_share(one, measures)
    per_step = one.recoverable_ns // count if count else 0
    sure_ns = per_step if sure == share else int(_length_ns(one, measures) * sure) // count
    possible_ns = per_step + (_hidden_ns(one, measures) // count if count else 0)
    evidence = [*one.claim.evidence]
    evidence += [Evidence(f"also claimed by {name}", length // count, "ns") for name, length in one.shared]
    return Finding(
        rule=one.rule.name,
        severity=_severity(one, sure),
        rank=measures.trace.rank,
        recoverable_ns=sure_ns,
        share=sure,
        confidence=_confidence(one.claim, measures),
        summary=one.claim.summary,
        evidence=tuple(with_events(each, measures) for each in evidence),
        where=tuple(one.claim.where),
        fixers=catalogue.tried_for(one.rule, one.claim.fixers),
        ruled_out=tuple(one.claim.ruled_out),
        confirm=_confirm(one, measures),
        ends_run=one.claim.ends_run or one.claim.ended_run,
        short_of_memory=one.claim.short_of_memory,
        example_ns=_example_ns(one.claim, measures),
        possible_ns=possible_ns if sure_ns < possible_ns else None,
        possible_share=_share(possible_ns * count, one, measures) if sure_ns < possible_ns else None,
    )


def _severity(one: AttributedClaim, sure: float) -> Severity:
    """Return the severity of the `sure` share; what ended the run is high, what will end it at least medium."""
    if one.claim.ended_run:
        return Severity.HIGH
    severity = Severity.of_share(sure)
    return min(severity, Severity.MEDIUM, key=lambda one: one.rank) if one.claim.ends_run else severity


def _example_ns(claim: Claim, measures: Measures) -> tuple[int, int] | None:
    """The longest stretch of the step of median length that a claim is about."""
    if measures.step_count == 0:
        return None
    steps, middle = measures.steps, _median(measures)
    claimed = claim.claims.within(int(steps.start_ns[middle]), int(steps.end_ns[middle]))
    if not len(claimed):
        return None
    longest = int(claimed.lengths_ns.argmax())
    return int(claimed.starts[longest]), int(claimed.ends[longest])


def _share(part_ns: int, one: AttributedClaim, measures: Measures) -> float:
    length = _length_ns(one, measures)
    return min(part_ns / length, 1.0) if length else 0.0


def _hidden_ns(one: AttributedClaim, measures: Measures) -> int:
    """Return what the counted steps may save besides; of a claim that shares its time with others, as much less."""
    hidden = hidden_ns(one.claim, measures)
    return hidden * one.recoverable_ns // one.alone_ns if one.alone_ns else hidden


def _length_ns(one: AttributedClaim, measures: Measures) -> int:
    """Return the time that shares refer to: the counted steps, scaled to the mean step of the whole run. The
    profiler's cost is no part of that where it is known."""
    return untraced_ns(measures) + one.unseen_ns


def _sure_share(one: AttributedClaim, measures: Measures) -> float:
    """The share that comes back even if the profiler cost the host more than is usual and what a single step has does
    not come again, as far as the rule is sure."""
    length = _length_ns(one, measures)
    doubtful = doubtful_ns(one.claim, measures)
    share = _share(one.recoverable_ns, one, measures) * min(one.claim.sure, recurring(one.claim, measures))
    return max(share - doubtful / length, 0.0) if doubtful and length else share


def _confidence(claim: Claim, measures: Measures) -> Confidence:
    """The claim's own, unless the recording contradicts itself in too much of the time that it claims, or a replay of
    the unchanged recording misses the steps: then what would be without the cause is not known either."""
    if claim.confidence is not Confidence.MEASURED:
        return claim.confidence
    if unreplayed(claim, measures) or recurring(claim, measures) < 1:
        return Confidence.BOUND
    if doubtful_ns(claim, measures) > MUCH * claim.recoverable_ns:
        return Confidence.BOUND
    doubted = (claim.claims & measures.doubt).total_ns
    return Confidence.BOUND if doubted > MUCH * claim.claims.total_ns else Confidence.MEASURED


def _confirm(one: AttributedClaim, measures: Measures) -> str | None:
    noise = _noise_ns(measures)
    said = [one.claim.confirm] if one.claim.confirm else []
    if one.claim.confidence is Confidence.MEASURED and unreplayed(one.claim, measures):
        said.append(f"a trial: a replay of what was recorded misses the steps by {format_share(measures.replay.off)}")
    hidden = measures.replay.watched_ns is None and hidden_ns(one.claim, measures)
    if doubtful_ns(one.claim, measures) > MUCH * one.claim.recoverable_ns or hidden:
        said.append("a live run (diagnose run) knows the steps without the profiler, which slowed the host here")
    if recurring(one.claim, measures) < 1:
        said.append(f"one of the {measures.step_count} counted steps has most of this time: trace more steps")
    elif noise is not None and 0 < one.recoverable_ns < noise * measures.step_count:
        said.append(f"the measured steps vary by ±{format_ns(noise)}, more than this: trace more steps")
    return "; ".join(said) or None


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
    return measures.accounting_of(_median(measures))


def _median(measures: Measures) -> int:
    """The number of the counted step of (low) median length."""
    order = np.argsort(measures.steps.length_ns, kind="stable")
    return int(order[(len(order) - 1) // 2])


def _device(trace: Trace) -> str | None:
    if trace.facts.device_name:
        return trace.facts.device_name
    return trace.device_names[0] if trace.has_device and trace.device_names else None


def _warnings(measures: Measures) -> list[str]:
    trace = measures.trace
    found = [*measures.steps.left_out, *(violation.sentence for violation in measures.violations)]
    devices = len(np.unique(trace.device.device)) if trace.has_device else 0
    if devices > 1:
        found.append(f"work on {devices} devices in one process; the accounting is that of the busiest")
    if measures.step_count == 0:
        if read := readings_in_words(trace):
            found.append(f"it holds no work, only readings of {read}; put it beside a trace of the run, in one folder")
        elif measures.memory_peak is None:  # a snapshot of the allocator has none, and says what it can
            found.append("no step was found: nothing that could be accounted for was recorded")
    elif measures.steps.found_by == "whole trace":
        found.append("no steps are marked and none repeat: the whole recording counts as one step")
    elif measures.steps.found_by == "period":
        found.append("no steps are marked: they were inferred from the period with which the kernels repeat")
    found += _profiler_overhead(measures)
    noise = _noise_ns(measures)
    if noise is not None and noise > _LOW * measures.mean_ns:
        found.append(
            f"the {measures.step_count} counted steps vary: their mean is known to "
            f"±{format_share(noise / measures.mean_ns)} (two standard errors)"
        )
    return found


def _longer_in_the_run(found: Sequence[AttributedClaim], measures: Measures) -> Iterator[str]:
    """Yield a sentence on what shares refer to, where that is not the mean of the counted steps."""
    if any(one.unseen_ns for one in found):
        count = measures.step_count
        longer, whole = (format_ns(length / count) for length in (found[0].unseen_ns, _length_ns(found[0], measures)))
        yield f"steps outside the recording are longer, by {longer} a step on average: shares are of a step of {whole}"


def _profiler_overhead(measures: Measures) -> Iterator[str]:
    """Yield a sentence on how much the profiler lengthened the steps, where it matters."""
    watched, traced = watched_step_ns(measures.trace), _steps(measures).median_ns
    if measures.replay.ran_ahead:
        return  # the pace of a host ahead of its device is not that of the steps
    if watched and traced and traced > _OVERHEAD * watched:
        weighs = "causes on the host weigh more here than without it"
        if measures.replay.recording_scale:
            weighs = "savings are predicted without it"
        yield (
            f"the profiler made steps {format_value(traced / watched, '')} times as long ({format_ns(traced)} against "
            f"{format_ns(watched)}): {weighs}"
        )
    elif not watched and measures.step_count and measures.total_ns > _OVERHEAD * untraced_ns(measures):
        mean_ns, longer = measures.total_ns / measures.step_count, measures.total_ns / untraced_ns(measures)
        yield (
            f"the profiler made steps about {format_value(longer, '')} times as long ({format_ns(mean_ns)}), as its "
            f"{len(measures.replay.records):,} records usually cost: savings are predicted without it"
        )
