"""Counts how many of the injected regressions `check-pr` tells, and how many harmless changes it alarms at.

    python benchmarks/regressions/check_pr.py [injected] [harmless] [pairs] [PROGRAM …]

Prints a line for each change and the sums. Each change is a commit of its own on top of the unchanged programs. Pairs
are the programs of `benchmarks/sickbay` and `benchmarks/heldout`, with `--tiny`: from `healthy.py` to `train.py`, where
an alarm is right if the ailment is one that can be counted, and from the same counts back, where none is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from harmless import HARMLESS
from injected import INJECTED, Change

from diagnose.errors import DiagnoseError
from diagnose.program import Program
from diagnose.regressions import Checked, Difference, check_commits
from diagnose.regressions.comparison import compare
from diagnose.regressions.lines import line_map

PROGRAMS = Path(__file__).parent / "programs"
PAIRS = tuple(Path(__file__).parents[1] / name for name in ("heldout", "sickbay"))
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


def pair(program: Path) -> tuple[list[Difference], list[Difference]]:
    """Return the regressions from a healthy program to the one with its ailment, and back. Raises DiagnoseError."""
    ailment = tomllib.loads((program / "ailment.toml").read_text())
    texts = [(program / name).read_text() for name in ("healthy.py", "train.py")]
    ranks = int(ailment.get("ranks", 1))
    words = ["train.py", "--tiny", *ailment.get("arguments", [])]
    words = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), *words] if ranks > 1 else words
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _git(folder, "init", "-q")
        for text in texts:
            (folder / "train.py").write_text(text)
            _commit(folder)
        started = Program.parse(words, launcher=ranks > 1, cwd=folder)
        found = check_commits(started, "HEAD~1", "HEAD", limit_ns=_LIMIT_NS)
    back = compare(found.costs[1], found.costs[0], line_map({"train.py": (texts[1], texts[0])}))
    return list(found.regressions), [one for one in back if one.is_regression]


def pairs(names: list[str]) -> None:
    """Print what is said of each pair."""
    ran = worse = better = 0
    for program in sorted(one.parent for folder in PAIRS for one in folder.glob("*/train.py")):
        if not (program / "healthy.py").exists() or (names and program.name not in names):
            continue
        try:
            found, back = pair(program)
        except DiagnoseError as error:
            print(f"pairs {program.name}: ERROR {error}", flush=True)
            continue
        ran, worse, better = ran + 1, worse + bool(found), better + bool(back)
        print(f"pairs {program.name}: {said(found)}{f'; back: {said(back)}' if back else ''}", flush=True)
    print(f"pairs: {worse} of {ran} alarmed, {better} on the way back")


def said(found: Sequence[Difference]) -> str:
    """Return regressions as one line."""
    return "; ".join(f"{one.kind} {one.line}: {one.message}" for one in found) or "-"


def main(words: list[str]) -> None:
    """Run what is named; both sets of changes where nothing is."""
    sets = {"injected": INJECTED, "harmless": HARMLESS}
    wanted = [word for word in words if word in sets]
    names = [word for word in words if word not in (*sets, "pairs")]
    if "pairs" in words:
        pairs(names)
    elif not wanted:
        wanted = list(sets)
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
                    answer = said(found.regressions)
                except (DiagnoseError, ValueError) as error:
                    answer = f"ERROR {error}"
                longest = max(longest, time.monotonic() - began)
                print(f"{kind} {change[0]} {change[1]}: {answer}", flush=True)
            print(f"{kind}: {alarms} of {count} alarmed; the longest took {longest:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
