"""Runs the programs of `tests/programs` watched, and reads what they left."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from diagnose.collect import Recipe, environment

PROGRAMS = Path(__file__).parent.parent / "programs"
LIGHT_TORCH = f"import sys; sys.path.append({str(PROGRAMS)!r}); import light, torch; sys.path.pop()"
"""For programs that lie elsewhere: the same as `import torch` in half the time. See `programs/light.py`."""
LIGHT_PYTHON = (sys.executable, str(PROGRAMS / "light.py"))
"""Runs a program as Python does, whatever the program imports, in half the time."""
LIMIT_S = 1000
"""So long only a program takes that hangs: a busy machine may be a hundred times slower. Below pytest's own limit."""
LIMIT_NS = LIMIT_S * 10**9
QUICK = Recipe(warmup=4, most_warmup_steps=8)
"""Traces after eight steps at the latest, however noisy the machine is."""

# Each word of the environment that a test runner may have set and that a program could see.
BARE = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


@dataclass(frozen=True)
class Ran:
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str
    folder: Path

    def lines(self, name: str, rank: int = 0) -> list[dict[str, Any]]:
        """The records of one of the rank's files, one a line; empty where it is absent."""
        path = self.folder / f"rank{rank}" / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def record(self, name: str, rank: int = 0) -> dict[str, Any]:
        """One of the rank's files that hold a single record."""
        record: dict[str, Any] = json.loads((self.folder / f"rank{rank}" / name).read_text())
        return record

    def has(self, name: str, rank: int = 0) -> bool:
        """Whether the rank has left this file."""
        return (self.folder / f"rank{rank}" / name).exists()

    @property
    def ranks(self) -> list[str]:
        """The folders of ranks, sorted."""
        return sorted(path.name for path in self.folder.glob("rank*"))


def run(
    folder: Path,
    *words: str,
    watched: bool = True,
    recipe: Recipe = QUICK,
    stdin: str = "",
    extra: dict[str, str] | None = None,
) -> Ran:
    """Run `python WORDS` in the folder of programs, watched or as it is."""
    base = {**BARE, **(extra or {})}
    variables = environment(recipe.to_json(folder), base) if watched else base
    done = subprocess.run(
        [sys.executable, *words],
        cwd=PROGRAMS,
        env=variables,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def left_of(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end within the limit; one whose exit code nobody has collected has ended."""
    return [process for process in processes if not _ends(process)]


def _ends(process: psutil.Process) -> bool:
    try:
        end = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return not process.is_running() or bool(select.select([end], [], [], LIMIT_S)[0])
    finally:
        os.close(end)
