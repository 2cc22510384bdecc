"""What the screen looks like, in every situation, on a small and on a large terminal.

A picture that changes fails here. Look at it, then accept it:
`pytest tests/unit/tui/test_tui_snapshots.py --snapshot-update`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import journals
import pytest
import rank_journals
import tinygpt

from diagnose.session import AnyEvent, fold
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed

SIZES = [(80, 24), (120, 40)]
RULE = """The device waits for the next batch.

What it finds
    Time in which the device has nothing to do because the training thread
    is inside the loader.

Why it costs
    A batch that is made between two steps lengthens every step by the
    time it takes."""


def screen(events: Sequence[AnyEvent]) -> DiagnoseApp:
    """The screen after `events`, at a time that stands still."""
    now_ns = events[-1].at_ns
    return DiagnoseApp(
        Feed(fold(events), now_ns), clock=lambda: now_ns, read=tinygpt.SOURCES.get, explain=lambda _rule: RULE
    )


SITUATIONS: dict[str, tuple[Callable[[], list[AnyEvent]], list[str]]] = {
    "waiting": (journals.waiting, []),
    "live": (journals.watching, []),
    "diagnosed": (journals.diagnosed, []),
    "findings": (journals.diagnosed, ["2"]),
    "evidence": (journals.diagnosed, ["2", "enter", "enter"]),
    "detail": (journals.diagnosed, ["down", "enter", "enter", "pagedown"]),
    "cannot-tell": (journals.diagnosed, ["2", "end"]),
    "memory": (journals.full, ["3"]),
    "no-fixes-yet": (journals.watching, ["3"]),
    "trying": (journals.trying, ["3"]),
    "trying-overview": (journals.trying, []),
    "verdicts": (journals.fixed, ["3"]),
    "no-difference": (journals.fixed, ["3", "end"]),
    "diff": (journals.fixed, ["4"]),
    "output": (journals.fixed, ["5"]),
    "finished": (journals.fixed, []),
    "help": (journals.diagnosed, ["question_mark"]),
    "healthy": (journals.healthy, []),
    "cpu-only": (journals.cpu, []),
    "failed": (journals.failed, []),
    "ranks": (rank_journals.ranks, []),
    "ranks-diagnosed": (rank_journals.ranks_diagnosed, []),
}


@pytest.fixture(autouse=True)
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own wishes must not reach the pictures."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_screen_looks_as_it_was_accepted(situation: str, size: tuple[int, int], snap_compare: Any) -> None:
    events, keys = SITUATIONS[situation]
    assert snap_compare(screen(events()), press=keys, terminal_size=size)


@pytest.mark.parametrize("keys", [[], ["3"]], ids=["overview", "fixes"])
def test_without_colour_classes_differ_by_their_fill(
    keys: list[str], monkeypatch: pytest.MonkeyPatch, snap_compare: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(screen(journals.fixed()), press=keys, terminal_size=(80, 24))


def test_a_very_small_terminal_still_shows_the_first_things(snap_compare: Any) -> None:
    assert snap_compare(screen(journals.fixed()), terminal_size=(44, 12))
