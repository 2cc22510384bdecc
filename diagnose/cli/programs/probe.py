"""`diagnose probe`: what a part of the step costs, by an experiment that takes that part away in a copy."""

from __future__ import annotations

import argparse

from diagnose.cli.programs.run import add_watch_options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "probe",
        help="take one part of the step away in a copy of the program, and measure what that part costs",
        usage="diagnose probe [options] NAME SCRIPT ARGS… | NAME -m PACKAGE ARGS… | NAME -- LAUNCHER … | --list",
        description="Runs a training program until it is traced, then measures it against a copy without one part of "
        "its step, such as loading or the optimizer. Says what that part costs, and which finding it confirms or "
        "contradicts. It is an experiment, never a patch: nothing is written to your files.",
    )
    add_watch_options(parser)
    parser.add_argument("--list", action="store_true", help="say what each probe takes away")
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="end within this long, for example 90s or 1h (default: 10m; `none` takes as long as it takes)",
    )
    parser.add_argument("--quick", action="store_true", help="shorter trials that resolve less")
    parser.set_defaults(stop_after_trace=True)


def run(args: argparse.Namespace) -> int:
    """List the probes, or watch until traced, then probe."""
    from diagnose.cli.programs.argv_split import require_program, split_named
    from diagnose.cli.programs.fixer_selection import check_names
    from diagnose.cli.programs.watched_run import probing_of, watching
    from diagnose.cli.streams import result
    from diagnose.collect.experiments import load_probes
    from diagnose.errors import UsageError

    if args.list:
        result(listing(args.json))
        return 0
    name, words = split_named(args.words[1:], "--list")
    if name is None:
        raise UsageError("a probe is missing; for example `diagnose probe cached-input train.py`, or --list")
    check_names([name], load_probes(), "probe (`diagnose probe --list` shows all)")
    require_program(words, f"probe {name} train.py")
    watched = watching(args, "probe", words)
    watched.probing = probing_of(args, (name,), words)
    return watched.carry_out(None, args.plain, args.json)


def listing(as_json: bool) -> str:
    """Return a list of the probes: what each takes away, what it leaves, and when it refuses."""
    import json

    from diagnose.collect.experiments import load_probes

    probes = load_probes().values()
    if as_json:
        fields = [
            {"name": one.name, "doc": one.doc, "measures": list(one.measures), "bounds": list(one.bounds)}
            for one in probes
        ]
        return json.dumps({"probes": fields}, indent=2, ensure_ascii=False)
    return "\n\n".join(f"{one.name}\n{_indented(one.doc)}" for one in probes) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
