"""How a screen is left: with and without work behind it, by keys and by signals."""

from __future__ import annotations

import signal
import threading

import journals
import pytest
from screens import Tell, asked, drawn_at_once, driven, settled, view  # noqa: F401 - `drawn_at_once` holds for each test here
from textual.pilot import Pilot
from watching import LIMIT_S

from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed
from diagnose.tui.header import INTERRUPTED


@driven
async def test_quitting_while_the_program_runs_asks_first() -> None:
    release = threading.Event()

    def work(tell: Tell) -> int:
        tell(journals.waiting()[0])
        release.wait(LIMIT_S)
        return 0

    app = DiagnoseApp(Feed(), work, cancel=release.set)
    async with app.run_test() as pilot:
        await pilot.press("q")
        await settled(pilot, lambda: asked(app))
        await pilot.press("n")
        await settled(pilot, lambda: not asked(app))
        assert not release.is_set()
        await pilot.press("ctrl+c")
        await settled(pilot, lambda: asked(app))
        await pilot.press("y")
        await settled(pilot, lambda: not app.at_work)
    assert release.is_set()
    assert app.return_value == 0, "the code that the work returned after it was cancelled"


@driven
async def test_a_program_that_runs_can_be_left_to_go_on() -> None:
    cancelled, release = threading.Event(), threading.Event()

    def work(tell: Tell) -> int:
        tell(journals.waiting()[0])
        release.wait(LIMIT_S)
        return 0

    app = DiagnoseApp(Feed(), work, cancel=cancelled.set)
    async with app.run_test() as pilot:
        await pilot.press("q")
        await settled(pilot, lambda: asked(app))
        await pilot.press("d")
        await settled(pilot, lambda: app.return_value is not None)
    assert app.left_at_work
    assert not cancelled.is_set()
    release.set()


async def left_at_once(pilot: Pilot[int], app: DiagnoseApp) -> None:
    """The work is asked to end, and the screen left without waiting for it."""
    await pilot.press("q")
    await settled(pilot, lambda: asked(app))
    await pilot.press("y")
    await settled(pilot, lambda: not asked(app))
    await pilot.press("q")
    await settled(pilot, lambda: app.return_value is not None)


@driven
async def test_work_that_does_not_end_is_left_by_asking_twice() -> None:
    release = threading.Event()

    def work(_tell: Tell) -> int:
        release.wait(LIMIT_S)
        return 0

    app = DiagnoseApp(Feed(), work, cancel=lambda: None)
    async with app.run_test() as pilot:
        await left_at_once(pilot, app)
    release.set()
    assert app.return_value == INTERRUPTED


@driven
async def test_work_that_was_asked_to_end_may_clear_away_once_the_screen_is_gone() -> None:
    asked_to, release, cleared = threading.Event(), threading.Event(), threading.Event()

    def work(_tell: Tell) -> int:
        asked_to.wait(LIMIT_S)
        release.wait(LIMIT_S)
        cleared.set()
        return INTERRUPTED

    app = DiagnoseApp(Feed(), work, cancel=asked_to.set)
    async with app.run_test() as pilot:
        await left_at_once(pilot, app)
    app.let_work_end(0)
    assert not cleared.is_set()
    release.set()
    app.let_work_end(LIMIT_S)
    assert cleared.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_leaves_a_finished_screen_without_a_question(number: signal.Signals) -> None:
    """A terminal that is gone answers no key, and reading from it ever again keeps a core busy."""
    inherited = signal.signal(number, signal.SIG_DFL)  # tests that run under nohup are born deaf to SIGHUP

    @driven
    async def test() -> None:
        app = DiagnoseApp(Feed(), lambda _tell: 3)
        async with app.run_test() as pilot:
            await settled(pilot, lambda: not app.at_work)
            signal.raise_signal(number)
            await settled(pilot, lambda: app.return_value is not None)
        assert app.return_value == 3

    try:
        test()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)


@driven
async def test_a_request_to_end_cancels_work_that_runs_and_asks_nothing() -> None:
    begun, release = threading.Event(), threading.Event()

    def work(_tell: Tell) -> int:
        begun.set()
        release.wait(LIMIT_S)
        return INTERRUPTED

    app = DiagnoseApp(Feed(), work, cancel=release.set)
    async with app.run_test() as pilot:
        await settled(pilot, begun.is_set)
        signal.raise_signal(signal.SIGTERM)
        await settled(pilot, lambda: app.return_value is not None)
    assert release.is_set()
    assert app.return_value == INTERRUPTED
