"""The `diagnose` command. Each subcommand is one module with `add_parser` and `run`; only `main` catches errors.

Results go to stdout, talk goes to stderr. Modules keep heavy imports inside `run`, so that `diagnose --help` answers
without numpy, torch or textual.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import diagnose
from diagnose.cli.streams import talk
from diagnose.errors import DiagnoseError, UsageError

COMMANDS = (
    "run",
    "fix",
    "apply",
    "revert",
    "analyze",
    "view",
    "report",
    "compare",
    "ranks",
    "gather",
    "scaling",
    "calibrate",
    "explain",
    "doctor",
    "cache",
    "demo",
)
"""Modules of this package, in the order of `--help`."""

INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are `UsageError`s, so that every wrong call ends the same way."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse declares NoReturn; raising is that
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser().parse_args(_without_program(words))
        args.words = words
        run = importlib.import_module(f"diagnose.cli.{args.command}").run
        return int(run(args))
    except DiagnoseError as error:
        talk(f"diagnose: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        talk("diagnose: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout went away (`diagnose … | head`): nothing is left to say, to anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="diagnose", description=diagnose.__doc__)
    parser.add_argument("--version", action="version", version=f"diagnose {diagnose.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        importlib.import_module(f"diagnose.cli.{command}").add_parser(subparsers)
    return parser


def _without_program(words: list[str]) -> list[str]:
    """The words that belong to `diagnose` itself: for `run` and `fix`, those before the user's program begins."""
    from diagnose.cli.program_words import split

    if not words or words[0] not in ("run", "fix"):
        return words
    return [words[0], *split(words[1:]).options]
