"""`diagnose demo`: the whole loop on a slow program that ships with the package."""

from __future__ import annotations

import argparse
import shlex
import shutil
import tempfile
from pathlib import Path

from diagnose.cli.streams import talk

PROGRAM = Path(__file__).resolve().parent / "demo_program" / "train.py"
MOST_WARMUP_STEPS = 30
"""The program takes 96 steps, so that a whole run lasts seconds: what is traced and logged must fit into these."""
BUDGET = "3m"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "demo",
        help="find, fix and re-measure a slow program that ships with the package",
        description="Copies a slow training program into a new folder and does to it what `diagnose fix` does.",
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a screen, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--budget", metavar="TIME", help=f"end within this long (default: {BUDGET}; `none` takes as long as it takes)"
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="work in DIR, not in a new temporary folder")


def run(args: argparse.Namespace) -> int:
    """Copy, watch, fix, answer. The folder stays: what the answer says to type next is typed there."""
    from diagnose.cli.programs.preconditions import require_torch

    require_torch()
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        folder = args.keep.resolve()
    else:
        folder = Path(tempfile.mkdtemp(prefix="diagnose-demo-"))
    status = _demonstrate(args, folder)
    talk(f"the program and its run are in {folder}; `cd {shlex.quote(str(folder))}` first, and delete it when done")
    return status


def _demonstrate(args: argparse.Namespace, folder: Path) -> int:
    from diagnose.cli.programs.watched_run import Fixing, Watching, budget_of
    from diagnose.collect.recipe import Recipe
    from diagnose.plugins import load
    from diagnose.program import Program

    fixing = Fixing(budget_of(args, BUDGET), quick=True)
    script = folder / PROGRAM.name
    shutil.copy(PROGRAM, script)
    talk(f"a slow training program lies in {script}; `diagnose fix {PROGRAM.name}` would do what follows")
    program = Program.parse([PROGRAM.name], cwd=folder)
    watched = Watching(
        program, Recipe(stop_after_trace=True, most_warmup_steps=MOST_WARMUP_STEPS), load(), "fix", root=folder
    )
    return watched.carry_out(fixing, args.plain, args.json)
