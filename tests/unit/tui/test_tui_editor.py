"""How a line is opened in the user's editor."""

from __future__ import annotations

from pathlib import Path

from diagnose.model import Place
from diagnose.tui.editor import editor_command

HERE = Path(__file__)
PLACE = Place(HERE.name, 7)
ROOT = str(HERE.parent)


def test_an_editor_is_told_of_the_line_in_its_own_way() -> None:
    assert editor_command(PLACE, ROOT, {"EDITOR": "vim -p"}) == ["vim", "-p", "+7", str(HERE)]
    assert editor_command(PLACE, ROOT, {"VISUAL": "/usr/bin/code", "EDITOR": "vi"}) == [
        *("/usr/bin/code", "-g", f"{HERE}:7")
    ]


def test_without_an_editor_or_the_file_nothing_is_opened() -> None:
    assert editor_command(PLACE, ROOT, {}) is None
    assert editor_command(Place("gone.py", 1), ROOT, {"EDITOR": "vi"}) is None
