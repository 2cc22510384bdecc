"""The gates that a fix of class bitwise or rounding passes beside the numerics gate.

- *whole run*: original and patched program run from start to end, and print the same figures, leave the same files,
  pass the same losses, end the same way. A program that takes longer than `FULL_NS` is shortened: loaders yield some
  first batches and their last one, loops over a `range` take some turns, so that epochs begin and end, evaluation,
  saving and loading happen, and the program comes to its normal end.
- *exception* and *interrupt*: the same where an exception, or Ctrl-C, ends the program in mid-run.
- *data order*: for fixes that change loading, some hundred batches of the training loader, over the end of a pass,
  several times.

The original's runs serve all fixes of a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.model import Check, Gate
from diagnose.program import Program
from diagnose.trial.whole_run.comparison import Compared, Original, compare
from diagnose.trial.whole_run.observation import Observation
from diagnose.trial.whole_run.runs import Runs, Wanted
from diagnose.units import NS_PER_S

FULL_NS = 20 * NS_PER_S
"""A program whose training ends within this runs as it is; a longer one is shortened."""
SHORT_NS = 8 * NS_PER_S
"""For the training steps of a shortened run."""
LEAST_BATCHES, MOST_BATCHES = 12, 200
TURNS = 3
"""Of a loop whose turns have several steps each: two first epochs and the last one."""
LOADER_BATCHES, LOADER_PASSES, LOADER_TIMES = 150, 2, 2
"""Batches of a pass, passes in one process, and processes of the patched program."""
_DISTURBED_RUNS = 2
_ROUNDS = {"tf32": 2.0**-11, "bfloat16": 2.0**-8, "bf16": 2.0**-8, "float16": 2.0**-11, "fp16": 2.0**-11}
_FLOAT32_ROUNDS = 2.0**-21
"""A few units in the last place: what another order of sums does."""
_LEFT_AT = 0.6
"""The part of the optimizer's calls after which a run is left by an exception or an interrupt."""


@dataclass
class WholeRunGate:
    """Judges patched programs of one session."""

    runs: Runs
    _found: Program | None = None
    """The program as found."""
    _shape: Mapping[str, Any] | None = None
    """How runs are shortened."""
    _seen: dict[tuple[Path, str], Observation] = field(default_factory=dict)
    _loaders: dict[Path, list[list[str]] | None] = field(default_factory=dict)

    def check(
        self,
        gate: Gate,
        found: Program,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        loading: bool = False,
    ) -> list[Check]:
        """The answers of all gates. `found` is the program as found, `original` what the patched one was made from;
        `loading`: the fix changes how data is loaded."""
        if gate is Gate.TRAINING:
            return []
        self._found = self._found or found
        self._settle_shape()
        rounding = gate is Gate.ROUNDING
        again = [self._again(number, rounds_to if rounding else None, rounding) for number in range(1 + rounding)]
        needed = [("whole", found), *((name, found) for name, _ in again), ("whole", original), ("whole", patched)]
        ways = self._ways_out()
        needed += [(name, program) for name in ways for program in (original, patched)]
        recipes = {"whole": {}, **dict(again), **ways}
        self._take([(name, program, recipes[name]) for name, program in needed])
        original_runs = [self._seen[found.root, name] for name, _ in again]
        base = self._seen[found.root, "whole"]
        answers = [self._whole(Original(self._seen[original.root, "whole"], base, original_runs, rounding), patched)]
        for name in ways:
            answers.append(self._way_out(name, original, patched, base, original_runs, rounding))
        if loading:
            answers.append(self._data_order(original, patched))
        return answers

    def _settle_shape(self) -> None:
        """Run the program as found as it is; where that takes too long, learn how to shorten it, and run it so."""
        if self._shape is not None or self._found is None:
            return
        shape: dict[str, Any] = {}
        (seen,) = self.runs.observe([Wanted(self._found, {"seconds": FULL_NS / NS_PER_S})])
        if seen.cut or seen.returncode is None:
            steps = SHORT_NS // (TURNS * max(seen.step_ns, 1))
            shape = {"batches": min(MOST_BATCHES, max(LEAST_BATCHES, steps)), "turns": TURNS}
            (seen,) = self.runs.observe([Wanted(self._found, {**shape, "seconds": FULL_NS / NS_PER_S})])
        if seen.cut:  # the others are left at the same step
            shape["leave"] = {"how": "interrupt", "call": seen.calls}
        self._shape, self._seen[self._found.root, "whole"] = shape, seen

    def _again(self, number: int, rounds_to: str | None, rounding: bool) -> tuple[str, dict[str, Any]]:
        """The name and the recipe of another run of the program as found."""
        if not rounding:
            return "again", {}
        disturb = max(_ROUNDS.get(rounds_to or "", 0.0), _FLOAT32_ROUNDS)
        return f"disturbed-{disturb:.2g}-{number}", {"disturb": disturb, "disturb_seed": number}

    def _ways_out(self) -> dict[str, dict[str, Any]]:
        """The recipes of runs that are left in the middle; none for a program without optimizer steps to leave at."""
        assert self._found is not None
        calls = self._seen[self._found.root, "whole"].calls
        if calls < 2:
            return {}
        call = max(2, round(_LEFT_AT * calls))
        return {how: {"leave": {"how": how, "call": call}} for how in ("exception", "interrupt")}

    def _take(self, needed: Sequence[tuple[str, Program, Mapping[str, Any]]]) -> None:
        missing = {(program.root, name): (program, recipe) for name, program, recipe in needed}
        missing = {key: value for key, value in missing.items() if key not in self._seen}
        wanted = [Wanted(program, {**(self._shape or {}), **recipe}) for program, recipe in missing.values()]
        for key, seen in zip(missing, self.runs.observe(wanted), strict=True):
            self._seen[key] = seen

    def _whole(self, original: Original, patched: Program) -> Check:
        run = self._seen[patched.root, "whole"]
        how = "as it is" if not self._shape else f"with {self._shape['batches']} batches a pass and {TURNS} epochs"
        if original.run.returncode is None:
            return Check("whole run", None, f"the original does not come to an end in time, run {how}")
        compared = compare(original, run)
        seen = f"{run.steps} steps, run {how}: same output, {len(original.run.files)} files, losses and exit"
        if original.run.cut:
            seen = f"{run.steps} steps until an interrupt: the end of the program was not reached"
            return _answer("whole run", compared, seen, reached=False)
        return _answer("whole run", compared, seen)

    def _way_out(
        self,
        name: str,
        original: Program,
        patched: Program,
        base: Observation,
        again: Sequence[Observation],
        rounding: bool,
    ) -> Check:
        before, after = self._seen[original.root, name], self._seen[patched.root, name]
        if not before.left:
            return Check(name, None, "the program did not get that far")
        compared = compare(Original(before, base, again, rounding), after, losses=False)
        return _answer(
            name, compared, f"left at optimizer step {self._ways_out()[name]['leave']['call']}: the same is left"
        )

    def _data_order(self, original: Program, patched: Program) -> Check:
        for program in (original,):
            if program.root not in self._loaders:
                self._loaders[program.root] = self.runs.batches(program, LOADER_BATCHES, LOADER_PASSES)
        before = self._loaders[original.root]
        if before is None:
            return Check("data order", None, "no DataLoader fed the first training step")
        if before != self.runs.batches(original, LOADER_BATCHES, LOADER_PASSES):
            return Check("data order", None, "the original's own batches differ from run to run")
        for _ in range(LOADER_TIMES):
            after = self.runs.batches(patched, LOADER_BATCHES, LOADER_PASSES)
            if after is None:
                return Check("data order", False, "the patched program gave no batches")
            for number, (one, other) in enumerate(zip(before, after, strict=False)):
                if one != other:
                    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
                    return Check("data order", False, f"batch {place + 1} of pass {number + 1} holds other samples")
        count = sum(map(len, before))
        return Check("data order", True, f"{count} batches of {LOADER_PASSES} passes are equal, {LOADER_TIMES} times")


def _answer(name: str, compared: Compared, seen: str, *, reached: bool = True) -> Check:
    if compared.differs:
        more = len(compared.differs) - 2
        shown = "; ".join(compared.differs[:2]) + (f"; and {more} more" if more > 0 else "")
        return Check(name, False, f"the patched program {shown}")
    if compared.unknown:
        seen += f"; not compared: {'; '.join(compared.unknown)}"
    return Check(name, True if reached else None, seen)
