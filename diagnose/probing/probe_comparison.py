"""Compares a probe's answer with the findings of the run before it. Pure.

A finding predicts a saving with an interval (`diagnose.prediction`), a probe measures one. Where the probe takes away
the whole cause, the two must overlap. Where it takes away more, or had to leave some, one side only can be refuted: no
fix saves more than a probe that takes away more, and what was left may be the rest of what the finding says.

What a finding predicts is taken as a share of the step, and that of the step as the probe's trial measured it: the
machine may have been busier in one than in the other, and the profiler was in one alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.collect.experiments import Probe
from diagnose.model import Bearing, Finding, ProbedFinding, ProbeResult
from diagnose.prediction import interval_of
from diagnose.units import format_ns


def bearing_on(result: ProbeResult, probe: Probe, findings: Sequence[Finding]) -> ProbeResult:
    """The result with what it says of each finding that the probe is about."""
    if result.saved_ns is None or result.step_ns is None:
        return result
    return replace(result, findings=tuple(_bearings(result, result.saved_ns, result.step_ns, probe, findings)))


def _bearings(
    result: ProbeResult, saved_ns: tuple[int, int], step_ns: int, probe: Probe, findings: Sequence[Finding]
) -> Iterator[ProbedFinding]:
    for finding in findings:
        whole, more = finding.rule in probe.measures, finding.rule in probe.bounds
        if not (whole or more) or finding.estimate_ns <= 0:
            continue
        least_ns, most_ns = interval_of(round(finding.estimate_share * step_ns), finding.confidence)
        predicted = (least_ns, min(most_ns, step_ns))
        bearing = _bearing(predicted, saved_ns, more=more, less=bool(result.left))
        words = _WORDS[bearing] if bearing is not Bearing.OPEN else _OPEN[more]
        said = f"{finding.rule} predicts {format_ns(predicted[0])} to {format_ns(predicted[1])} per step"
        measured = f"{format_ns(saved_ns[0])} to {format_ns(saved_ns[1])}"
        yield ProbedFinding(
            finding.rule,
            finding.rank,
            bearing,
            predicted,
            f"{said}; {words} {measured}",
        )


_WORDS = {Bearing.CONFIRMS: "the probe agrees:", Bearing.CONTRADICTS: "the probe disagrees:"}
_OPEN = {True: "no fix of it saves more than the probe:", False: "the probe, which left some of it, saves"}


def _bearing(predicted: tuple[int, int], saved: tuple[int, int], *, more: bool, less: bool) -> Bearing:
    """`more`: the probe takes away more than the cause; `less`: it had to leave some of it."""
    if saved[1] < predicted[0]:
        return Bearing.OPEN if less else Bearing.CONTRADICTS
    if more:
        return Bearing.OPEN
    return Bearing.CONTRADICTS if saved[0] > predicted[1] else Bearing.CONFIRMS
