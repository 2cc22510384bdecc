"""The HTML report: a page that stands alone, says what the text says, and keeps a program's text in its place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import journals
import pytest
import rank_journals
import tinygpt

from diagnose.errors import ProgramFailed
from diagnose.model import Confidence, Diagnosis, Place
from diagnose.report.page import html
from diagnose.report.page.step_chart import HEIGHT, step_chart
from diagnose.report.sections.next_steps import next_command
from diagnose.report.wording.phrases import final, gain
from diagnose.session import AnyEvent, RankSteps, RunEnded, State, fold
from diagnose.units import NS_PER_MS

FIXED = fold(journals.fixed())
MS = 1_000_000
VOID = {"meta", "line", "polyline"}


class Page(HTMLParser):
    """What a browser would make of a page: its tags, closed in order, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that is read on it."""
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize(
    "journal", [journals.fixed, journals.cpu, journals.healthy, journals.full, journals.diagnosed,
                rank_journals.ranks_diagnosed, journals.failed, journals.watching, journals.waiting],
)  # fmt: skip
def test_every_run_makes_a_page_that_needs_nothing_beside_it(journal: Callable[[], list[AnyEvent]]) -> None:
    page = Page(html.render(fold(journal())))
    assert page.tags[0] == "html"
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    inside = {f"#{value}" for name, value in page.attributes if name == "id"}
    assert {value for name, value in page.attributes if name in {"src", "href"}} <= inside
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_the_answer_stands_before_all_else() -> None:
    """What to fix, where, what it brings, and what to type."""
    state = fold(journals.diagnosed())
    assert state.diagnosis is not None
    first, command = state.diagnosis.findings[0], next_command(state)
    assert command is not None
    said = Page(html.render(state)).text
    answer = said[: said.index("Where a step's")]
    for words in (first.rule, gain(first), f"train.py:{first.where[0].line}", command[0]):
        assert words in answer


def test_a_finding_and_its_fix_lead_to_each_other() -> None:
    page = html.render(FIXED)
    assert '<a href="#fix-loader-workers">' in page
    assert '<tr id="fix-loader-workers"><th><a href="#finding-1">' in page
    assert page.index('id="fix-loader-workers"') < page.index('id="finding-1"')


def test_a_number_opens_the_events_that_it_was_taken_from() -> None:
    page = html.render(fold(journals.diagnosed()))
    assert "<summary>idle, waiting for input 29.4 ms: the 3 longest of 8 events</summary>" in page
    assert page.count('<td class="event">enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__</td>') == 3


def test_a_fixed_run_says_what_it_won_and_shows_the_diff() -> None:
    said = Page(html.render(FIXED)).text
    assert final(FIXED) in said
    assert FIXED.patch is not None
    for line in FIXED.patch.diff.splitlines():
        assert " ".join(line.split()) in said
    for verdict in FIXED.verdicts:
        assert verdict.fixer in said


def test_the_classes_of_a_step_fill_the_bar() -> None:
    page = html.render(FIXED)
    bar = page[page.index('<div class="bar"') :]
    shares = [float(share) for share in re.findall(r"flex-grow: ([\d.]+)", bar[: bar.index("</div>")])]
    assert len(shares) > 2
    assert sum(shares) == pytest.approx(1, abs=1e-3)


def test_text_of_the_program_starts_no_markup() -> None:
    hostile = '</code><script>alert("1")</script>`<b>`&amp;'
    diagnosis = tinygpt.gpu_diagnosis()
    finding = replace(diagnosis.findings[0], summary=hostile, where=(Place(hostile, 3, code=hostile),))
    page = html.render(replace(diagnosis, findings=(finding,), source=(hostile,), device=hostile, warnings=(hostile,)))
    assert not {"script", "b"} & set(Page(page).tags)
    assert 'alert("1")' in unescape(page)


def test_a_finding_of_unknown_cost_promises_nothing() -> None:
    diagnosis = tinygpt.gpu_diagnosis()
    finding = replace(diagnosis.findings[0], recoverable_ns=0, confidence=Confidence.HINT)
    said = Page(html.render(replace(diagnosis, findings=(finding,)))).text
    assert "What it costs is not known here." in said
    assert "Gives back" not in said


def test_the_answer_says_what_is_saved_once() -> None:
    """Of a late rank, what it does is the time that the others wait for it, and that is what its cure gives back."""
    diagnosis = tinygpt.gpu_diagnosis()
    late = replace(
        diagnosis.findings[0], recoverable_ns=NS_PER_MS, share=0.11, possible_ns=None, confidence=Confidence.MEASURED
    )
    for summary, says in (("ranks wait 1.00 ms of each step (11 %)", False), ("ranks wait 1.10 ms", True)):
        page = html.render(replace(diagnosis, findings=(replace(late, summary=summary),)))
        assert ("Gives back 1.00 ms of each step (11 %), measured." in Page(page).text) is says


def test_a_run_without_anything_says_so() -> None:
    assert "Nothing was diagnosed" in Page(html.render(State())).text


def test_no_training_step_is_no_health() -> None:
    diagnosis = tinygpt.gpu_diagnosis()
    none = replace(diagnosis, findings=(), steps=replace(diagnosis.steps, count=0, median_ns=None, mean_ns=None))
    said = Page(html.render(none)).text
    assert "No training step was found" in said
    assert "Healthy" not in said


def test_the_page_ships_with_the_package() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    shipped = pyproject["tool"]["setuptools"]["package-data"]["diagnose.report.page"]
    folder = Path(html.__file__).parent
    assert sorted(shipped) == sorted(path.name for path in folder.iterdir() if path.suffix in {".css", ".j2", ".js"})


class TestStepChart:
    @staticmethod
    def steps(*lengths_ms: int) -> RankSteps:
        ends = [0]
        for length in lengths_ms:
            ends.append(ends[-1] + length * MS)
        return RankSteps(tuple(ends), (0,) * len(ends))

    def test_few_steps_are_no_course(self) -> None:
        assert step_chart({}) is None
        assert step_chart({0: self.steps(10, 10, 10)}) is None

    def test_one_long_step_is_cut_off_and_said(self) -> None:
        chart = step_chart({0: self.steps(*[10] * 20, 500, *[10] * 20)})
        assert chart is not None
        assert (chart.count, chart.median_ns, chart.longest_ns, chart.above) == (41, 10 * MS, 500 * MS, 1)
        assert chart.ceiling_ns == 25 * MS
        heights = [float(point.split(",")[1]) for point in chart.points.split()]
        assert min(heights) == 0
        assert max(heights) == pytest.approx(HEIGHT * 0.6)

    def test_more_steps_than_columns_keep_the_long_ones(self) -> None:
        chart = step_chart({0: self.steps(*[10] * 2000, 20, *[10] * 2000)})
        assert chart is not None
        heights = [float(point.split(",")[1]) for point in chart.points.split()]
        assert (len(heights), heights.count(0.0)) == (360, 1)

    def test_of_several_ranks_it_is_the_slowest(self) -> None:
        chart = step_chart({0: self.steps(*[10] * 10), 3: self.steps(*[11] * 10)})
        assert chart is not None
        assert chart.rank == 3


def test_a_diagnosis_alone_is_a_page_too() -> None:
    diagnosis: Diagnosis = tinygpt.gpu_diagnosis()
    assert diagnosis.findings[0].rule in Page(html.render(diagnosis)).text


def test_paper_shows_what_a_verdict_rests_on_and_a_narrow_screen_what_was_measured() -> None:
    page = html.render(FIXED)
    style = page.split("<style>")[1].split("</style>")[0]
    on_paper = style.split("@media print")[1]
    assert re.search(r"details::details-content \{[^}]*content-visibility: visible", on_paper)
    assert ".tall { max-height: none; }" in on_paper  # a table that scrolls would end within a row
    narrow = style.split("@media (max-width: 34rem)")[1].split("@media print")[0]
    assert re.search(r"\.lesser \{ display: none; \}", narrow)
    assert '<th class="figure lesser">predicted</th>' in page


def test_a_program_that_failed_says_so_above_what_was_found_in_it() -> None:
    found = replace(fold(journals.cpu()), verdicts=(), patch=None, final=None)
    message = "the program failed: ValueError: diverged; exit code 1"
    failed = replace(found, ended=RunEnded(at_ns=1, returncode=1, exit_code=ProgramFailed.exit_code, message=message))
    page = html.render(failed)
    assert page.index("ValueError: diverged") < page.index('<section class="answer')
    assert "failure" not in html.render(found).partition("<body>")[2]
