"""Opening the screen: on work that runs now, on a finished run, or on a diagnosis."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from diagnose.session import JournalTail, State, fold, read
from diagnose.tui.actions import Actions
from diagnose.tui.app import DiagnoseApp, Work
from diagnose.tui.feed import Feed
from diagnose.tui.terminal import forgotten_when_lost

_CLEARING_S = 5.0  # copies of a program, and captures of many GB


class Left(NamedTuple):
    """How the user left the screen."""

    code: int
    state: State
    wants_fix: bool
    """Whether fixes are to be tried on the program that was shown."""
    goes_on: bool = False
    """The work goes on without the screen: the user detached, or the screen failed."""


def run_screen(work: Work, cancel: Callable[[], None] | None = None, actions: Actions | None = None) -> Left:
    """Run `work(tell)` in a thread and show the events that it tells; its exit code is the answer's.

    The screen stays after the work has ended, until the user leaves it. Leaving earlier asks. Where the work is to end,
    `cancel` is called, which must make `work` return soon; it is called in the screen's thread and must not block. Else
    `work` is left where it is: the caller sees to it that it goes on. What `work` raises is raised here, after the
    terminal is as it was. Signals arrive at the main thread: this one.
    """
    app = DiagnoseApp(Feed(), work, cancel, clock=time.time_ns, explain=explain, actions=actions)
    with forgotten_when_lost():
        code = app.run()
    app.let_work_end(_CLEARING_S)
    if app.error is not None:
        raise app.error
    return Left(code if code is not None else app.return_code or 0, app.state, app.wants_fix, app.left_at_work)


def view_journal(path: Path, actions: Actions | None = None) -> Left:
    """Show a run folder or journal; one that another process still writes is followed. Raises InputError when there is
    none.
    """
    folder = path if path.is_dir() else path.parent
    tail = JournalTail(folder)
    seen = tail.new()
    if seen and tail.goes_on():
        # Without a clock: of a run on another machine nobody can tell that it goes on but by its next event.
        feed = Feed(fold(seen), seen[-1].at_ns)
        return _left(DiagnoseApp(feed, explain=explain, actions=actions, follow=tail.follow))
    events, warnings = read(path)
    state = fold(events)
    last_ns = events[-1].at_ns if events else None
    return _view(replace(state, warnings=(*state.warnings, *warnings)), last_ns, actions)


def view_state(state: State, actions: Actions | None = None) -> Left:
    """Show what recordings say."""
    return _view(state, None, actions)


def _view(state: State, last_ns: int | None, actions: Actions | None) -> Left:
    return _left(DiagnoseApp(Feed(state, last_ns), explain=explain, actions=actions))


def _left(app: DiagnoseApp) -> Left:
    return Left(app.run() or 0, app.state, app.wants_fix)


@functools.cache
def explain(rule: str) -> str:
    """The documentation of a rule; empty for one that is not there."""
    # Loading the rules brings numpy: paid only when somebody opens a finding.
    from diagnose.plugins import load_rules

    found = load_rules().rules.get(rule)
    return found.doc if found else ""
