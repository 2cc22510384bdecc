"""A question over the screen says its title as it was given."""

from __future__ import annotations

from screens import driven

from diagnose.session import State
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed
from diagnose.tui.screens.question import Question


@driven
async def test_a_title_that_looks_like_markup_stands_as_it_is() -> None:
    app = DiagnoseApp(Feed(State()))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.push_screen(Question("dirs=[/data] lr=[0.1] runs?", "Why?", (("y", "yes"), ("n", "no"))))
        await pilot.pause()
        assert "dirs=[/data] lr=[0.1] runs?" in app.export_screenshot().replace("&#160;", " ")
