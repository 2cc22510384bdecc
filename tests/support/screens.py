"""Screens under test draw each event at once: a test waits for what it looks at, and not for the clock."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event waits to be drawn together with others."""
    monkeypatch.setattr("diagnose.tui.app.DRAW_EVERY_S", 0.0)
