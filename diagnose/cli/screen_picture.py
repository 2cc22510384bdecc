"""A picture of the screen: `python -m diagnose.cli.screen_picture RUN|TRACE screen.svg --size 120x36 --keys 2`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.cli.recordings.target import explore, run_of, state_of
from diagnose.tui.picture import picture


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture of a run or a recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--size", default="120x36", help="columns and rows of the terminal")
    parser.add_argument("--keys", nargs="*", default=[], help="keys to press first")
    args = parser.parse_args(argv)
    run = run_of(args.target)
    state = state_of(run) if run is not None else explore(args.target)
    columns, rows = (int(number) for number in args.size.split("x"))
    args.svg.write_text(picture(state, state.ended.at_ns if state.ended else None, args.keys, (columns, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
