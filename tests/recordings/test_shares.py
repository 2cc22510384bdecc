"""On every screen a finding's severity, its share and its milliseconds agree, and all shares are of one step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose.engine import diagnose
from diagnose.model import Diagnosis, Severity
from diagnose.plugins import load
from diagnose.report.export import github, markdown
from diagnose.report.page import html
from diagnose.report.terminal import text
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
        assert f"{format_ns(step_ns)} per step" in said
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
