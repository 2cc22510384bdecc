"""The step that is drawn is the median one, findings weigh the average one: every report says where these differ."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.model import Accounting, Diagnosis, RankAccounting, Steps
from diagnose.report.export import markdown
from diagnose.report.page import html
from diagnose.report.terminal import text
from diagnose.report.wording.mean_vs_median import on_average
from diagnose.rule import drawn

SAID = (
    "Steps are uneven: the average one takes 14.0 ms, 8.00 ms of it Python; the median one drawn here has none of "
    "that. Findings weigh the average step."
)


def diagnosed(*pauses: int) -> Diagnosis:
    """Of steps with as many milliseconds of Python."""
    host, gpu, marks = "", "", "|"
    for pause in pauses:
        host += "p" * pause + "ol" + "s" * 4
        gpu += " " * pause + "  kkkk"
        marks += " " * (len(host) - len(marks)) + "|"
    return diagnose([drawn(f"host: {host}\ngpu : {gpu}\nstep: {marks}")], plugins.load())


def test_a_median_step_that_is_not_the_average_one_is_told_of_by_what_differs_most() -> None:
    assert on_average(diagnosed(0, 0, 0, 20, 20)) == SAID


@pytest.mark.parametrize("pauses", [(10, 10, 10, 10, 10), (10, 10, 11, 10, 10)])
def test_of_even_steps_nothing_is_said(pauses: tuple[int, ...]) -> None:
    diagnosis = diagnosed(*pauses)
    assert on_average(diagnosis) == ""
    assert "uneven" not in text.render(diagnosis) + markdown.render(diagnosis) + html.render(diagnosis)


def test_every_report_says_it() -> None:
    diagnosis = diagnosed(0, 0, 0, 20, 20)
    assert SAID in " ".join(text.render(diagnosis).split())
    assert SAID in markdown.render(diagnosis)
    assert SAID in html.render(diagnosis)


def test_of_several_ranks_the_slowest_is_the_one_that_is_drawn() -> None:
    even, waits = Accounting(compute=40_000_000), Accounting(compute=40_000_000, idle={"input": 20_000_000})
    assert "15.0 ms, 5.00 ms of it waiting for input" in on_average(ranks(even, waits))
    assert on_average(ranks(even, even)) == ""


def ranks(*spent: Accounting) -> Diagnosis:
    """A job of ranks with four steps each; the median step of the slowest computes for 10 ms and does nothing else."""
    rows = tuple(RankAccounting(0, "t", Steps(4, None, None, one.total_ns), one) for one in spent)
    return Diagnosis(1, ("t",), len(rows), None, Steps(4, 10), Accounting(compute=10_000_000), per_rank=rows)
