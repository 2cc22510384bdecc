"""Runs a gate: starts the captures that it needs, each once, and compares them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.collect import environment
from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial import gates
from diagnose.trial.arms import Workplace
from diagnose.trial.captures import Capture, read_capture
from diagnose.trial.schedule import Deadline

BITWISE_STEPS = 5
ROUNDING_STEPS = 2
_DETERMINISTIC = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass
class Gatekeeper:
    """Judges patched programs; what it captured of a program is kept, by the program's root."""

    workplace: Workplace
    limit_ns: int
    """For one capture, from its start to its end."""
    deadline: Deadline = field(default_factory=Deadline)
    _taken: dict[tuple[Path, str], Capture | str] = field(default_factory=dict)

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
        recipe = {"steps": BITWISE_STEPS, "values": False}
        first = self._capture(original, "bits", recipe)
        again = self._capture(original, "bits-again", recipe)
        return gates.bitwise(first, again, self._capture(patched, "bits", recipe))

    def _rounding(self, original: Program, patched: Program, rounds_to: str | None, *, fell_back: bool) -> GateResult:
        recipe = {"steps": ROUNDING_STEPS, "values": True}
        exact = {**recipe, "precision": "float64"}
        before = self._capture(original, "values", recipe)
        reference = self._capture(original, "float64", exact)
        after = self._capture(patched, "values", recipe)
        rounded = None
        if rounds_to is not None:
            rounded = self._capture(original, f"float64-{rounds_to}", {**exact, "rounds_to": rounds_to})
        answer = gates.rounding(before, after, reference, rounded)
        if not fell_back:
            return answer
        detail = f"the original is not deterministic, so rounding was judged: {answer.detail}"
        return GateResult(Gate.ROUNDING, answer.passed, detail)

    def _capture(self, program: Program, name: str, recipe: Mapping[str, Any]) -> Capture:
        key = (program.root, name)
        if key not in self._taken:
            self._taken[key] = self._run(program, name, recipe)
        taken = self._taken[key]
        if isinstance(taken, str):
            raise _NoCaptureError(taken)
        return taken

    def _run(self, program: Program, name: str, recipe: Mapping[str, Any]) -> Capture | str:
        """The capture, or why there is none."""
        place = self.workplace
        folder = place.folder / f"capture-{len(self._taken)}-{re.sub(r'[^a-z0-9-]', '-', name)}"
        whole = {**place.recipe, **recipe, "mode": "capture", "folder": str(folder), "seed": 0}
        variables = environment(whole, place.environment_of(program) | _DETERMINISTIC)
        group = place.groups.start(program.command(place.python), program.cwd, variables, folder / "program")
        try:
            returncode = group.wait(self.deadline.limit_ns(self.limit_ns))
            words = group.last_words(4)
        finally:
            group.end()
        capture = read_capture(folder)
        if returncode is None:
            return f"the program did not finish its first steps in time ({name})"
        if capture is None or returncode != 0:
            return f"the program gave no numbers ({name}): {words or f'exit code {returncode}'}"
        return capture


class _NoCaptureError(Exception):
    """A capture that a gate needs could not be taken."""
