"""How far the reading of many files has come."""

from __future__ import annotations

import io
import sys

import pytest

from diagnose.cli.recordings.analyze import bar, show_progress


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_the_bar_fills_with_the_files_and_fits_the_line() -> None:
    assert bar(0, 8, 80).count("━") == 0
    assert bar(4, 8, 80).count("━") == bar(4, 8, 80).count("─")
    assert bar(3, 8, 80).endswith("3 of 8 files")
    assert len(bar(3, 8, 20)) == 20


def test_a_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    show_progress(1, 2)
    assert "1 of 2 files" in terminal.getvalue()
    show_progress(2, 2)
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_file_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    show_progress(1, 2)
    assert file.getvalue() == ""
