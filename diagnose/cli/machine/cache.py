"""`diagnose cache`: how fused kernels are launched on a device, found by measuring: to see, to share, to take over."""

from __future__ import annotations

import argparse
import importlib.util
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.cli.streams import result, talk
from diagnose.errors import EnvironmentLacks, InputError, UsageError
from diagnose.units import format_ns, printable

if TYPE_CHECKING:
    from diagnose.kernels.launch.tuning_file import Choice, Key


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "cache",
        help="list, export or import how fused kernels were tuned",
        description="The fused kernels measure once how they are launched best: for a kernel, shape, dtype, device and "
        "versions. What was found is kept in a file, which can be carried to machines of the same kind.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="what was found on this machine, or imported")
    exporting = actions.add_parser("export", help="write all of it to a file")
    exporting.add_argument("file", metavar="FILE", type=Path)
    importing = actions.add_parser("import", help="add what a file has to it")
    importing.add_argument("file", metavar="FILE", type=Path)
    importing.add_argument("--replace", action="store_true", help="take the file's choice where there is one already")
    for action in (listing, exporting, importing):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Do one of the three."""
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacks(
            "the fused kernels need torch, which is not installed: there is nothing to list or share"
        )
    from diagnose.kernels.launch import tuning_file

    own = tuning_file.place()
    if own is None:
        raise UsageError("DIAGNOSE_CACHE=off keeps nothing; unset it, or name a folder in it")
    {"list": _list, "export": _export, "import": _import}[args.action](own, args)
    return 0


def _list(own: Path, args: argparse.Namespace) -> None:
    choices = _read(own)
    if args.json:
        result(_json(file=str(own), entries=[asdict(key) | asdict(choice) for key, choice in sorted(choices.items())]))
        return
    talk(f"{own}: {_counted(len(choices))}")
    above: tuple[str, str] | None = None
    for key, choice in sorted(choices.items(), key=lambda item: (item[0].device, item[0].versions, item[0])):
        if above != (key.device, key.versions):
            above = (key.device, key.versions)
            result(printable(f"{key.device}, {key.versions}"))
        shape = "×".join(map(str, key.shape))
        gain = f", {format_ns(choice.default_ns)} by default" if choice.default_ns > choice.time_ns else ""
        result(printable(f"  {key.kernel} {shape} {key.dtype}: {choice.config} ({format_ns(choice.time_ns)}{gain})"))


def _export(own: Path, args: argparse.Namespace) -> None:
    from diagnose.kernels.launch import tuning_file

    choices = _read(own)
    if not choices:
        raise InputError(own, "nothing was tuned here yet; run a program that uses the fused kernels on its device")
    try:
        tuning_file.write(args.file, choices)
    except OSError as problem:
        raise InputError(args.file, f"cannot be written: {problem.strerror}") from problem
    if args.json:
        result(_json(file=str(args.file), exported=len(choices)))
    else:
        result(f"{args.file}: {_counted(len(choices))} exported")


def _import(own: Path, args: argparse.Namespace) -> None:
    from diagnose.kernels.launch import tuning_file

    if not args.file.is_file():
        raise InputError(args.file, "there is no such file")
    found = _read(args.file)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            added, replaced, kept = tuning_file.merge(own, found, replace=args.replace)
        except OSError as problem:
            raise InputError(own, f"cannot be written: {problem.strerror}") from problem
    for warning in said:
        talk(f"diagnose: {warning.message}")
    if args.json:
        result(_json(file=str(own), added=added, replaced=replaced, kept=kept))
        return
    parts = [f"{_counted(added)} added"]
    if replaced:
        parts.append(f"{replaced} replaced")
    if kept:
        parts.append(f"{kept} left as they are here" + ("" if args.replace else " (--replace takes the file's)"))
    result(f"{args.file}: {', '.join(parts)}")


def _read(path: Path) -> Mapping[Key, Choice]:
    from diagnose.kernels.launch import tuning_file

    try:
        return tuning_file.read(path)
    except tuning_file.NotATuningFile as problem:
        raise InputError(path, str(problem)) from problem
    except OSError as problem:
        raise InputError(path, f"cannot be read: {problem.strerror}") from problem


def _json(**fields: Any) -> str:
    return json.dumps({"schema": 1, **fields}, ensure_ascii=False, indent=2)


def _counted(count: int) -> str:
    return f"{count} choice{'' if count == 1 else 's'}"
