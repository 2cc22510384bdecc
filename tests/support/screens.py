"""Screens under test: each event is drawn at once, so that a test waits for what it looks at, and not for the clock."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import tinygpt
from textual.pilot import Pilot

from diagnose.session import AnyEvent, fold
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed
from diagnose.tui.screens.question import Question


@pytest.fixture(autouse=True)
def drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event waits to be drawn together with others."""
    monkeypatch.setattr("diagnose.tui.app.DRAW_EVERY_S", 0.0)


Tell = Callable[[AnyEvent], None]


def driven(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that drives a screen, run to its end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def view(events: list[AnyEvent]) -> DiagnoseApp:
    """A finished run on the screen."""
    return DiagnoseApp(Feed(fold(events), events[-1].at_ns), read=tinygpt.SOURCES.get)


def asked(app: DiagnoseApp) -> bool:
    """Whether the question before quitting is on the screen."""
    return isinstance(app.screen, Question)


async def settled(pilot: Pilot[int], condition: Callable[[], bool]) -> None:
    """Let the screen work until `condition` holds; the test's own time limit ends a wait in vain."""
    while not condition():
        await pilot.pause()
