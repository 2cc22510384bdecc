"""Predicts the findings of a step once other causes are gone, from the recording in which they are still there.

A copy that waits a quarter of a millisecond is nothing in a step of 385 ms, and worth a fix in the 40 ms that are left
once four findings have been treated. The replay takes those out, and then each claim that is too small to be a finding:
what that saves beyond the rest is what it will cost. So is an ailment of which there is nothing to be seen yet, because
another one hides it (`Claim.once`). All of it is a hint; a trial decides.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from diagnose.analysis.attribution import AttributedClaim, attribute
from diagnose.analysis.rank_digest import ask_rules, counts, finding_of
from diagnose.measure import Measures
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import cut_intervals, replayed, untraced_ns
from diagnose.model import Confidence, Finding
from diagnose.plugins import Catalogue
from diagnose.rule import Claim
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals


@dataclass(frozen=True)
class StepWithout:
    """A step as it will be."""

    step_ns: int = 0
    """The length that is predicted to be left of it."""
    findings: tuple[Finding, ...] = ()
    """The causes that are no findings yet, as shares of what is left; the largest first."""


def step_without(trace: Trace, catalogue: Catalogue, gone: Collection[str]) -> StepWithout:
    """The step of one rank without the ailments of the rules in `gone`, and what weighs in it then."""
    measures = Measures(trace)
    count = measures.step_count
    claims = [(rule, answer) for rule, answer in ask_rules(measures, catalogue, []) if isinstance(answer, Claim)]
    weighed = attribute([(rule, claim) for rule, claim in claims if not claim.once], measures)
    treated = [one for one in weighed if one.rule.name in gone]
    if not count or not treated:
        return StepWithout()
    hidden = [
        AttributedClaim(rule, claim, claim.recoverable_ns, claim.recoverable_ns)
        for rule, claim in claims
        if not set(claim.once).isdisjoint(gone)
    ]
    small = [one for one in weighed if one.rule.name not in gone and not counts(one, measures)]
    before = _cut_of_all(treated, measures) if replayed(measures) else None
    saved_ns = sum(one.recoverable_ns for one in treated) if before is None else measures.replay.saved_ns(before)
    left_ns = max(untraced_ns(measures) - saved_ns, 0)
    bound_ns = max([left_ns, *(one.claim.least_step_ns * count for one in hidden)])
    found = []
    for one in (*small, *hidden):
        cost_ns = one.recoverable_ns
        if one.claim.least_step_ns:
            cost_ns = max(0, one.claim.least_step_ns * count - left_ns)
        elif before is not None:
            cost_ns = measures.replay.saved_ns(_cut_of(one.claim, measures), after=before)
        if cost_ns and left_ns:
            finding = finding_of(one, measures, catalogue)
            share = min(cost_ns / bound_ns, 1.0)
            found.append(
                replace(
                    finding,
                    recoverable_ns=cost_ns // count,
                    share=share,
                    possible_ns=None,
                    possible_share=None,
                    confidence=Confidence.HINT,
                )
            )
    return StepWithout(bound_ns // count, tuple(sorted(found, key=lambda finding: -finding.recoverable_ns)))


def _cut_of_all(treated: list[AttributedClaim], measures: Measures) -> Cut:
    """The run without any of the causes."""
    stretches = Intervals.union([one.claim.claims for one in treated if one.claim.cut is None])
    changed = cut_intervals(measures, stretches)
    for one in treated:
        changed = changed if one.claim.cut is None else changed | one.claim.cut
    return changed


def _cut_of(claim: Claim, measures: Measures) -> Cut:
    """The run without the cause of a claim."""
    return cut_intervals(measures, claim.claims) if claim.cut is None else claim.cut
