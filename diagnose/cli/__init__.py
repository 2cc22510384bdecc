"""The `diagnose` command. Each subcommand is one module with `add_parser` and `run`; only `main` catches errors.

words ──▶ main ──▶ programs/ (start a program)   recordings/ (read what was recorded)
                   patches/ (change its files)   machine/ (this machine)   explain (rules and fixers)

Results go to stdout, talk goes to stderr. Modules keep heavy imports inside `run`, so that `diagnose --help` answers
without numpy, torch or textual.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

import diagnose
from diagnose.cli.encoding_fallback import speak
from diagnose.cli.programs.argv_split import Split, split, split_commits, split_named
from diagnose.cli.streams import abandon, replace_closed_streams, talk, terminal_is_lost
from diagnose.errors import Cancelled, DiagnoseError, UsageError

COMMANDS = {
    "run": "programs.run",
    "watch": "programs.watch",
    "fix": "programs.fix",
    "check": "programs.check",
    "check-pr": "programs.check_pr",
    "probe": "programs.probe",
    "apply": "patches.apply",
    "revert": "patches.revert",
    "analyze": "recordings.analyze",
    "view": "recordings.view",
    "report": "recordings.report",
    "compare": "recordings.compare",
    "ranks": "recordings.ranks",
    "gather": "recordings.gather",
    "scaling": "recordings.scaling",
    "calibrate": "machine.calibrate",
    "explain": "explain",
    "doctor": "machine.doctor",
    "cache": "machine.cache",
    "completion": "machine.completion",
    "demo": "programs.demo",
}
"""Each command, in the order of `--help`, with its module in this package."""

_FIRST_STEPS = (
    "Start with `diagnose run train.py` on a program of yours, `diagnose analyze trace.json.gz` on a recording, or "
    "`diagnose demo`. `diagnose COMMAND --help` says more of each. Exit codes: 0 done; 1 only under --fail-on; 2 the "
    "input or the call is wrong; 3 your program failed; 130 interrupted."
)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are `UsageError`s, so that every wrong call ends the same way."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse declares NoReturn; raising is that
        missing = message.removeprefix("the following arguments are required: ")
        if missing != message:
            message = f"{missing} {'are' if ', ' in missing else 'is'} missing"
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        speak(stream)
    try:
        args = _parsed(words)
        args.words = words
        _warn_of_late_options(args.command, words)
        run = _module(args.command).run
        return int(run(args))
    except DiagnoseError as error:
        talk(f"diagnose: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        talk("diagnose: interrupted")
        return Cancelled.exit_code
    except BrokenPipeError:
        # The reader of stdout went away (`diagnose … | head`): nothing is left to say, to anyone.
        abandon(sys.stdout)
        return 0
    except OSError as error:
        if error.errno == errno.EIO and terminal_is_lost():
            abandon(sys.stdout)
            return Cancelled.exit_code
        if error.errno not in _OUTSIDE:
            raise
        abandon(sys.stdout)
        where = f"{error.filename}: " if error.filename else ""
        talk(f"diagnose: {where}{error.strerror}; {_OUTSIDE[error.errno]}")
        return DiagnoseError.exit_code


_OUTSIDE = {
    errno.ENOSPC: "free some space, then try again",
    errno.EDQUOT: "free some of your quota, then try again",
    errno.EROFS: "start in a folder that can be written to",
    errno.EACCES: "start as a user who may use it, or in a folder that is yours",
    errno.EPERM: "start as a user who may use it, or in a folder that is yours",
    errno.EIO: "the storage fails, or it is not to be reached; the system's log says more (`dmesg`)",
    errno.EMFILE: "allow more open files (`ulimit -n`)",
}
"""Refusals of the machine at a place where nobody expects them, and what its user can do. Other errors are ours."""


_WITHOUT_COMMAND = ("-h", "--help", "-V", "--version")


def _parsed(words: list[str]) -> argparse.Namespace:
    """The options. Raises UsageError for what is no command or no option of it, naming the nearest that there is."""
    if not words:
        raise UsageError(
            "no command was named; `diagnose run train.py` finds what slows a program, `diagnose demo` shows how, "
            "`diagnose --help` lists all"
        )
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UsageError(f"{words[0]} is no command; {_meant(words[0])}`diagnose --help` lists all")
    if words[0].startswith("-") and not any(known.startswith(words[0]) for known in _WITHOUT_COMMAND):
        raise UsageError(f"{words[0]} is no command: that comes first, its options after it; see `diagnose --help`")
    args, unknown = _parser().parse_known_args(_without_program(words))
    if unknown:
        what = "option" if unknown[0].startswith("-") else "argument"
        report = "; `diagnose report` writes other formats" if unknown[0].partition("=")[0] == "--format" else ""
        raise UsageError(f"{args.command} takes no {what} {unknown[0]}; see `diagnose {args.command} --help`{report}")
    return args


def _meant(word: str) -> str:
    """A question, with a space behind it, where it can be guessed what `word` in the place of a command was to be."""
    if word.endswith(".py"):
        return f"did you mean `diagnose run {word}`? "
    if word.endswith((".json", ".json.gz", ".sqlite", ".nsys-rep", ".db", ".pftrace")):
        return f"did you mean `diagnose analyze {word}`? "
    near = difflib.get_close_matches(word, COMMANDS, 1)
    return f"did you mean {near[0]}? " if near else ""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="diagnose", description=str(diagnose.__doc__).splitlines()[0], epilog=_FIRST_STEPS)
    parser.add_argument("-V", "--version", action="version", version=f"diagnose {diagnose.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        _module(command).add_parser(subparsers)
    return parser


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"diagnose.cli.{COMMANDS[command]}")


def _warn_of_late_options(command: str, words: list[str]) -> None:
    """Say on stderr which options of `diagnose` are given to a program that knows none of that name."""
    found = _split(words)
    if found is None or not any(word.startswith("--") for word in found[1].program):
        return
    from diagnose.cli.programs.late_options import late_options

    known = command_parsers()[command][1]._option_string_actions
    for warning in late_options(*found, known):
        talk(f"diagnose: {warning}")


def command_parsers() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return each command's line of help and parser, by the command's name."""
    (commands,) = (one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction))
    said = {one.dest: one.help or "" for one in commands._get_subactions()}
    return {name: (said[name], parser) for name, parser in commands.choices.items()}


_NAMED = {"check": "--all", "probe": "--list"}
"""Commands that a name follows, before the program, and the option that stands in its place."""


def _without_program(words: list[str]) -> list[str]:
    """The words that belong to `diagnose` itself: those before the user's program begins, where it starts one."""
    found = _split(words)
    return words if found is None else [words[0], *found[1].options]


def _split(words: list[str]) -> tuple[list[str], Split] | None:
    """A command that starts a program, with the name that it takes first, and its other words, cut in two; None for
    other commands."""
    if words and words[0] in _NAMED:
        name, rest = split_named(words[1:], _NAMED[words[0]])
        return [words[0]] if name is None else [words[0], name], rest
    if words and words[0] == "check-pr":
        commits, rest = split_commits(words[1:])
        return [words[0], *commits], rest
    return (words[:1], split(words[1:])) if words and words[0] in ("run", "watch", "fix") else None
