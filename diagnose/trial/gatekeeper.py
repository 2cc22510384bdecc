"""Runs a gate: starts the captures that it needs, each once, side by side where that fits, and compares them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnose.collect import environment
from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial import gates
from diagnose.trial.arms import Workplace
from diagnose.trial.captures import Capture, read_capture
from diagnose.trial.groups import Group
from diagnose.trial.memory import Memory, at_once
from diagnose.trial.schedule import Deadline

BITWISE_STEPS = 5
ROUNDING_STEPS = 2
_DETERMINISTIC = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Captures that share the cores must not spin on them while they wait for their own threads.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
# The float64 reference is made operator by operator; what is compiled would be out of its reach.
_EAGER = {"TORCHDYNAMO_DISABLE": "1"}


@dataclass(frozen=True)
class _Wanted:
    """A capture of a program under a recipe; `name` tells the recipes apart."""

    program: Program
    name: str
    recipe: Mapping[str, Any]

    @property
    def key(self) -> tuple[Path, str]:
        return (self.program.root, self.name)


@dataclass
class Gatekeeper:
    """Judges patched programs; what it captured of a program is kept, by the program's root."""

    workplace: Workplace
    limit_ns: int
    """For one capture, from its start to its end."""
    deadline: Deadline = field(default_factory=Deadline)
    memory: Memory = field(default_factory=Memory)
    """Of one process of the program."""
    _taken: dict[tuple[Path, str], Capture | str] = field(default_factory=dict)
    _started: int = 0

    def check(self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None) -> GateResult:
        """Whether the patched program keeps the promise `gate`."""
        if gate is Gate.TRAINING:
            return GateResult(gate, None, "changes the training itself: no comparison of steps can judge it")
        try:
            if gate is Gate.BITWISE:
                answer = self._bitwise(original, patched)
                if answer is not None:
                    return answer
            return self._rounding(original, patched, rounds_to, fell_back=gate is Gate.BITWISE)
        except _NoCaptureError as error:
            return GateResult(gate, None, str(error))

    def _bitwise(self, original: Program, patched: Program) -> GateResult | None:
        """None where the original does not even equal itself."""
        recipe = {"steps": BITWISE_STEPS, "values": False}
        first = _Wanted(original, "bits", recipe)
        before, after = self._captures(first, _Wanted(patched, "bits", recipe))
        answer = gates.bitwise(before, after)
        # Programs that agree need no proof that the original agrees with itself.
        if answer.passed is False and not gates.repeats(*self._captures(first, replace(first, name="bits-again"))):
            return None
        return answer

    def _rounding(self, original: Program, patched: Program, rounds_to: str | None, *, fell_back: bool) -> GateResult:
        recipe = {"steps": ROUNDING_STEPS, "values": True}
        exact = {**recipe, "precision": "float64"}
        wanted = [
            _Wanted(original, "values", recipe),
            _Wanted(patched, "values", recipe),
            _Wanted(original, "float64", exact),
        ]
        if rounds_to is not None:
            wanted.append(_Wanted(original, f"float64-{rounds_to}", {**exact, "rounds_to": rounds_to}))
        before, after, reference, *rounded = self._captures(*wanted)
        answer = gates.rounding(before, after, reference, *rounded)
        if not fell_back:
            return answer
        detail = f"the original is not deterministic, so rounding was judged: {answer.detail}"
        return GateResult(Gate.ROUNDING, answer.passed, detail)

    def _captures(self, *wanted: _Wanted) -> list[Capture]:
        """What is wanted, in that order. Raises _NoCaptureError for the first that cannot be had."""
        missing = [one for one in wanted if one.key not in self._taken]
        while missing:
            some = missing[: at_once(self.memory, len(missing))]
            del missing[: len(some)]
            self._take(some)
        taken = [self._taken[one.key] for one in wanted]
        for capture in taken:
            if isinstance(capture, str):
                raise _NoCaptureError(capture)
        return [capture for capture in taken if isinstance(capture, Capture)]

    def _take(self, some: Sequence[_Wanted]) -> None:
        """Run captures side by side."""
        with contextlib.ExitStack() as stack:
            running = [(one, *self._start(one, stack)) for one in some]
            for one, folder, group in running:
                self._taken[one.key] = self._finish(one, folder, group)

    def _start(self, wanted: _Wanted, stack: contextlib.ExitStack) -> tuple[Path, Group]:
        place, program = self.workplace, wanted.program
        self._started += 1
        folder = place.folder / f"capture-{self._started}-{re.sub(r'[^a-z0-9-]', '-', wanted.name)}"
        whole = {**place.recipe, **wanted.recipe, "mode": "capture", "folder": str(folder), "seed": 0}
        variables = environment(whole, _PATIENT | place.environment_of(program) | _DETERMINISTIC)
        if "precision" in wanted.recipe:
            variables |= _EAGER
        group = place.groups.start(program.command(place.python), program.cwd, variables, folder / "program")
        stack.callback(group.end)
        return folder, group

    def _finish(self, wanted: _Wanted, folder: Path, group: Group) -> Capture | str:
        """The capture, or why there is none."""
        returncode = group.wait(self.deadline.limit_ns(self.limit_ns))
        words = group.last_words(4)
        group.end()
        capture = read_capture(folder)
        if returncode is None:
            return f"the program did not finish its first steps in time ({wanted.name})"
        if capture is None or returncode != 0:
            return f"the program gave no numbers ({wanted.name}): {words or f'exit code {returncode}'}"
        return capture


class _NoCaptureError(Exception):
    """A capture that a gate needs could not be taken."""
