"""On every screen a finding's severity, its share and its milliseconds agree, and all shares are of one step.

No time of that step is given twice, has no class, or is passed over.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose.engine import diagnose
from diagnose.model import Diagnosis, Severity
from diagnose.plugins import load
from diagnose.report.export import github, markdown
from diagnose.report.page import html
from diagnose.report.style.step_bar import slices
from diagnose.report.terminal import text
from diagnose.report.wording.health import NEAR, UNEXPLAINED, is_healthy, is_quiet
from diagnose.report.wording.phrases import share
from diagnose.trace.readers import open_traces
from diagnose.units import format_ns, format_share

SAMPLES = sorted(path for path in (Path(__file__).resolve().parents[2] / "sample_traces").iterdir() if path.is_dir())


@pytest.fixture(scope="module", params=SAMPLES, ids=lambda path: path.name)
def diagnosis(request: pytest.FixtureRequest) -> Diagnosis:
    return diagnose(open_traces([request.param]), load())


def test_severity_share_and_time_are_one_figure(diagnosis: Diagnosis) -> None:
    assert diagnosis.step_ns
    for finding in diagnosis.findings:
        assert finding.share == min(finding.recoverable_ns / diagnosis.step_ns, 1.0)
        assert finding.severity is Severity.of_share(finding.share) or finding.ends_run
        if finding.possible_ns is not None:
            assert finding.possible_ns > finding.recoverable_ns
            assert finding.possible_share == min(finding.possible_ns / diagnosis.step_ns, 1.0)


def test_every_screen_names_the_step_and_divides_by_it(diagnosis: Diagnosis) -> None:
    step_ns = diagnosis.step_ns or 0
    for said in (text.render(diagnosis, width=240), markdown.render(diagnosis), html.render(diagnosis)):
        assert re.search(rf"{format_ns(step_ns)} per (traced )?step\b", said)
        for finding in diagnosis.findings:
            if finding.recoverable_ns:
                printed = share(finding)
                assert printed in {format_share(finding.share), format_share(finding.share - 0.001)}
                printed = printed.replace("<", "&lt;" if "<html" in said else "<")
                assert f"{format_ns(finding.recoverable_ns)} of each step ({printed})" in said


def test_no_note_stands_beside_a_weighty_share(diagnosis: Diagnosis) -> None:
    """As a reader sees it: the percentage behind the name of the severity."""
    floors = {"high": 10.0, "medium": 5.0, "low": 2.0, "note": 0.0}
    above = {"high": 101.0, "medium": 10.0, "low": 5.0, "note": 2.0}
    ending = {finding.rule for finding in diagnosis.findings if finding.ends_run}
    for line in text.render(diagnosis, width=240).splitlines():
        said = re.match(r" *\d+ \S (high|medium|low|note) +(\S+).*\((\d+(?:\.\d+)?) %\)", line)
        if said is not None and said[2] not in ending:
            assert floors[said[1]] <= float(said[3]) < above[said[1]], line


def test_annotations_of_pull_requests_say_the_same(diagnosis: Diagnosis) -> None:
    said = github.render(diagnosis)
    for finding in diagnosis.findings:
        if finding.recoverable_ns and finding.where:
            assert f"{format_ns(finding.recoverable_ns)} of each step" in said


def test_findings_give_back_no_more_than_the_step(diagnosis: Diagnosis) -> None:
    assert sum(finding.recoverable_ns for finding in diagnosis.findings) <= (diagnosis.step_ns or 0)


def test_every_nanosecond_of_compute_has_a_class(diagnosis: Diagnosis) -> None:
    for rank in diagnosis.per_rank if diagnosis.has_device else ():
        assert sum(rank.accounting.compute_by.values()) == rank.accounting.compute
    if diagnosis.has_device:
        assert sum(part.time_ns for part in diagnosis.compute) in {one.accounting.compute for one in diagnosis.per_rank}
        assert sum(diagnosis.accounting.compute_by.values()) == diagnosis.accounting.compute
        assert "Of the compute, by what bounds it" in text.render(diagnosis, width=240)


def test_only_what_is_near_its_practical_ceiling_is_called_healthy(diagnosis: Diagnosis) -> None:
    said = "Healthy" in text.render(diagnosis, width=240)
    assert said == is_healthy(diagnosis)
    if said:
        assert diagnosis.ladder is not None
        assert diagnosis.ladder.ceiling is not None
        assert diagnosis.ladder.ceiling.same_training_ns >= (1 - NEAR) * diagnosis.ladder.step_ns


def test_no_large_class_of_time_is_passed_over(diagnosis: Diagnosis) -> None:
    """A finding claims it, or a sentence names it."""
    assert diagnosis.unclaimed is not None
    assert diagnosis.unclaimed.total_ns <= max(one.accounting.total_ns for one in diagnosis.per_rank)
    said = text.render(diagnosis, width=240)
    for part in slices(diagnosis.unclaimed):
        share_of_step = part.ns / max(diagnosis.steps.total_ns, 1)
        if part.kind != "compute" and share_of_step >= UNEXPLAINED and not is_quiet(diagnosis):
            assert f"of {part.look.label}" in said


def test_rungs_lead_down_and_intervals_hold_what_is_likely(diagnosis: Diagnosis) -> None:
    assert diagnosis.ladder is not None
    before_ns = diagnosis.ladder.step_ns
    for rung in diagnosis.ladder.rungs:
        low_ns, high_ns = rung.step_ns
        assert low_ns <= rung.likely_ns <= high_ns <= diagnosis.ladder.step_ns
        assert rung.likely_ns <= before_ns
        before_ns = rung.likely_ns
