"""`diagnose fix`: try fixes on copies of the program, one by one, and make one diff of those that hold."""

from __future__ import annotations

import argparse

from diagnose.cli.programs.run import add_watch_options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "fix",
        help="try fixes on copies of the program; writes nothing to your files",
        usage="diagnose fix [options] SCRIPT ARGS… | -m PACKAGE ARGS… | -- LAUNCHER …",
        description="Runs a training program until it is traced and some steps are logged, then tries fixes on copies "
        "of it, together or one by one. Each gets a verdict; those that hold become one diff, which `diagnose apply` "
        "writes.",
    )
    add_watch_options(parser)
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="end within this long, for example 90s or 1h; best first (default: 10m; `none` takes as long as it takes)",
    )
    parser.add_argument(
        "--allow",
        choices=("training",),
        help="also try fixes that change the training itself, such as bfloat16; each must keep to the losses of your "
        "program under several seeds",
    )
    parser.add_argument(
        "--only", action="append", metavar="FIXER,…", help="try these alone (`diagnose explain` lists all)"
    )
    parser.add_argument("--skip", action="append", metavar="FIXER,…", help="try all but these")
    parser.add_argument("--dry-run", action="store_true", help="show what would be tried, with the diffs; try nothing")
    parser.add_argument("--quick", action="store_true", help="shorter trials that resolve less")
    parser.set_defaults(stop_after_trace=True)


def run(args: argparse.Namespace) -> int:
    """Watch until traced, then try."""
    from diagnose.cli.programs.watched_run import fixing_of, watching

    return watching(args, "fix").carry_out(fixing_of(args), args.plain, args.json)
