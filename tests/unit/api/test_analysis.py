"""`diagnose.analyze`: recordings diagnosed from Python, and how the answer prints."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import diagnose
from diagnose.cli import main
from diagnose.errors import InputError, UsageError
from diagnose.model import Diagnosis

SAMPLES = Path(__file__).parents[3] / "sample_traces"
SAMPLE = SAMPLES / "cpu_demo"


@pytest.fixture(scope="module")
def analysis() -> diagnose.Analysis:
    """Of a recording that ships with the sources."""
    return diagnose.analyze(SAMPLE)


def test_it_says_what_the_command_says(analysis: diagnose.Analysis, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(SAMPLE)]) == 0
    assert capsys.readouterr().out == analysis.text(width=100)
    assert main(["analyze", "--json", str(SAMPLE)]) == 0
    assert json.loads(capsys.readouterr().out) == analysis.to_dict()


def test_its_diagnosis_is_the_model_s(analysis: diagnose.Analysis) -> None:
    assert isinstance(analysis.diagnosis, Diagnosis)
    assert analysis.findings == analysis.diagnosis.findings


def test_its_line_names_steps_findings_and_the_first_of_them(analysis: diagnose.Analysis) -> None:
    line = repr(analysis)
    assert line.startswith("<Analysis: ") and "\n" not in line
    assert f"{analysis.diagnosis.steps.count} steps" in line
    assert f"first {analysis.findings[0].rule}, gives back" in line


def test_several_files_are_the_ranks_of_a_job() -> None:
    folder = SAMPLES / "h200_straggler"
    ranks = sorted(path for path in folder.iterdir() if path.is_dir() or path.name.startswith("rank"))
    assert diagnose.analyze(ranks).diagnosis.ranks == len(ranks) == 2


class _Frames(HTMLParser):
    """The pages that a piece of HTML has in its frames."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "iframe":
            self.pages.append(dict(attrs)["srcdoc"] or "")


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(analysis: diagnose.Analysis) -> None:
    frames = _Frames()
    frames.feed(analysis._repr_html_())
    (page,) = frames.pages
    assert page.startswith("<!doctype html>")
    assert analysis.findings[0].rule in page
    assert 'id="timeline-data"' not in page
    assert 'id="timeline-data"' in analysis.html()


@pytest.mark.parametrize(("name", "starts"), [("a.html", "<!doctype"), ("a.md", "#"), ("a.json", "{"), ("a.txt", "")])
def test_it_is_saved_in_the_format_of_the_name(
    analysis: diagnose.Analysis, tmp_path: Path, name: str, starts: str
) -> None:
    analysis.save(tmp_path / name)
    text = (tmp_path / name).read_text()
    assert text.startswith(starts) and analysis.findings[0].rule in text


def test_a_name_without_a_format_is_refused(analysis: diagnose.Analysis, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.html"):
        analysis.save(tmp_path / "report.pdf")


def test_a_path_that_is_not_there_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no such file"):
        diagnose.analyze("nowhere.json")


def test_nothing_to_analyze_is_a_wrong_call() -> None:
    with pytest.raises(UsageError, match="name a recording"):
        diagnose.analyze([])


def test_the_package_offers_these_names_and_no_others() -> None:
    assert set(diagnose.__all__) <= set(dir(diagnose))
    assert all(getattr(diagnose, name) is not None for name in diagnose.__all__)
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        diagnose.analyse  # noqa: B018
