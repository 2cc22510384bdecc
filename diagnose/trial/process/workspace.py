"""Copies of one program for its trials: with other texts, an environment of their own, and a cache that all share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.model import Scalar
from diagnose.program import Program, patch
from diagnose.program.command import with_command_line
from diagnose.program.copy import copy_environment, copy_program
from diagnose.program.environment import with_script_environment
from diagnose.program.source import read_source
from diagnose.source.settings.command_line import COMMAND_LINE

_COMPILES = re.compile(r"(?<!\bre)\.compile\(")
_RECORDS = re.compile(r"make_graphed_callables\(")


@dataclass(frozen=True)
class Workspace:
    """The copies below a folder. Every answer is looked up by the root of a copy."""

    program: Program
    folder: Path
    environment: Mapping[str, str]
    """The environment in which the program itself would run."""
    compiles: bool = False
    """Whether the program was seen to compile something as found."""
    edited: dict[Path, list[str]] = field(default_factory=dict)
    """The files with other texts."""
    commands: dict[Path, str] = field(default_factory=dict)
    """The text of the command line, for programs that are started otherwise."""
    compiling: set[Path] = field(default_factory=set)
    """The programs whose start compiles or records something: as the program itself does, or by what a fix wrote."""
    slow: set[Path] = field(default_factory=set)
    """The programs among `compiling` that wait for a compiler: to record a graph takes a few steps."""
    probed: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    """The programs whose processes a probe changes, each with its `name` and `setting`."""
    _environments: dict[Path, dict[str, str]] = field(default_factory=dict)

    def make(self, texts: Mapping[str, str], name: str) -> Program:
        """A copy in which the given files have other texts. Raises InputError."""
        folder = self.folder / name
        files = {path: text for path, text in texts.items() if path != COMMAND_LINE}
        started = with_command_line(self.program, texts[COMMAND_LINE]) if COMMAND_LINE in texts else self.program
        copied = copy_program(started, folder)
        edited = patch.apply_edits(files, root=self.program.root, copy=copied.root)
        self.edited[copied.root] = sorted(map(str, edited))
        if COMMAND_LINE in texts:
            self.commands[copied.root] = texts[COMMAND_LINE]
        # What one process has compiled serves all later ones; the user's own cache is neither needed nor filled.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "compiled")}
        environment = copy_environment(self.program, folder, self.environment) | cache
        # A trial imports torch before the program runs, and with it what reads the environment on import.
        self._environments[copied.root] = with_script_environment(copied, environment)
        turned_on = started.words != self.program.words and self._speaks_of_compiling(started)
        if self.compiles or turned_on or any(self._has_more(_COMPILES, path, text) for path, text in files.items()):
            self.slow.add(copied.root)
        if copied.root in self.slow or any(self._has_more(_RECORDS, path, text) for path, text in files.items()):
            self.compiling.add(copied.root)
        return copied

    def make_probed(self, name: str, setting: Mapping[str, Scalar], step_ns: int, *, compiles: bool) -> Program:
        """A copy with the program's own texts, whose processes a probe changes; `step_ns` is the program's own step.
        Raises InputError."""
        words = "-".join(str(value) for value in setting.values())
        copied = self.make({}, f"probe-{name}-{words}" if words else f"probe-{name}")
        self.probed[copied.root] = {"name": name, "setting": dict(setting), "step_ns": step_ns}
        if compiles:
            self.slow.add(copied.root)
            self.compiling.add(copied.root)
        return copied

    def _speaks_of_compiling(self, started: Program) -> bool:
        """Whether a word that an edit of the command line brought does."""
        return any("compile" in word for word in set(started.words) - set(self.program.words))

    def _has_more(self, calls: re.Pattern[str], path: str, text: str) -> bool:
        """Whether a fix wrote such a call; one that was there may be switched off."""
        found = self.program.root / path
        before = read_source(found).text if found.exists() else ""
        return len(calls.findall(text)) > len(calls.findall(before))

    def environment_of(self, copied: Program) -> dict[str, str]:
        """The environment in which a copy runs."""
        return self._environments[copied.root]
