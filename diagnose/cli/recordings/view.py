"""`diagnose view`: the terminal screen on a finished run or on a recording."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.errors import UsageError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "view",
        help="the terminal screen on a finished run or a recording",
        description="Opens the terminal screen on a finished run, on a run that goes on in another process, or on a "
        "recording: findings, timeline, kernels and operators, memory, fixes. `?` lists the keys, `q` leaves.",
    )
    parser.add_argument(
        "target",
        metavar="RUN|TRACE",
        nargs="?",
        type=Path,
        help="a run folder, its name, the id of its process, or a trace; the latest run when left out",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of opening a screen")


def run(args: argparse.Namespace) -> int:
    """Open the screen until the user leaves it."""
    from diagnose.cli.recordings.target import diagnosis_of, explore, run_of, state_of
    from diagnose.cli.streams import has_screen, result
    from diagnose.report import formats

    if not args.json and not has_screen():
        raise UsageError("a screen needs a terminal; `diagnose report` prints the same without one")
    journal = run_of(args.target)
    if args.json:
        result(formats()["json"].render(state_of(journal) if journal is not None else diagnosis_of(args.target)))
        return 0
    # Textual takes about 0.3 s to import: only a screen pays for it.
    from diagnose.cli.screen_actions import RunActions, start_fix
    from diagnose.tui.open import view_journal, view_state

    if journal is None:
        return view_state(explore(args.target), RunActions(None)).code
    left = view_journal(journal, RunActions(journal if journal.is_dir() else journal.parent))
    return start_fix(left.state) if left.wants_fix else left.code
