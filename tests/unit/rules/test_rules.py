"""Every rule proves itself: what it draws as firing fires, what it draws as silent stays silent."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import Confidence, Finding, Severity
from diagnose.rule import CannotTell, Claim, Rule, Trace

RULES = plugins.load().rules
SECTIONS = ("What it finds", "Why it costs", "What proves it", "What fixes it", "Thresholds")


def drawings(kind: str) -> Iterable[object]:
    for rule in RULES.values():
        for number, trace in enumerate(getattr(rule, kind)):
            yield pytest.param(rule, trace, id=f"{rule.name}-{number}")


def is_hint(said: Claim | Finding) -> bool:
    """Whether the cost is unknown, and said to be."""
    return said.confidence is Confidence.HINT and said.recoverable_ns == 0


def test_every_rule_can_be_loaded() -> None:
    assert [problem for problem in plugins.load().problems if "rules" in problem.module] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_is_documented_and_shows_both_sides(rule: Rule) -> None:
    missing = [section for section in SECTIONS if f"\n{section}\n" not in rule.doc]
    assert not missing
    assert rule.fires or rule.fires_job
    assert rule.silent or rule.silent_job


@pytest.mark.parametrize(("rule", "trace"), drawings("fires"))
def test_it_fires_and_claims_no_more_than_the_steps(rule: Rule, trace: Trace) -> None:
    measures = Measures(trace)
    claims = [answer for answer in rule.check(measures) if isinstance(answer, Claim)]
    assert claims
    for claim in claims:
        if is_hint(claim):
            assert claim.recoverable_ns == 0
            assert claim.confirm
        else:
            assert 0 < claim.recoverable_ns <= (claim.claims & measures.counted).total_ns <= measures.total_ns
        assert claim.summary
        assert claim.evidence


@pytest.mark.parametrize(("rule", "trace"), drawings("fires"))
def test_what_fires_becomes_a_finding_that_matters(rule: Rule, trace: Trace) -> None:
    diagnosis = diagnose([trace], plugins.load())
    found = {finding.rule: finding for finding in diagnosis.findings}
    assert rule.name in found
    assert is_hint(found[rule.name]) or found[rule.name].severity in (Severity.HIGH, Severity.MEDIUM)
    assert sum(finding.recoverable_ns for finding in diagnosis.findings) <= (diagnosis.steps.mean_ns or 0)


@pytest.mark.parametrize(("rule", "trace"), drawings("fires"))
def test_a_count_counts_the_events_that_it_shows(rule: Rule, trace: Trace) -> None:
    measures = Measures(trace)
    claims = [answer for answer in rule.check(measures) if isinstance(answer, Claim)]
    for number in (one for claim in claims for one in claim.evidence if one.unit == "count" and one.rows):
        assert round(number.value * measures.step_count) == len(number.rows), number.measure


@pytest.mark.parametrize(("rule", "trace"), drawings("silent"))
def test_a_look_alike_stays_silent(rule: Rule, trace: Trace) -> None:
    assert [answer for answer in rule.check(Measures(trace)) if isinstance(answer, Claim)] == []


@pytest.mark.parametrize(("rule", "traces"), drawings("fires_job"))
def test_a_job_that_fires_has_a_finding_that_matters(rule: Rule, traces: tuple[Trace, ...]) -> None:
    diagnosis = diagnose(traces, plugins.load())
    found = {finding.rule: finding for finding in diagnosis.findings}
    assert rule.name in found
    assert found[rule.name].severity in (Severity.HIGH, Severity.MEDIUM)
    assert found[rule.name].summary
    assert found[rule.name].evidence
    assert sum(finding.recoverable_ns for finding in diagnosis.findings) <= (diagnosis.steps.mean_ns or 0)


@pytest.mark.parametrize(("rule", "traces"), drawings("silent_job"))
def test_a_job_that_looks_alike_stays_silent(rule: Rule, traces: tuple[Trace, ...]) -> None:
    assert rule.name not in {finding.rule for finding in diagnose(traces, plugins.load()).findings}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_recording_of_nothing_is_no_bottleneck(rule: Rule) -> None:
    answers = list(rule.check(Measures(Trace(source="nothing"))))
    assert all(isinstance(answer, CannotTell) and answer.rule == rule.name and answer.needs for answer in answers)
