"""`diagnose revert`: give the files that `diagnose apply` wrote their exact bytes from before."""

from __future__ import annotations

import argparse
from pathlib import Path

from diagnose.cli.patches.apply import by_hand, elsewhere, is_project, report, require_near, run_folder_of, run_folders
from diagnose.cli.streams import result
from diagnose.errors import PatchConflict, UsageError
from diagnose.program import patch
from diagnose.program.patch import Patch


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "revert",
        help="take an applied patch back, byte for byte",
        description="Restores the bytes that the files had before `diagnose apply`. Refuses, and names the files, when "
        "they were edited since.",
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="the patch that was applied last when left out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check, restore, say what was restored."""
    folder = _chosen(args.run)
    change = take_back(folder)
    result(report(change, folder, written=True, as_json=args.json, verb="restored"))
    return 0


def take_back(folder: Path) -> Patch:
    """Restore the files that the patch of `folder` changed. Raises PatchConflict where they were edited since."""
    change = patch.load(folder)
    require_near(folder, change)
    try:
        patch.revert(change, folder)
    except PatchConflict as error:
        way_out = f"to take the fix out and keep your edit: {by_hand(folder, change, '-R')}"
        raise PatchConflict(f"{error}; {way_out}") from error
    return change


def _chosen(name: str | None) -> Path:
    if name is None:
        applied = _applied(Path())
        if not applied:
            near = elsewhere("revert", _applied)
            raise UsageError(f"no patch is applied here{near}; `diagnose apply` would write one")
        return applied[0]
    folder = run_folder_of(name)
    if folder is None:
        raise UsageError(f"{name}: no such run; name a folder below .diagnose/runs")
    applied = _applied(folder) if is_project(folder) else [folder]
    if not applied or patch.applied_at(applied[0]) is None:
        raise UsageError(f"{name}: its patch is not applied")
    return applied[0]


def _applied(project: Path) -> list[Path]:
    """The folders of a project whose patch is in the user's files, the last one first."""
    found = [(when, folder) for folder in run_folders(project) if (when := patch.applied_at(folder)) is not None]
    return [folder for _when, folder in sorted(found, reverse=True)]
