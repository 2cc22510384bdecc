"""`diagnose check`: one fixer's edit of a program, and what each gate says of it; nothing is timed."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import Cancelled, ProgramFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnose.model import EditCheck
    from diagnose.plugins import Catalogue
    from diagnose.program import Program

_EXAMPLE = "check use-sdpa train.py"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "check",
        help="ask one fixer for its edit and the gates whether it is safe; times nothing, writes nothing to your files",
        usage="diagnose check [options] FIXER|--all SCRIPT ARGS… | -m PACKAGE ARGS… | -- LAUNCHER …",
        description="Runs a training program for a few steps, asks a fixer for its edit whatever the findings say, and "
        "runs the gates on a copy with the edit. Prints the diff and each gate's answer: passed, refused or "
        "unverified. The exit code is 0 whatever the gates answer.",
    )
    parser.add_argument("--all", action="store_true", help="check every fixer, one after the other")
    parser.add_argument(
        "--setting",
        action="append",
        metavar="NAME=VALUE",
        help="check the edit with this setting of the fixer's knob; else the first that leads to an edit",
    )
    parser.add_argument(
        "--budget", metavar="TIME", help="begin no further check after this long in all, for example 2m"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; the program's own output goes to stderr"
    )
    parser.add_argument("--rules", type=Path, metavar="DIR", help="a folder of further rules, one a file")
    parser.add_argument("--fixers", type=Path, metavar="DIR", help="a folder of further fixers, one a file")


def run(args: argparse.Namespace) -> int:
    """Watch briefly, ask, gate, print."""
    from diagnose.cli.programs.argv_split import require_program, split_named
    from diagnose.cli.programs.fixer_selection import check_names
    from diagnose.cli.programs.preconditions import on_one_host, require_torch
    from diagnose.cli.programs.watched_run import budget_of
    from diagnose.cli.recordings.findings import terminal_width, wants_colour
    from diagnose.cli.streams import result, standard_output_to_stderr
    from diagnose.plugins import load
    from diagnose.program import Program
    from diagnose.report.terminal.checks import as_json, as_text

    name, words = split_named(args.words[1:], "--all")
    if name is None and not args.all:
        raise UsageError(f"a fixer is missing; for example `diagnose {_EXAMPLE}`, or --all in its place")
    setting = _setting(args.setting or [])
    if args.all and setting:
        raise UsageError("--setting needs one fixer; name it instead of --all")
    catalogue = load(args.rules, args.fixers)
    if name is not None:
        check_names([name], catalogue.fixers, "fixer (`diagnose explain` lists all)")
    require_program(words, "check --all train.py" if args.all else f"check {name} train.py")
    on_one_host(words)
    program = Program.parse(words.program, module=words.module, launcher=words.launcher)
    require_torch()
    names = sorted(catalogue.fixers) if name is None else [name]
    found: list[EditCheck] = []
    try:
        with standard_output_to_stderr(args.json):
            for one in _checked(program, catalogue, names, setting, budget_of(args)):
                found.append(one)  # as they come: a Ctrl-C leaves those that are there
    except Cancelled:
        raise KeyboardInterrupt from None  # said and answered as a Ctrl-C
    finally:
        found.sort(key=lambda one: one.fixer)
        if found and args.json:
            result(as_json(found, whole=args.all))
        elif found:
            result("\n" + as_text(found, terminal_width(), colour=wants_colour()))
    return 0


def _setting(words: list[str]) -> dict[str, str]:
    """The values of --setting by name. Raises UsageError for what is no NAME=VALUE."""
    for word in words:
        if not all(word.partition("=")):
            raise UsageError(f"--setting {word} is not NAME=VALUE, for example num_workers=2")
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def _checked(
    program: Program, catalogue: Catalogue, names: Sequence[str], setting: dict[str, str], budget_ns: int | None
) -> Iterator[EditCheck]:
    """Yield the answers. Raises ProgramFailed where the program fails as found, and Cancelled."""
    from diagnose.cli.programs.ending import INTERRUPTED, judge_exit
    from diagnose.cli.programs.watched_run import leaving_on, plain_lines
    from diagnose.collect.recipe import Recipe
    from diagnose.compose.check import check
    from diagnose.observe import observe
    from diagnose.session import CHECKS, Session
    from diagnose.trial.process.process_group import undisturbed
    from diagnose.trial.schedule import Deadline

    deadline = Deadline.within(budget_ns)
    session = Session.create(program.name, plain_lines(), below=CHECKS)
    stop = threading.Event()
    try:
        with leaving_on(stop):
            seen = observe(program, Recipe.brief().within(budget_ns), session, catalogue, stop)
            code, message = judge_exit(seen, stop.is_set())
            if code == INTERRUPTED:
                raise Cancelled
            if code:
                raise ProgramFailed(f"{message}; a check needs a program that runs", seen.outcome.returncode)
            yield from check(
                program,
                seen.diagnosis,
                seen.traces,
                catalogue,
                names,
                session.record,
                session.path,
                setting,
                deadline,
                stop.is_set,
            )
    finally:
        session.close()
        with undisturbed():
            shutil.rmtree(session.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # of another check that goes on
                session.path.parent.rmdir()
