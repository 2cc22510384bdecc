"""A thread of the watcher's fails on its own: the program prints nothing, and the recording says why."""

from __future__ import annotations

import sys

import pytest

from diagnose.collect.inside import guard
from diagnose.collect.inside.unlisted_thread import UnlistedThread

LIMIT_S = 1000
"""So long only a thread takes that hangs."""


def test_what_fails_in_a_thread_is_noted_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    monkeypatch.setattr(guard, "failures", [])

    def fail() -> None:
        raise OSError("no store")

    thread = UnlistedThread(fail)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert printed == []
    assert [failure.partition(" (")[0] for failure in guard.failures] == [f"{fail.__qualname__}: OSError: no store"]
