"""`diagnose watch`: follow a training run of hours or days, and say what changes."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "watch",
        help="follow a long training run, and say when steps slow down, memory grows or a rank hangs",
        usage="diagnose watch [options] SCRIPT ARGS… | -m PACKAGE ARGS… | -- LAUNCHER …",
        description="Runs a training program as it is and follows it to its end. Nothing is traced until the time of a "
        "step changes. Then a few steps are traced, and a line says since when steps are slower and what changed: "
        "data, code, clocks, neighbours, or one rank. It also reports memory that grows and ranks that hang.",
    )
    parser.add_argument(
        "--keep",
        type=_megabytes,
        default=512,
        metavar="MIB",
        help="keep the newest traces, up to this size together (default: 512)",
    )
    parser.add_argument(
        "--prometheus", type=Path, metavar="FILE", help="write metrics for the textfile collector of node_exporter"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object for each notice; the program's own output goes to stderr",
    )


def run(args: argparse.Namespace) -> int:
    """Watch to the program's end."""
    import os

    import msgspec

    import diagnose
    from diagnose.cli.programs.argv_split import program_of
    from diagnose.cli.programs.preconditions import require_torch
    from diagnose.cli.streams import result, standard_output_to_stderr, talk
    from diagnose.errors import Cancelled, DiagnoseError, ProgramFailed
    from diagnose.program import Program
    from diagnose.report.style.vocabulary import how_it_ended, named_count
    from diagnose.session import Noticed, RunEnded, RunStarted, Session, Warned
    from diagnose.watching.service import Watching

    words = program_of(args.words[1:], "watch")
    require_torch()
    program = Program.parse(words.program, module=words.module, launcher=words.launcher)
    if args.prometheus is not None:
        args.prometheus = args.prometheus.absolute()
    # A notice is printed by `tell`; the journal itself says only that it cannot be written any more.
    session = Session.create(program.name, lambda event: talk(event.message) if isinstance(event, Warned) else None)
    kept = os.dup(1)

    def tell(event: Noticed) -> None:
        if args.json:
            os.write(kept, msgspec.json.encode(event) + b"\n")
        else:
            talk(f"diagnose: {event.message}")
            for rank, stack in event.stacks.items():
                talk("\n".join([f"  rank {rank}", *(f"    {frame}" for frame in stack)]))

    session.record(
        RunStarted(
            command="watch", program=program.typed, cwd=str(program.cwd), version=diagnose.__version__, pid=os.getpid()
        )
    )
    watching = Watching(program, session, args.keep << 20, args.prometheus, tell)
    code, message = 1, "ended by an error of diagnose itself"
    returncode = None
    try:
        with standard_output_to_stderr(args.json):
            outcome = watching.run()
        returncode = outcome.returncode
        code = Cancelled.exit_code if outcome.interrupted else ProgramFailed.exit_code if returncode else 0
        message = f"the program failed with {how_it_ended(returncode)}" if code == ProgramFailed.exit_code else ""
        if not code and not watching.steps:
            message = "no training step was seen: name the script that trains, or put its launcher after --"
    except DiagnoseError as error:
        code, message = error.exit_code, str(error)
        raise
    finally:
        session.record(RunEnded(returncode=returncode, exit_code=code, message=message))
        session.close()
        os.close(kept)
    quiet = "no change" if watching.settled else "the run was too short to tell whether its steps changed"
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(watching.notices.items())) or quiet
    summary = f"Watched {named_count(watching.steps, 'step')}: {told}. Run folder: {session.path}"
    (talk if args.json else result)(f"{message}\n{summary}" if message else summary)
    return code


def _megabytes(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of MiB")
    return int(text)
