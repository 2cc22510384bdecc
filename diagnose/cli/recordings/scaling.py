"""`diagnose scaling`: runs of one program on more and more ranks."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.cli.streams import result


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "scaling",
        help="how a program scales: runs of it on 1, 2, 4, … ranks",
        description="Compares runs of one program on different numbers of ranks: the step, the efficiency against the "
        "run with the fewest, and what takes the rest.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run, a trace, a folder of ranks")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--weak", dest="kind", action="store_const", const="weak", help="each rank does the same work")
    kind.add_argument("--strong", dest="kind", action="store_const", const="strong", help="ranks divide the work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Read all runs, compare, print."""
    from diagnose.cli.recordings.target import open_runs
    from diagnose.cli.recordings.target import run_of as run_folder_of
    from diagnose.comparison.scaling import run_of, scaling_of
    from diagnose.measure import Measures
    from diagnose.report.terminal import scaling as report

    runs = []
    for path in args.runs:
        traces = open_runs([run_folder_of(path) or path])
        runs.append(run_of([Measures(trace) for trace in traces]))
    scaling = scaling_of(runs, args.kind)
    result(report.to_json(scaling) if args.json else report.render(scaling))
    return 0
