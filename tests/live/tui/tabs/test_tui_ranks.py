"""The tab of the ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import journals
import pytest
import rank_journals

from diagnose.session import AnyEvent, fold
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed
from diagnose.tui.tabs.present import present
from diagnose.tui.tabs.ranks_tab import rank_numbers
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.lines import Lines


def told(events: list[AnyEvent], keys: list[str]) -> tuple[int, str]:
    """How many ranks the tab lists, and what it says of the one that the keys lead to."""

    async def look() -> tuple[int, str]:
        app = DiagnoseApp(Feed(fold(events), events[-1].at_ns))
        async with app.run_test(size=(100, 40)) as pilot:
            await pilot.press("3", *keys)
            await pilot.pause()
            lines = app.query_one("#rank-detail", Lines)
            return app.query_one("#rank-list", Choices).option_count, "\n".join(line.plain for line in lines._lines)

    return asyncio.run(look())


def test_it_is_there_for_more_than_one_rank() -> None:
    assert "ranks" in present(fold(rank_journals.ranks()))
    assert rank_numbers(fold(rank_journals.ranks_diagnosed())) == list(range(rank_journals.RANKS))
    assert "ranks" not in present(fold(journals.fixed()))


@pytest.mark.parametrize("events", [rank_journals.ranks, rank_journals.ranks_diagnosed])
def test_it_lists_every_rank(events: Callable[[], list[AnyEvent]]) -> None:
    assert told(events(), [])[0] == rank_journals.RANKS


def test_the_rank_under_the_cursor_is_told_per_step_with_whom_it_waits_for() -> None:
    _, first = told(rank_journals.ranks_diagnosed(), [])
    assert "22.8 ms of each step for rank 5" in first
    _, late = told(rank_journals.ranks_diagnosed(), ["down"] * rank_journals.LATE_RANK)
    assert "23.0 ms" in late, "of a step, not of the four that were traced"
    assert "waited for     22.8 ms" in late
    assert "straggler" in late
