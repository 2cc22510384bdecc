"""`diagnose calibrate`: measure what this machine does at most, and keep it for the runs that follow."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from diagnose.cli.streams import result, talk
from diagnose.errors import ProgramFailed, UsageError
from diagnose.units import parse_duration_ns


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "calibrate",
        help="measure this machine's ceilings: products, memory, launches, copies, collectives",
        description="Measures matrix products by number format, memory, launches, copies from and to the host, and, "
        "with several ranks, the time of collectives over their size. What is measured is kept for the runs that "
        "follow, which are then compared with it instead of with data sheets.",
        epilog="Several hosts: start it as the job is started, torchrun --nnodes … --nproc-per-node … -m diagnose "
        "calibrate. Network settings such as NCCL_P2P_DISABLE=1 are part of what is measured: set them as for the job.",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="start N ranks on this host (one a GPU; 1 measures one device alone)"
    )
    parser.add_argument(
        "--group", type=_members, action="append", metavar="0,1", help="ranks to measure together; may be repeated"
    )
    parser.add_argument("--like", type=Path, metavar="RUN", help="measure the groups of ranks that a recorded job uses")
    parser.add_argument("--time", default="60s", metavar="TIME", help="measure for about this long (default: 60s)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="keep it in this folder")
    parser.add_argument("--json", action="store_true", help="print what was measured as one JSON object")


def _members(text: str) -> tuple[int, ...]:
    try:
        members = tuple(sorted({int(one) for one in text.split(",")}))
    except ValueError:
        members = ()
    if len(members) < 2 or members[0] < 0:
        raise argparse.ArgumentTypeError(f"{text!r} names no two ranks; write for example 0,1")
    return members


def run(args: argparse.Namespace) -> int:
    """Measure here, as one rank of a job, or start the ranks."""
    from diagnose.cli.programs.preconditions import require_torch

    require_torch()
    try:
        budget_ns = parse_duration_ns(args.time)
    except ValueError as error:
        raise UsageError(f"--time: {error}") from error
    from diagnose.calibration.job import in_a_job

    ranks = _wanted_ranks(args)
    if ranks > 1 and not in_a_job():
        _check_groups(args, ranks)
        return _start(ranks, args.words)
    return _measure(args, budget_ns)


def _check_groups(args: argparse.Namespace, ranks: int) -> None:
    """Refuse before ranks are started what each of them would refuse, with the launcher's own words about it."""
    for members in args.group or (_groups_of(args.like) if args.like else ()):
        if max(members) >= ranks:
            named = ",".join(map(str, members))
            asked = f"--group {named}" if args.group else f"--like {args.like} names ranks {named}"
            raise UsageError(f"{asked}: there are {ranks} ranks, 0 to {ranks - 1}")


def _wanted_ranks(args: argparse.Namespace) -> int:
    """Return the number of ranks asked for; by default, one per device of this host."""
    if args.ranks is not None:
        if args.ranks < 1:
            raise UsageError(f"--ranks {args.ranks}: at least one rank measures")
        return int(args.ranks)
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 1


def _start(ranks: int, words: list[str]) -> int:
    """Run this command on several ranks of this host, by torch's own launcher."""
    from diagnose.collect.inside.process.process_facts import usable_cores

    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    # Without this torchrun gives each rank one thread, and says so at length.
    threads = {"OMP_NUM_THREADS": str(max(usable_cores() // ranks, 1)), **os.environ}
    # In a session of its own it hears of each request to end once, from here: at a second one it would leave its ranks.
    with subprocess.Popen([*launcher, "-m", "diagnose", *words], env=threads, start_new_session=True) as job:
        # What is ignored, as under nohup, stays so.
        requests = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
        for one in requests:
            signal.signal(one, lambda *_: job.terminate())
        try:
            code = job.wait()
        except KeyboardInterrupt:
            job.terminate()
            job.wait()
            raise
        finally:
            for one in requests:
                signal.signal(one, signal.SIG_DFL)
    if code:
        raise ProgramFailed(f"the ranks that measured ended with exit code {code}: see above", code)
    return 0


def _measure(args: argparse.Namespace, budget_ns: int) -> int:
    from diagnose.calibration.job import calibrate, in_a_job, is_first
    from diagnose.calibration.record import encode
    from diagnose.calibration.store import keep
    from diagnose.collect.calibrations import folder
    from diagnose.report.terminal.calibration import render

    if args.group and not in_a_job():
        raise UsageError("--group needs several ranks: add --ranks N, or start it with torchrun")
    speak = talk if is_first() else _silent
    groups = tuple(args.group) if args.group else _groups_of(args.like) if args.like else None
    found, stores = calibrate(budget_ns, groups, lambda what: speak(f"measuring {what}"))
    if is_first():
        result(encode(found).decode() if args.json else render(found))
    place = args.output or folder()
    if not stores or place is None:
        return 0
    try:
        path = keep(found, place)
    except OSError as error:
        raise UsageError(f"cannot write below {place}: {error.strerror}; name another folder with -o") from error
    speak(f"Calibration: {path}")
    return 0


def _groups_of(recording: Path) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that a recorded job's collectives name."""
    from diagnose.cli.recordings.target import open_runs, run_of

    traces = open_runs([run_of(recording) or recording])
    named = {one.members for trace in traces for one in trace.collectives if one.members and len(one.members) > 1}
    if not named:
        raise UsageError(f"{recording} names no group of ranks; name them with --group 0,1")
    return tuple(sorted(named, key=lambda members: (-len(members), members)))


def _silent(_: str) -> None:
    """Rank 0 speaks for all."""
