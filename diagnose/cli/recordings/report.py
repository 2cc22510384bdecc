"""`diagnose report`: a finished run or a recording as one text, on stdout or in a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.streams import result, talk
from diagnose.errors import UsageError
from diagnose.session import JOURNAL

if TYPE_CHECKING:
    from diagnose.model import Diagnosis
    from diagnose.session import State

PERFETTO = "perfetto"
FORMATS = ("text", "github", "html", "json", "junit", "markdown", "sarif")
"""The formats that `diagnose.report.formats` finds, written out so that `--help` need not import them; a test
compares."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "report",
        help="what a run or a recording says, as text, HTML, Markdown, JSON, SARIF …",
        description="Prints the report of a run or a recording, or writes it to a file: `-o report.html` makes one "
        "page to open or send on.",
    )
    parser.add_argument(
        "target",
        metavar="RUN|TRACE",
        nargs="?",
        type=Path,
        help="a run folder, its name, the id of its process, or a trace; the latest run when left out",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, PERFETTO),
        help="text when left out, or what the name of FILE says; perfetto is the recording itself with "
        "tracks for steps, causes of idle time and findings",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument(
        "--checklist", action="store_true", help="the usual targets with this run's values, and what is open, instead"
    )
    parser.add_argument(
        "--tensorboard",
        metavar="DIR",
        type=Path,
        help="write an event file for TensorBoard into DIR instead: steps by class, counters, tables",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write a file instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Read, render, print or write."""
    from diagnose.cli.recordings.findings import terminal_width, wants_colour
    from diagnose.cli.recordings.target import diagnosis_of, explore, run_of, state_of
    from diagnose.program.atomic import write_atomic
    from diagnose.report import formats
    from diagnose.report.terminal import checklist, text

    if args.output is not None:
        _refuse_input(args.output, args.target)
    journal = run_of(args.target)
    name = args.format or _format_of(args.output)
    if args.tensorboard is not None:
        if args.checklist or args.output is not None or args.format is not None:
            raise UsageError("--tensorboard is written alone; leave out --format, --checklist and -o")
        return _write_events(journal or Path(args.target), args.tensorboard)
    if name == PERFETTO:
        return _write_trace(journal or Path(args.target), args.output)
    subject: Diagnosis | State
    if journal is not None:
        subject = state_of(journal)
    else:
        subject = explore(args.target) if name == "html" else diagnosis_of(args.target)
    if args.checklist:
        if args.format is not None or args.output is not None:
            raise UsageError("--checklist is printed as text; leave out --format and -o, or redirect it to a file")
        result(checklist.render(subject, width=terminal_width(), colour=wants_colour()))
        return 0
    if args.output is None:
        if name == "text":
            result(text.render(subject, width=terminal_width(), colour=wants_colour()))
        else:
            result(formats()[name].render(subject))
        return 0
    rendered = formats()[name].render(subject)
    try:
        write_atomic(args.output, (rendered.rstrip("\n") + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write {args.output}: {error.strerror}; name another file with -o") from error
    talk(f"wrote {args.output}")
    return 0


def _refuse_input(output: Path, target: Path | None) -> None:
    """Raise UsageError where the report would take the place of a folder, or of what it is made from."""
    if output.is_dir():
        raise UsageError(f"cannot write {output}: it is a folder; name a file in it: -o {output / 'report.html'}")
    if target is None or not output.exists():
        return
    in_run = target.is_dir() and output.resolve().is_relative_to(target.resolve()) and output.stem != "report"
    if in_run or output.samefile(target):
        raise UsageError(f"cannot write {output}: the report is made from it; name another file with -o")


def _write_trace(target: Path, output: Path | None) -> int:
    from diagnose.cli.recordings.target import diagnose_ranks
    from diagnose.program.atomic import write_atomic
    from diagnose.report.export.trace_events import render

    if output is None:
        raise UsageError("the trace is a file for ui.perfetto.dev; name it: -o trace.json")
    traces, diagnosis = diagnose_ranks(target.parent if target.is_file() and target.name == JOURNAL else target)
    try:
        write_atomic(output, render(traces, diagnosis))
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; name another file with -o") from error
    talk(f"wrote {output}; open it in ui.perfetto.dev")
    return 0


def _write_events(target: Path, folder: Path) -> int:
    from diagnose.cli.recordings.target import diagnose_ranks
    from diagnose.program.atomic import write_atomic
    from diagnose.report.export.tensorboard import FILE, render

    traces, diagnosis = diagnose_ranks(target.parent if target.is_file() and target.name == JOURNAL else target)
    try:
        for run, data in render(traces, diagnosis).items():
            write_atomic(folder / run / FILE, data)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}; name another folder") from error
    talk(f"wrote {folder}; open it with tensorboard --logdir {folder}")
    return 0


def _format_of(output: Path | None) -> str:
    return _SUFFIXES.get(output.suffix.lower(), "text") if output is not None else "text"


_SUFFIXES = {
    ".htm": "html",
    ".html": "html",
    ".json": "json",
    ".markdown": "markdown",
    ".md": "markdown",
    ".sarif": "sarif",
    ".xml": "junit",
}
