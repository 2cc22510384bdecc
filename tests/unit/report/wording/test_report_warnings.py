"""Warnings of many ranks, said once."""

from __future__ import annotations

import pytest

from diagnose.report.export import markdown
from diagnose.report.page import html
from diagnose.report.terminal import text
from diagnose.report.wording.warnings import said_once
from diagnose.session import State


def test_what_is_said_of_no_rank_stays_as_it_is_and_comes_once() -> None:
    assert said_once(["a 1", "b", "a 2", "b"]) == ["a 1", "b", "a 2"]


@pytest.mark.parametrize(
    ("ranks", "named"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 2, 3, 4, 9], "ranks 0, 2–4, 9"), ([2, 1, 0], "ranks 0–2")],
)
def test_the_same_words_of_several_ranks_name_them_all(ranks: list[int], named: str) -> None:
    assert said_once(f"rank {rank}: steps vary" for rank in ranks) == [f"{named}: steps vary"]


def test_where_figures_differ_the_first_has_its_own_and_the_others_are_named() -> None:
    assert said_once([f"rank {rank}: known to ±{rank + 1}.5 % of 3.0 ms" for rank in range(64)]) == [
        "rank 0: known to ±1.5 % of 3.0 ms; alike, with figures of their own, ranks 1–63"
    ]


def test_a_minute_and_a_part_of_one_differ_in_figures_alone() -> None:
    told = [f"rank {rank}: it took {time} to start" for rank, time in enumerate(("59.0 s", "1 min 2 s", "2 h"))]
    assert said_once(told) == [
        "rank 0: it took 59.0 s to start; alike, with figures of their own, ranks 1, 2",
    ]


def test_other_words_are_another_warning() -> None:
    told = ["rank 0: a clock jumped", "rank 1: it ended early", "rank 1: a clock jumped"]
    assert said_once(told) == ["ranks 0, 1: a clock jumped", "rank 1: it ended early"]


def test_every_report_says_it_once() -> None:
    state = State(warnings=tuple(f"rank {rank}: steps vary" for rank in range(8)))
    for report in (text, markdown, html):
        assert report.render(state).count("steps vary") == 1
    assert "1 warning\n" in text.render(state)
