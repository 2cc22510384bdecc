"""`diagnose gather`: the run folders of one job's hosts, put together into one."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.cli.recordings.target import run_of
from diagnose.cli.streams import result, talk
from diagnose.errors import UsageError
from diagnose.session import JOURNAL


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "gather",
        help="put the run folders of one job's hosts together into one",
        description="A job on several hosts is watched on each of them: the same `diagnose run -- LAUNCHER …` on every "
        "host leaves a run folder there. This puts them together into one, with the ranks of all, and diagnoses it. "
        "Folders of different jobs are refused.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run folder of each host")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="the run folder to write")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Put together, diagnose, print."""
    from diagnose.cli.recordings.findings import print_diagnosis
    from diagnose.engine import diagnose
    from diagnose.measure import Measures
    from diagnose.measure.job.ranks import job_of
    from diagnose.measure.profile.step_profile import slowest_profile
    from diagnose.observe import DIAGNOSIS
    from diagnose.plugins import load_rules
    from diagnose.report.export import contract
    from diagnose.session import DiagnosisMade, Session, StepsProfiled
    from diagnose.session.host_merge import check, gather, missing, read_host_run
    from diagnose.trace.readers import open_traces
    from diagnose.units import format_ns

    if len(args.runs) < 2:
        raise UsageError("name the run folders of at least two hosts")
    folders = [read_host_run(_folder(path)) for path in args.runs]
    check(folders)
    gather(folders, args.output)
    for one in folders:
        talk(f"{one.host}: rank {', '.join(map(str, one.ranks))} from {one.folder}")
    absent = missing(folders)
    if absent:
        talk(f"rank {', '.join(map(str, absent[:8]))} is in none of them: what it did is unknown")
    traces = open_traces([args.output])
    first, *others = job_of([Measures(trace) for trace in traces]).table
    for row in others:
        if row.clock_ns is not None and row.clock_spread_ns is not None:
            apart = f"{format_ns(abs(row.clock_ns))} ± {format_ns(row.clock_spread_ns)}"
            talk(
                f"rank {row.rank}'s clock is {apart} {'behind' if row.clock_ns < 0 else 'ahead of'} rank {first.rank}'s"
            )
    diagnosis = diagnose(traces, load_rules())
    session = Session(args.output)
    session.write(DIAGNOSIS, contract.render(diagnosis))
    session.record(DiagnosisMade(diagnosis=diagnosis))
    profile = slowest_profile(traces, diagnosis)
    if profile is not None:
        session.record(StepsProfiled(profile=profile))
    session.close()
    result(print_diagnosis(diagnosis, as_json=args.json))
    return 0


def _folder(path: Path) -> Path:
    """The run folder that is meant; one without a journal is meant by its own name."""
    run = run_of(path) or path
    return run.parent if run.name == JOURNAL else run
