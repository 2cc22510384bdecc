"""What continuous integration reads: SARIF, JUnit, annotations of GitHub Actions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import journals
import msgspec
import pytest
import tinygpt

from diagnose.model import CannotTell, Diagnosis, Place, Severity
from diagnose.report import formats
from diagnose.report.export import github, junit, sarif
from diagnose.session import State, fold

FIXED = fold(journals.fixed())


def log(subject: Diagnosis | State) -> dict[str, Any]:
    """The only run of a SARIF log."""
    whole: dict[str, Any] = json.loads(sarif.render(subject))
    assert whole["version"] == "2.1.0"
    (run,) = whole["runs"]
    return dict(run)


def suite(subject: Diagnosis | State) -> ElementTree.Element:
    return ElementTree.fromstring(junit.render(subject))


def healthy() -> Diagnosis:
    return replace(tinygpt.gpu_diagnosis(), findings=(), cannot_tell=())


def with_first(**changes: Any) -> Diagnosis:
    """A diagnosis with one finding, changed."""
    diagnosis = tinygpt.gpu_diagnosis()
    return replace(diagnosis, findings=(replace(diagnosis.findings[0], **changes),), cannot_tell=())


class TestSarif:
    def test_every_finding_is_a_result_at_its_lines(self) -> None:
        run = log(FIXED)
        assert FIXED.diagnosis is not None
        assert [result["ruleId"] for result in run["results"]] == [one.rule for one in FIXED.diagnosis.findings]
        places = [place for result in run["results"] for place in result["locations"]]
        where = {(p["physicalLocation"]["artifactLocation"]["uri"], p["physicalLocation"]["region"]["startLine"])
                 for p in places}  # fmt: skip
        assert ("train.py", 17) in where
        assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"].endswith("/")

    def test_results_refer_to_the_rules_of_the_driver(self) -> None:
        run = log(FIXED)
        rules = run["tool"]["driver"]["rules"]
        assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
        assert len({rule["id"] for rule in rules}) == len(rules)

    @pytest.mark.parametrize(
        ("severity", "level"),
        [(Severity.HIGH, "error"), (Severity.MEDIUM, "warning"), (Severity.LOW, "note"), (Severity.NOTE, "note")],
    )
    def test_severities_are_levels(self, severity: Severity, level: str) -> None:
        assert log(with_first(severity=severity))["results"][0]["level"] == level

    def test_files_are_uris_and_unknown_lines_are_said(self) -> None:
        where = (Place("a folder/naïve.py", 0), Place("/elsewhere/100%.py", 3))
        first, second = log(with_first(where=where))["results"][0]["locations"]
        assert first["physicalLocation"]["artifactLocation"]["uri"] == "a%20folder/na%C3%AFve.py"
        assert first["physicalLocation"]["region"] == {"startLine": 1}
        assert first["message"]["text"] == "Which line of it is not known."
        assert second["physicalLocation"]["artifactLocation"] == {"uri": "file:///elsewhere/100%25.py"}
        assert "message" not in second

    @pytest.mark.parametrize(
        ("program", "file"),
        [
            ("train.py --name 'a b'", "train.py"),
            ("-- torchrun --nproc-per-node 2 src/loop.py", "src/loop.py"),
            ("-- accelerate launch -m pkg.train", "traces/rank0"),
            ("it's", "traces/rank0"),
            ("-- bash -lc 'cd run && python src/train.py --big'", "src/train.py"),
            ("-- bash -c 'echo \"open'", "traces/rank0"),
            ("-- launch --config=conf/model.py 'my train.py'", "my%20train.py"),
        ],
    )
    def test_a_finding_without_a_line_is_shown_at_the_head_of_the_program(self, program: str, file: str) -> None:
        """GitHub's code scanning refuses a whole log for one result that has no location."""
        assert FIXED.started is not None
        diagnosis = replace(with_first(where=()), source=("traces/rank0",))
        run = log(replace(FIXED, started=msgspec.structs.replace(FIXED.started, program=program), diagnosis=diagnosis))
        (place,) = run["results"][0]["locations"]
        assert place["physicalLocation"] == {
            "artifactLocation": {"uri": file, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 1},
        }
        assert place["message"]["text"] == "Which line of it is not known."

    def test_a_healthy_run_has_no_results(self) -> None:
        assert log(healthy())["results"] == []


class TestJunit:
    def test_what_matters_fails_and_the_rest_passes(self) -> None:
        root = suite(FIXED)
        assert FIXED.diagnosis is not None
        failed = [case.get("name") for case in root if case.find("failure") is not None]
        severe = (Severity.HIGH, Severity.MEDIUM)
        assert failed == [one.rule for one in FIXED.diagnosis.findings if one.severity in severe]
        assert root.get("failures") == str(len(failed))
        assert root.get("tests") == str(len(root))

    def test_what_cannot_be_told_is_skipped(self) -> None:
        diagnosis = replace(healthy(), cannot_tell=(CannotTell("host-sync", "the host's calls"),))
        skipped = [case for case in suite(diagnosis) if case.find("skipped") is not None]
        assert [case.get("name") for case in skipped] == ["host-sync"]

    def test_a_fix_that_was_tried_passes(self) -> None:
        cases = {case.get("name"): case for case in suite(FIXED)}
        assert cases["loader-workers: kept"].find("failure") is None

    def test_a_healthy_run_passes(self) -> None:
        root = suite(healthy())
        assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "0", "0")

    def test_a_run_without_a_diagnosis_is_an_error(self) -> None:
        assert suite(State()).get("errors") == "1"

    def test_any_text_is_xml(self) -> None:
        hostile = "<b>\x00\x1b[31m\ufffe & ]]> \"'"
        root = suite(with_first(summary=hostile, where=(Place(hostile, 1, code=hostile),)))
        assert len(root) == 1


class TestGithub:
    def test_a_finding_is_a_command_at_its_first_line(self) -> None:
        lines = github.render(FIXED).splitlines()
        assert FIXED.diagnosis is not None
        assert len(lines) == len(FIXED.diagnosis.findings) + len(FIXED.verdicts)
        assert all(re.fullmatch(r"::(error|warning|notice) [^:]+::.+", line) for line in lines)
        assert any("file=train.py,line=17,title=host-sync" in line for line in lines)

    def test_text_cannot_start_a_command_of_its_own(self) -> None:
        hostile = with_first(summary="100 %\n::error::gotcha", where=(Place("a,b:c.py", 3),))
        said = github.render(hostile)
        assert said.count("\n") == 1
        assert "file=a%2Cb%3Ac.py,line=3" in said
        assert "100 %25%0A::error::gotcha" in said

    def test_fixes_are_notices(self) -> None:
        assert "::notice title=loader-workers%3A kept::" in github.render(FIXED)

    def test_no_finding_is_said(self) -> None:
        assert github.render(healthy()).startswith("::notice ")
        assert github.render(State()).startswith("::error ")


@pytest.mark.parametrize("name", ["sarif", "junit", "github"])
def test_the_same_run_gives_the_same_text(name: str) -> None:
    report = formats()[name]
    assert report.render(FIXED) == report.render(fold(journals.fixed()))
