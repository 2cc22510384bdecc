"""`diagnose compare`: what is different in a second run, and whether the step is by more than noise."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.streams import result, talk
from diagnose.errors import InputError, UsageError

if TYPE_CHECKING:
    from diagnose.comparison import Portrait

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "compare",
        help="compare two runs, traces or folders of ranks, with a noise floor",
        description="Compares the step time, where it goes, kernels and operators, findings and memory of two runs, "
        "traces or folders of ranks. With --baseline, one run is compared with a file, which is written where there is "
        "none yet.",
    )
    parser.add_argument("before", metavar="A", type=Path, help="a run, a trace, a folder of ranks")
    parser.add_argument("after", metavar="B", type=Path, nargs="?", help="another one, left out with --baseline")
    parser.add_argument(
        "--baseline", metavar="FILE", type=Path, help="compare A with what FILE keeps of an earlier run"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--fail-on",
        metavar="5%",
        type=percent,
        help="exit 1 when the step is longer by more than this, and by more than the noise",
    )


def percent(text: str) -> float:
    """`5%` or `2.5 %` as a share."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage; write for example 5%")
    return float(match[1]) / 100


def run(args: argparse.Namespace) -> int:
    """Read both, compare, print."""
    from diagnose.cli.recordings.findings import terminal_width, wants_colour
    from diagnose.comparison import compare
    from diagnose.report.terminal import comparison as report

    if (args.after is None) == (args.baseline is None):
        raise UsageError("name two runs to compare, or one run and --baseline FILE")
    pair = _pair(args)
    if pair is None:
        return 0
    compared = compare(*pair)
    if args.json:
        result(report.to_json(compared))
    else:
        result(report.render(compared, width=terminal_width(), colour=wants_colour()))
    if compared.step is None:
        return 2
    return int(args.fail_on is not None and compared.regressed_by(args.fail_on))


def _pair(args: argparse.Namespace) -> tuple[Portrait, Portrait] | None:
    """Return the two sides to compare, the earlier first; None where the baseline has only now been written."""
    from diagnose.comparison import read_baseline, to_baseline
    from diagnose.program.atomic import write_atomic

    given = _portrait(args.before)
    if args.baseline is None:
        return given, _portrait(args.after)
    if args.baseline.exists():
        return read_baseline(args.baseline), given
    if not given.step_ns:
        raise InputError(args.before, "no training step was found in it, so that it can be no baseline")
    try:
        write_atomic(args.baseline, to_baseline(given))
    except OSError as error:
        raise UsageError(f"cannot write {args.baseline}: {error.strerror}; name another file") from error
    talk(f"wrote {args.baseline}; the next run is compared with it")
    return None


def _portrait(path: Path) -> Portrait:
    """A run by its folder or name, or a recording."""
    from diagnose.cli.recordings.target import open_runs, run_of
    from diagnose.comparison import portrait_of
    from diagnose.engine import diagnose
    from diagnose.measure import Measures
    from diagnose.plugins import load_rules

    traces = open_runs([run_of(path) or path])
    return portrait_of([Measures(trace) for trace in traces], diagnose(traces, load_rules()))
