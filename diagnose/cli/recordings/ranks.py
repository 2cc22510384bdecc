"""`diagnose ranks`: the ranks of a job side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.cli.streams import result


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "ranks",
        help="the ranks of a job side by side: who waits for whom, buckets, modules, bandwidth",
        description="Shows the ranks of one job side by side: where each one's time goes, who waits for whom, what "
        "groups of ranks are for, when each bucket of gradients was ready, sent and done, which sharded modules are "
        "gathered late, early or again, how long a pipeline idles, and how fast collectives moved bytes over the bus, "
        "against what `diagnose calibrate` measured where it ran.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="a run, a trace, a folder of ranks")
    add_calibration_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """The option that `ranks` and `analyze` share."""
    parser.add_argument(
        "--calibration",
        metavar="PATH",
        type=Path,
        help="a file or folder of `diagnose calibrate`, for recordings that carry no calibration of their own",
    )


def run(args: argparse.Namespace) -> int:
    """Read, compare, print."""
    from diagnose.cli.recordings.findings import terminal_width
    from diagnose.cli.recordings.target import open_runs, run_of
    from diagnose.errors import InputError
    from diagnose.measure import Measures
    from diagnose.measure.job.job_report import between_ranks
    from diagnose.measure.roofline.calibrations import with_calibrations
    from diagnose.report.terminal import ranks as report

    paths = [run_of(path) or path for path in (args.paths or [None])]
    traces = open_runs(paths)
    if args.calibration is not None:
        traces = with_calibrations(traces, args.calibration)
    between = between_ranks([Measures(trace) for trace in traces])
    if not any(row.steps for row in between.job.table):
        raise InputError(paths[0], "no training step was found in it, so that no rank can be compared with another")
    result(report.to_json(between) if args.json else report.render(between, terminal_width()))
    return 0
