"""A picture of the screen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from diagnose.session import State
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.drawing.code import ReadSource, read_source
from diagnose.tui.feed import Feed
from diagnose.tui.open import explain

_REMOTE_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def picture(
    state: State,
    last_ns: int | None,
    keys: Sequence[str] = (),
    size: tuple[int, int] = (120, 36),
    read_code: ReadSource = read_source,
) -> str:
    """The screen as SVG after `keys` were pressed, for a terminal of `size` columns and rows."""

    async def draw() -> str:
        app = DiagnoseApp(Feed(state, last_ns), read=read_code, explain=explain)
        async with app.run_test(size=size) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            return app.export_screenshot(title="diagnose")

    # The export names a font to be fetched from the net; a picture of an offline tool takes the font that is there.
    return _REMOTE_FONT.sub("", asyncio.run(draw()))
