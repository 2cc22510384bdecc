"""Our own recordings: each states where it comes from, what must be found in it, and what must not."""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePath
from typing import Any

import pytest

from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import Diagnosis, Severity
from diagnose.plugins import load
from diagnose.trace.readers import open_traces

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
SAMPLES = {path.stem: tomllib.loads(path.read_text()) for path in sorted(FOLDER.glob("*.toml"))}
each_sample = pytest.mark.parametrize(("name", "truth"), SAMPLES.items(), ids=SAMPLES)


@pytest.fixture(scope="module")
def diagnoses() -> dict[str, Diagnosis]:
    catalogue = load()
    return {name: diagnose(open_traces([FOLDER / name]), catalogue) for name in SAMPLES}


def test_there_are_recordings_and_each_says_where_it_comes_from() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == set(SAMPLES) != set()
    for truth in SAMPLES.values():
        assert {"origin", "recorded", "device", "versions", "must_not_find"} <= set(truth)


def test_the_recordings_stay_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 10 << 20


@each_sample
def test_what_must_be_found_is_found_at_its_lines(
    name: str, truth: dict[str, Any], diagnoses: dict[str, Diagnosis]
) -> None:
    found = {finding.rule: finding for finding in diagnoses[name].findings}
    for wanted in truth.get("must_find", []):
        finding = found[wanted["rule"]]
        assert finding.severity == wanted["severity"]
        places = {f"{PurePath(place.file).name}:{place.line}" for place in finding.where}
        assert set(wanted["lines"]) <= places
        if wanted.get("first"):
            assert diagnoses[name].findings[0] is finding


@each_sample
def test_what_must_not_be_found_is_not(name: str, truth: dict[str, Any], diagnoses: dict[str, Diagnosis]) -> None:
    findings = diagnoses[name].findings
    weighty = {finding.rule for finding in findings if finding.severity is not Severity.NOTE}
    assert weighty.isdisjoint(truth["must_not_find"])
    if truth.get("healthy"):
        assert {finding.severity for finding in findings} <= {Severity.LOW, Severity.NOTE}


@pytest.mark.parametrize(
    ("name", "truth"), [(name, truth) for name, truth in SAMPLES.items() if "cannot_tell" in truth]
)
def test_what_cannot_be_told_is_said(name: str, truth: dict[str, Any], diagnoses: dict[str, Diagnosis]) -> None:
    assert {answer.rule for answer in diagnoses[name].cannot_tell} == set(truth["cannot_tell"])


@each_sample
def test_every_step_is_accounted_for_to_the_nanosecond(name: str, truth: dict[str, Any]) -> None:
    assert truth
    for trace in open_traces([FOLDER / name]):
        measures = Measures(trace)
        assert measures.step_count >= 3
        spans = measures.steps.end_ns - measures.steps.start_ns
        assert [accounting.total_ns for accounting in measures.accountings] == spans.tolist()
