"""`diagnose check-pr`: what a change costs each training step, counted at two commits without a device."""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING

from diagnose.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from diagnose.regressions import Checked

FORMATS = ("text", "json", "github", "sarif")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "check-pr",
        help="compare what a training step costs at two commits, without a GPU: launches, waits, copies, memory",
        usage="diagnose check-pr [options] BASE HEAD SCRIPT ARGS… | BASE HEAD -m PACKAGE ARGS… | "
        "BASE HEAD -- LAUNCHER …",
        description="Runs the first steps of a training program at two commits of its repository, on the CPU, as if "
        "there were a GPU. Counts what each step launches, copies, waits for, records for the backward pass and holds, "
        "by line, and says what became worse without a change of the model or the batch. Nothing is timed, and "
        "nothing is written to your files. In the place of a commit, `.` stands for the files as they are.",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps to count, after the first two (default: 4)")
    parser.add_argument(
        "--budget", metavar="TIME", help="end a program that takes longer than this for them (default: 2m)"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="github: annotations of a pull request; sarif: code scanning"
    )
    parser.add_argument("--fail-on", choices=("regression",), help="exit 1 when something became worse")


def run(args: argparse.Namespace) -> int:
    """Compare, print."""
    from diagnose.cli.programs.argv_split import require_program, split_commits
    from diagnose.cli.programs.preconditions import on_one_host, require_torch
    from diagnose.cli.programs.watched_run import budget_of, leaving_on
    from diagnose.cli.streams import result
    from diagnose.program import Program
    from diagnose.regressions import check_commits
    from diagnose.regressions.check import LIMIT, STEPS

    commits, words = split_commits(args.words[1:])
    if len(commits) < 2:
        raise UsageError("two commits are missing; for example `diagnose check-pr main HEAD train.py`")
    require_program(words, "check-pr main HEAD train.py")
    on_one_host(words)
    steps = STEPS if args.steps is None else args.steps
    if steps < 1:
        raise UsageError("--steps is at least 1")
    program = Program.parse(words.program, module=words.module, launcher=words.launcher)
    require_torch()
    budget_ns = budget_of(args, LIMIT) or sys.maxsize
    stop = threading.Event()
    try:
        with leaving_on(stop):
            checked = check_commits(program, *commits, steps=steps, limit_ns=budget_ns, cancelled=stop.is_set)
    except Cancelled:
        raise KeyboardInterrupt from None  # said and answered as a Ctrl-C
    result(_rendered(checked, args.format))
    return 1 if args.fail_on and checked.regressions else 0


def _rendered(checked: Checked, form: str) -> str:
    from diagnose.report.export import regressions
    from diagnose.report.terminal.regressions import as_json, as_text

    if form in ("github", "sarif"):
        return regressions.as_commands(checked) if form == "github" else regressions.as_sarif(checked)
    return as_json(checked) if form == "json" else as_text(checked)
