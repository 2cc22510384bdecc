"""Counts how many of the injected regressions `check-pr` tells, and how many harmless changes it alarms at.

    python benchmarks/regressions/check_pr.py [injected|harmless] [NAME …]

Prints a line for each change and the sums. Each change is a commit of its own on top of the unchanged programs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harmless import HARMLESS
from injected import INJECTED, Change

from diagnose.errors import DiagnoseError
from diagnose.program import Program
from diagnose.regressions import Checked, check_commits

PROGRAMS = Path(__file__).parent / "programs"
_LIMIT_NS = 600 * 10**9


def repository(folder: Path) -> None:
    """Make a repository of the unchanged programs."""
    _git(folder, "init", "-q")
    for file in PROGRAMS.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    _commit(folder)


def checked(folder: Path, change: Change) -> Checked:
    """Return what `check-pr` says of a change. Raises DiagnoseError."""
    name, _, edits = change
    script = folder / f"{name}.py"
    text = script.read_text()
    for before, after in edits:
        if text.count(before) != 1:
            raise ValueError(f"{name}, {change[1]}: {before!r} is there {text.count(before)} times")
        text = text.replace(before, after)
    script.write_text(text)
    _commit(folder)
    try:
        return check_commits(Program.parse([script.name], cwd=folder), "HEAD~1", "HEAD", limit_ns=_LIMIT_NS)
    finally:
        _git(folder, "reset", "-q", "--hard", "HEAD~1")


def _commit(folder: Path) -> None:
    _git(folder, "add", "-A")
    _git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "change")


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


def main(words: list[str]) -> None:
    """Run both sets, or one."""
    sets = {"injected": INJECTED, "harmless": HARMLESS}
    wanted = [word for word in words if word in sets] or list(sets)
    names = [word for word in words if word not in sets]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        repository(folder)
        for kind in wanted:
            alarms, longest, count = 0, 0.0, 0
            for change in sets[kind]:
                if names and change[0] not in names:
                    continue
                count += 1
                began = time.monotonic()
                try:
                    found = checked(folder, change)
                    alarms += bool(found.regressions)
                    said = "; ".join(f"{one.kind} {one.line}: {one.message}" for one in found.regressions) or "-"
                except (DiagnoseError, ValueError) as error:
                    said = f"ERROR {error}"
                longest = max(longest, time.monotonic() - began)
                print(f"{kind} {change[0]} {change[1]}: {said}", flush=True)
            print(f"{kind}: {alarms} of {count} alarmed; the longest took {longest:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
