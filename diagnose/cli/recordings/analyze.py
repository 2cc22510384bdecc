"""`diagnose analyze`: the diagnosis, post hoc, on recordings."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.recordings.ranks import add_calibration_option
from diagnose.cli.streams import result, talk
from diagnose.errors import InputError, UsageError

if TYPE_CHECKING:
    from diagnose.trace import Trace


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "analyze",
        help="diagnose recorded traces or run folders",
        description="Diagnoses recordings: of torch.profiler (.json, .json.gz), Nsight Systems (.sqlite; .nsys-rep "
        "where nsys is installed) and rocprof (CSV, JSON, databases, .pftrace), and run folders; memory snapshots, GPU "
        "telemetry and kernel counters may lie beside them. Several files, or a folder of them, are the ranks of one "
        "job.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a trace, a folder of traces, a run")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")
    parser.add_argument(
        "--fail-on", choices=("high", "medium", "low"), help="exit 1 when a finding is at least this severe"
    )
    add_calibration_option(parser)
    parser.add_argument("--rules", type=Path, metavar="DIR", help="a folder of further rules, one a file")
    parser.add_argument(
        "--any-size",
        action="store_true",
        help="lift the limits on how large a file may be and how far a compressed one may swell; only for files that "
        "you trust, as one can fill the memory",
    )
    parser.add_argument(
        "--on",
        metavar="WHERE",
        help="read with Dask: `dask` starts two workers here, `dask=ADDRESS` takes those of a scheduler that runs",
    )


def run(args: argparse.Namespace) -> int:
    """Read, diagnose, print."""
    from diagnose.api.analysis import watched_facts
    from diagnose.cli.recordings.findings import exit_code_of, print_diagnosis
    from diagnose.engine import diagnose
    from diagnose.measure.roofline.calibrations import with_calibrations
    from diagnose.plugins import load_rules
    from diagnose.program.settings import drop_ignored, settings_of
    from diagnose.trace.readers.io.limits import without_limits

    catalogue = load_rules(args.rules)
    traces: list[Trace] = []
    for problem in catalogue.problems:
        talk(f"diagnose: {problem.module} was left out: {problem.message}")
    if args.on is None:
        with without_limits() if args.any_size else nullcontext():
            traces = _opened(args.paths)
            if args.calibration is not None:
                traces = with_calibrations(traces, args.calibration)
            diagnosis = diagnose(traces, catalogue)
    elif args.calibration is not None:
        raise UsageError("a calibration is applied where the files are read; leave out --calibration, or --on")
    elif args.any_size:
        raise UsageError("the limits of other machines stay; leave out --any-size, or --on to read the files here")
    else:
        from diagnose.cluster import diagnose_on, parse

        diagnosis = diagnose_on(parse(args.on), args.paths, catalogue, args.rules)
    diagnosis = drop_ignored(diagnosis, settings_of(Path.cwd()))
    result(print_diagnosis(diagnosis, args.json, watched_facts(traces)))
    return exit_code_of(diagnosis, args.fail_on)


def _opened(paths: list[Path]) -> list[Trace]:
    """The recordings; where a path is none, of the run that it names, or of the latest one of that project."""
    from diagnose.cli.recordings.target import open_runs, run_of, without_recording
    from diagnose.trace.readers import open_traces

    try:
        return open_traces(paths, show_progress)
    except InputError as error:
        try:
            runs = [run_of(path) or path for path in paths]
        except InputError:  # neither a file nor a run
            raise error from None
        if runs == paths:
            raise without_recording(paths) or error from None
    for path, run in zip(paths, runs, strict=True):
        if run != path:
            talk(f"diagnose: {path} is no recording; this reads {run}")
    return open_runs(runs, show_progress)


_CELLS = 24


def show_progress(done: int, total: int) -> None:
    """Draw how far the reading of many files has come, on one line; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        return
    line = "" if done >= total else bar(done, total, shutil.get_terminal_size().columns - 1)
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def bar(done: int, total: int, width: int) -> str:
    """`reading ━━━━━━──────  3 of 8 files`, in at most `width` cells."""
    cells = _CELLS * done // total
    return f"reading {'━' * cells}{'─' * (_CELLS - cells)}  {done} of {total} files"[:width]
