"""`diagnose analyze`: the diagnosis, post hoc, on recordings."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.cli.streams import result, talk


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "analyze",
        help="diagnose recorded traces or run folders",
        description="Diagnoses recordings: torch.profiler traces (.json, .json.gz), or run folders. Several files, or "
        "a folder of them, are the ranks of one job.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a trace, a folder of traces, a run folder")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")
    parser.add_argument("--fail-on", choices=("high", "medium", "low"), help="exit 1 when a finding is this severe")
    parser.add_argument("--rules", type=Path, metavar="DIR", help="a folder of further rules, one a file")
    parser.add_argument(
        "--on",
        metavar="WHERE",
        help="read with Dask: `dask` starts two workers here, `dask=ADDRESS` takes those of a scheduler that runs",
    )


def run(args: argparse.Namespace) -> int:
    """Read, diagnose, print."""
    from diagnose.cli.findings import failed, print_diagnosis
    from diagnose.engine import diagnose
    from diagnose.plugins import load_rules
    from diagnose.trace.readers import open_traces

    catalogue = load_rules(args.rules)
    for problem in catalogue.problems:
        talk(f"diagnose: {problem.module} was left out: {problem.message}")
    if args.on is None:
        diagnosis = diagnose(open_traces(args.paths), catalogue)
    else:
        from diagnose.cluster import diagnose_on, parse

        diagnosis = diagnose_on(parse(args.on), args.paths, catalogue, args.rules)
    result(print_diagnosis(diagnosis, as_json=args.json))
    return failed(diagnosis, args.fail_on)
