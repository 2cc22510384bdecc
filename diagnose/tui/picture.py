"""A picture of the screen: `python -m diagnose.tui.picture RUN screen.svg --size 120x36 --keys 2`."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.session import State, fold, read
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


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture of a run folder or journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--size", default="120x36", help="columns and rows of the terminal")
    parser.add_argument("--keys", nargs="*", default=[], help="keys to press first")
    args = parser.parse_args(argv)
    events, _ = read(args.run)
    columns, rows = (int(number) for number in args.size.split("x"))
    last_ns = events[-1].at_ns if events else None
    args.svg.write_text(picture(fold(events), last_ns, args.keys, (columns, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
