"""Runs programs whole: each run in a fresh copy with a folder for temporary files of its own, several side by side."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.collect.records import BATCHES
from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.command import command_line
from diagnose.program.shorten import mark_loops
from diagnose.program.source import read_source
from diagnose.source.settings.command_line import COMMAND_LINE, split_command
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.process_group import Group, end_all
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.schedule import Deadline
from diagnose.trial.whole_run.observation import Observation, listed, observe
from diagnose.trial.whole_run.told_options import Told

_DETERMINISTIC = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class NoTimeToRun(Exception):
    """The budget left no time to begin a run."""


@dataclass(frozen=True)
class RunRequest:
    """A run of a program: under which recipe, and whether its long loops are shortened."""

    program: Program
    """A copy that a trial made; a fresh one is made of its files."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "whole_run"

    @property
    def shortens(self) -> bool:
        """Whether loops are to be marked."""
        return self.recipe.get("batches") is not None and self.mode == "whole_run"


@dataclass
class Runs:
    """Makes copies and processes; what a run left stays on disk until it is forgotten, or the trials end."""

    workplace: Workplace
    copies: Workspace
    limit_ns: int
    """The time limit of one run, from its start to its end."""
    side_by_side: int = 1
    deadline: Deadline = field(default_factory=Deadline)
    on_end: Callable[[], None] = lambda: None
    """Told of each run that ended."""
    _numbers: Any = field(default_factory=itertools.count)

    def observe(self, wanted: Sequence[RunRequest]) -> list[Observation]:
        """Carry out all of them, as many side by side as fit; in the order asked for. Raises NoTimeToRun."""
        found: dict[int, Observation] = {}
        waiting, running = list(enumerate(wanted)), dict[int, _Running]()
        try:
            while waiting or running:
                while waiting and len(running) < max(1, self.side_by_side):
                    if self.deadline.passed:
                        raise NoTimeToRun
                    place, one = waiting.pop(0)
                    running[place] = self._start(one)
                done = self._first_to_end(running)
                found[done] = running.pop(done).finish()
                self.on_end()
        finally:
            end_all(left.group for left in running.values())
        return [found[place] for place in range(len(wanted))]

    def batches(self, program: Program, batches: int, passes: int) -> list[list[str]] | None:
        """Hashes of what the first training loader of a program yields, pass by pass; None where it says nothing.
        Raises NoTimeToRun, also where the deadline ended the run."""
        if self.deadline.passed:
            raise NoTimeToRun
        wanted = RunRequest(program, {"batches": batches, "passes": passes}, "data_order")
        started = self._start(wanted)
        try:
            self._first_to_end({0: started})
        finally:
            started.group.end()
        found = _hashes(started.folder)
        self.forget(started.folder)
        if found is None and self.deadline.passed:
            raise NoTimeToRun
        self.on_end()
        return found

    def forget(self, *folders: Path) -> None:
        """Remove what these runs left on disk, which may be checkpoints of many GB."""
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self.copies.folder / _copy_of(folder), ignore_errors=True)

    def _start(self, wanted: RunRequest) -> _Running:
        folder = self.workplace.folder / f"whole-{next(self._numbers)}"
        program = self._fresh(wanted, _copy_of(folder))
        scratch = folder / "tmp"
        scratch.mkdir(parents=True)
        places = {"root": str(program.root), "scratch": str(scratch), "private": str(self.workplace.folder)}
        recipe = {"mode": wanted.mode, "seed": 0, **places, **wanted.recipe}
        before = listed(program.root)
        settings = {**_DETERMINISTIC, "TMPDIR": str(scratch)}
        group = self.workplace.start(program, recipe, folder, {}, settings)
        return _Running(program, folder, scratch, group, before)

    def _fresh(self, wanted: RunRequest, name: str) -> Program:
        """A new copy with the files of the one that is meant: what an earlier run left in that is not in it."""
        root = wanted.program.root
        files = {os.path.relpath(path, root): read_source(Path(path)).text for path in self.copies.edited.get(root, ())}
        texts = dict(files)
        if root in self.copies.commands:
            texts[COMMAND_LINE] = self.copies.commands[root]
        if wanted.shortens:
            texts |= mark_loops({**sources(wanted.program), **files})
        return self.copies.make(texts, name)

    def told(self, program: Program) -> Told:
        """Return the differences in output that a copy may show because it is given other options."""
        text = self.copies.commands.get(program.root)
        line = command_line(self.copies.program)
        if text is None or line is None:
            return Told()
        return Told.of(line.words[line.own :], split_command(text)[line.own :], sources(program).values())

    def _first_to_end(self, running: Mapping[int, _Running]) -> int:
        """The first that ends by itself; the oldest when its time is up."""
        oldest = next(iter(running))
        while True:
            for place, one in running.items():
                if one.group.exited:
                    return place
            if self.deadline.passed or time.monotonic_ns() - running[oldest].began_ns >= self.limit_ns:
                return oldest
            running[oldest].group.rest()


@dataclass
class _Running:
    program: Program
    folder: Path
    scratch: Path
    group: Group
    before: Mapping[str, tuple[int, int]]
    began_ns: int = field(default_factory=lambda: time.monotonic_ns())

    def finish(self) -> Observation:
        returncode = self.group.wait(0)
        self.group.end()
        return observe(self.folder, self.program.root, self.scratch, self.before, returncode)


def _copy_of(folder: Path) -> str:
    return f"{folder.name}-copy"


def sources(program: Program) -> dict[str, str]:
    """The program's own Python files below its root."""
    found, root = {}, program.root
    for name in listed(root):
        if name.endswith(".py") and program.owned(root / name):
            try:
                found[name] = read_source(root / name).text
            except InputError:
                continue
    return found


def _hashes(folder: Path) -> list[list[str]] | None:
    found: list[list[str]] = []
    for path in sorted(folder.glob(f"rank*/{BATCHES}")):
        found += json.loads(path.read_bytes())["passes"]
    return found or None
