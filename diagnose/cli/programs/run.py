"""`diagnose run`: watch a training program as it is, and say what slows it."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "run",
        help="run a training program, watch it, and say what slows it",
        usage="diagnose run [options] SCRIPT ARGS… | -m PACKAGE ARGS… | -- LAUNCHER …",
        description="Runs a training program as it is, traces a few steady steps, and prints ranked findings.",
    )
    add_watch_options(parser)
    parser.add_argument("--stop-after-trace", action="store_true", help="end the program once its trace is written")
    parser.add_argument("--fix", action="store_true", help="go on to try fixes, as `diagnose fix` does")
    parser.add_argument(
        "--probe",
        action="append",
        metavar="NAME,…",
        help="measure what parts of the step cost, as `diagnose probe` does; `auto` takes the probes that would settle "
        "the top findings, cheapest first",
    )
    parser.add_argument(
        "--fail-on", choices=("high", "medium", "low"), help="exit 1 when a finding is at least this severe"
    )
    parser.add_argument(
        "--budget", metavar="TIME", help="with --fix or --probe: end within this long, for example 1h (default: 10m)"
    )


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """The options that `run` and `fix` share."""
    parser.add_argument(
        "--steps",
        type=_positive,
        default=4,
        metavar="N",
        help="steps to trace (default: 4, fewer where a step has thousands of operators)",
    )
    parser.add_argument(
        "--warmup", type=_positive, default=10, metavar="N", help="steps to wait before that, at least (default: 10)"
    )
    parser.add_argument(
        "--trace-ranks",
        type=_ranks,
        default="some",
        metavar="WHICH",
        help="the ranks of a job to trace: all, some, or a list such as 0,3 (default: some, which is all of up to four "
        "ranks, and of more the first, the last and the slowest); all ranks are watched",
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a screen, also on a terminal")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; the program's own output goes to stderr"
    )
    parser.add_argument("--rules", type=Path, metavar="DIR", help="a folder of further rules, one a file")
    parser.add_argument("--fixers", type=Path, metavar="DIR", help="a folder of further fixers, one a file")


def run(args: argparse.Namespace) -> int:
    """Watch, diagnose, print; with --fix, try fixes; with --probe, run experiments."""
    from diagnose.cli.programs.fixer_selection import check_names, names_in
    from diagnose.cli.programs.watched_run import fixing_of, probing_of, watching
    from diagnose.cli.recordings.findings import exit_code_of
    from diagnose.collect.experiments import load_probes
    from diagnose.errors import UsageError

    named = names_in(args.probe)
    if named and args.fix:
        raise UsageError("--probe and --fix each want the whole budget: run one after the other")
    if args.budget and not (named or args.fix):
        raise UsageError(
            "--budget bounds --fix and --probe, and neither is given; without them the program runs to its end"
        )
    check_names(named, ["auto", *load_probes()], "probe (`diagnose probe --list` shows all)")
    watched = watching(args, "fix" if args.fix else "run")
    if named:
        watched.probing = probing_of(args, () if "auto" in named else named)
    code = watched.carry_out(fixing_of(args) if args.fix else None, args.plain, args.json)
    diagnosis = watched.state.diagnosis
    return code or (exit_code_of(diagnosis, args.fail_on) if diagnosis else 0)


def _ranks(text: str) -> str | tuple[int, ...]:
    if text in ("all", "some"):
        return text
    try:
        ranks = tuple(sorted({int(one) for one in text.split(",")}))
    except ValueError:
        ranks = (-1,)
    if ranks[0] < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is neither all nor some nor a list of ranks such as 0,3")
    return ranks


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
