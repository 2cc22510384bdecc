"""The gates that a fix of class bitwise or rounding passes beside the numerics gate.

- *whole run*: original and patched program run from start to end, and print the same figures, leave the same files,
  pass the same losses, end the same way. A program that takes longer than `FULL_NS` is shortened: loaders yield some
  first batches and their last one, loops over a `range` take some turns, so that epochs begin and end, evaluation,
  saving and loading happen, and the program comes to its normal end.
- *exception* and *interrupt*: the same where an exception, or Ctrl-C, ends the program in mid-run.
- *data order*: for fixes that change loading, some hundred batches of the training loader, over the end of a pass,
  several times.

A run that could not be made, or that did not reach the program's end, leaves that part *unverified*. Runs of the
original serve all fixes of a session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnose.model import Gate, GateAnswer, GateCheck
from diagnose.program import Program
from diagnose.trial.process.capacity import died_of_memory
from diagnose.trial.whole_run.comparison import Original, RunComparison, compare
from diagnose.trial.whole_run.observation import Observation
from diagnose.trial.whole_run.runs import NoTimeToRun, RunRequest, Runs, sources
from diagnose.trial.whole_run.told_options import Told
from diagnose.units import NS_PER_S

FULL_NS = 20 * NS_PER_S
"""A program whose training ends within this runs as it is; a longer one is shortened."""
FULL_PART = 8
"""The divisor of what is left of a budget: whole runs in full length take no more than one part in so many."""
WHOLE_RUN_LIMIT_NS = 300 * NS_PER_S
"""The time limit of one run, with its start and all that it does beside training."""
SHORT_NS = 8 * NS_PER_S
"""The time for the training steps of a shortened run."""
LEAST_BATCHES, MOST_BATCHES = 12, 200
TURNS = 3
"""The turns that are run of a loop whose turns have several steps each: two first epochs and the last one."""
LOADER_BATCHES, LOADER_PASSES, LOADER_TIMES = 150, 2, 2
"""Batches of a pass, passes in one process, and processes of the patched program."""
WHOLE = "whole run"
DATA_ORDER = "data order"
NO_TIME = "the budget left no time"
_DISTURBED_RUNS = (2, 4)
"""They show how figures vary, and each costs a run. A count that flips now and then stands still in two of them and
differs in the patched run with a probability of up to 15 %, in four with one of up to 8 %: flips at a rate r do so with
exp(-n r) (1 - exp(-r)). So what differs after the first is looked at again beside the others."""
_ROUNDS = {"tf32": 2.0**-11, "bfloat16": 2.0**-8, "bf16": 2.0**-8, "float16": 2.0**-11, "fp16": 2.0**-11}
_FLOAT32_ROUNDS = 2.0**-21
"""A few units in the last place: what another order of sums does."""
_NOT_TOLD_APART = "the budget left no time to see whether the original varies as much by itself"
_LEFT_AT = 0.6
"""The part of the optimizer's calls after which a run is left by an exception or an interrupt."""
_HANDLES = re.compile(r"\b(?:except|finally|atexit|signal|__exit__|contextmanager)\b")

_Asked = tuple[Path, Path, str, bool]


@dataclass
class WholeRunGate:
    """Judges patched programs of one session."""

    runs: Runs
    _found: Program | None = None
    """The program as found."""
    _shape: dict[str, Any] = field(default_factory=dict)
    """How runs are shortened; empty where they are not."""
    _seen: dict[tuple[Path, str], Observation] = field(default_factory=dict)
    _loaders: dict[Path, list[list[str]] | None] = field(default_factory=dict)
    _answers: dict[_Asked, tuple[GateCheck, ...]] = field(default_factory=dict)
    _cut_short: dict[_Asked, tuple[GateCheck, ...]] = field(default_factory=dict)
    """The answers before the time was up, where that was not all."""

    def check(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]:
        """The answers of all gates; the first `original` of a session is the program as found.

        `loading`: the fix changes how data is loaded. A fix that changes the training has no such gate.
        """
        if gate is Gate.TRAINING:
            return ()
        key = (original.root, patched.root, gate.value, loading)
        if key not in self._answers:
            checks = tuple(self._until_time_is_up(gate, original, patched, rounds_to, loading=loading))
            if self.runs.deadline.passed and not _refused(checks):
                self._forget_unfinished()
                self._cut_short[key] = checks
                return checks
            self._answers[key] = checks
            if _refused(checks):
                self._forget(patched)
        return self._answers[key]

    def knows(self, gate: Gate, original: Program, patched: Program, *, loading: bool) -> bool:
        """Whether the answers of `check` are there already."""
        return (original.root, patched.root, gate.value, loading) in self._answers

    def known_in_part(
        self, gate: Gate, original: Program, patched: Program, *, loading: bool
    ) -> tuple[GateCheck, ...] | None:
        """Return what `check` found before its time was up; None where it was not asked."""
        return self._cut_short.get((original.root, patched.root, gate.value, loading))

    def _until_time_is_up(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None, *, loading: bool
    ) -> Iterator[GateCheck]:
        try:
            yield from self._check(gate, original, patched, rounds_to, loading=loading)
        except NoTimeToRun:
            yield GateCheck(WHOLE, GateAnswer.UNVERIFIED, NO_TIME)

    def _check(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None, *, loading: bool
    ) -> Iterator[GateCheck]:
        self._look_at_original(original, patched)
        ways = self._ways_out([original, patched])
        self._take([(name, program, recipe) for name, recipe in ways.items() for program in (original, patched)])
        disturb = max(_ROUNDS.get(rounds_to or "", 0.0), _FLOAT32_ROUNDS) if gate is Gate.ROUNDING else None
        told = self.runs.told(original) | self.runs.told(patched)
        for name, recipe in ways.items():
            before, after = self._seen[original.root, name], self._seen[patched.root, name]
            problem = self._problem(name, before, after)
            if problem is not None:
                yield GateCheck(name, GateAnswer.UNVERIFIED, problem)
                continue
            yield self._compared(name, recipe, before, after, disturb, told)
        if loading:
            yield self._data_order(original, patched)

    def _look_at_original(self, original: Program, patched: Program) -> None:
        """Run the program as found as it is; where that takes too long, learn how to shorten it, and run it so."""
        if self._found is not None:
            return
        self._found = original
        left_ns = self.runs.deadline.left_ns
        limit = {"seconds": min(FULL_NS, FULL_NS if left_ns is None else left_ns // FULL_PART) / NS_PER_S}
        seen, beside = self.runs.observe([RunRequest(original, limit), RunRequest(patched, limit)])
        if seen.cut or seen.returncode is None:
            steps = SHORT_NS // (TURNS * max(seen.step_ns, 1))
            self._shape = {"batches": min(MOST_BATCHES, max(LEAST_BATCHES, steps)), "turns": TURNS}
            (seen,) = self.runs.observe([RunRequest(original, {**self._shape, **limit})])
        elif not beside.cut:
            self._seen[patched.root, WHOLE] = beside
        if seen.cut:  # the others are left at the same step
            self._shape["leave"] = {"how": "interrupt", "call": seen.calls, "ends": True}
        self._seen[original.root, WHOLE] = seen

    def _ways_out(self, programs: Sequence[Program]) -> dict[str, Mapping[str, Any]]:
        """The recipes of the runs that are needed. Programs that handle nothing leave the same on every way out."""
        assert self._found is not None
        ways: dict[str, Mapping[str, Any]] = {WHOLE: {}}
        calls = self._seen[self._found.root, WHOLE].calls
        if calls > 1:
            handles = any(_HANDLES.search(text) for program in programs for text in sources(program).values())
            for how in ("exception", "interrupt") if handles else ("exception",):
                leave = {"how": how, "call": max(2, round(_LEFT_AT * calls)), "ends": self._is_cut}
                ways[how] = {"leave": leave}
        return ways

    def _forget(self, program: Program) -> None:
        """Remove the runs of a program that nothing is compared with any more."""
        for key in [key for key in self._seen if key[0] == program.root]:
            self.runs.forget(self._seen.pop(key).folder)

    def _forget_unfinished(self) -> None:
        """Let what had no time to end run again, should there be time later."""
        for key in [key for key, seen in self._seen.items() if seen.returncode is None]:
            self.runs.forget(self._seen.pop(key).folder)
        if self._found is not None and (self._found.root, WHOLE) not in self._seen:
            self._found, self._shape = None, {}

    def _take(self, needed: Sequence[tuple[str, Program, Mapping[str, Any]]]) -> None:
        missing = {(program.root, name): (program, recipe) for name, program, recipe in needed}
        missing = {key: value for key, value in missing.items() if key not in self._seen}
        wanted = [RunRequest(program, {**self._shape, **recipe}) for program, recipe in missing.values()]
        for key, seen in zip(missing, self.runs.observe(wanted), strict=True):
            self._seen[key] = seen

    def _problem(self, name: str, before: Observation, after: Observation) -> str | None:
        """Why two runs cannot be compared; None where they can."""
        if before.returncode is None:
            return "the original did not come to an end in time"
        if name != WHOLE and not before.left:
            return "the original did not come to the step where it was to be left"
        for one in (before, after):
            if died_of_memory(one.last_words, one.returncode):
                return "there was too little memory for a whole run"
        if after.returncode is None and self.runs.deadline.passed:
            return NO_TIME
        return None

    def _compared(
        self,
        name: str,
        recipe: Mapping[str, Any],
        before: Observation,
        after: Observation,
        disturb: float | None,
        told: Told,
    ) -> GateCheck:
        """Runs that differ are compared again beside other runs of the program as found: what differs between those is
        no fault of the patch."""
        assert self._found is not None
        base = self._seen[self._found.root, WHOLE]
        losses = name == WHOLE
        compared = compare(Original(before, base, (), disturb), after, losses=losses, told=told)
        for runs in (1,) if disturb is None else _DISTURBED_RUNS:
            if not compared.differs:
                break
            try:
                again = self._again(disturb, runs)
            except NoTimeToRun:  # then what differs counts as the patch's
                compared = replace(compared, differs=[*compared.differs[:1], _NOT_TOLD_APART])
                break
            compared = compare(Original(before, base, again, disturb), after, losses=losses, told=told)
        if name == WHOLE:
            count = len(before.files)
            files = f"{count} file{'' if count == 1 else 's'}"
            seen = f"{after.steps} steps {self._how}: the same output, losses, {files} and exit"
            if before.returncode != 0 and not self._is_cut:
                seen += f" ({before.returncode}: {before.last_words}; what a run without that error does is unknown)"
            return _answer(name, compared, seen, reached=before.returncode == 0 and not self._is_cut)
        return _answer(name, compared, f"left at optimizer step {recipe['leave']['call']}: the same is left behind")

    @property
    def _is_cut(self) -> bool:
        """Whether runs are left before the program's end, as that comes too late."""
        return "leave" in self._shape

    @property
    def _how(self) -> str:
        if self._is_cut:
            return "until an interrupt, as the program is too long to be run to its end"
        if not self._shape:
            return "from start to end"
        return f"from start to end, with at most {self._shape['batches']} batches a pass and {TURNS} epochs"

    def _again(self, disturb: float | None, runs: int) -> list[Observation]:
        """Return so many other runs of the program as found."""
        assert self._found is not None
        if disturb is None:
            recipes: dict[str, dict[str, Any]] = {"again": {}}
        else:
            title = f"disturbed by {disturb:.2g}"
            recipes = {f"{title}, {at}": {"disturb": disturb, "disturb_seed": at} for at in range(runs)}
        self._take([(name, self._found, recipe) for name, recipe in recipes.items()])
        return [self._seen[self._found.root, name] for name in recipes]

    def _data_order(self, original: Program, patched: Program) -> GateCheck:
        try:
            return self._batches_compared(original, patched)
        except NoTimeToRun:
            return GateCheck(DATA_ORDER, GateAnswer.UNVERIFIED, NO_TIME)

    def _batches_compared(self, original: Program, patched: Program) -> GateCheck:
        if original.root not in self._loaders:
            self._loaders[original.root] = self.runs.batches(original, LOADER_BATCHES, LOADER_PASSES)
        before = self._loaders[original.root]
        if before is None:
            return GateCheck(DATA_ORDER, GateAnswer.UNVERIFIED, "no DataLoader fed the first training step")
        for _ in range(LOADER_TIMES):
            after = self.runs.batches(patched, LOADER_BATCHES, LOADER_PASSES)
            if before == after:
                continue
            if before != self.runs.batches(original, LOADER_BATCHES, LOADER_PASSES):
                return GateCheck(DATA_ORDER, GateAnswer.UNVERIFIED, "the original's own batches change from run to run")
            return GateCheck(DATA_ORDER, GateAnswer.REFUSED, _first_other(before, after))
        seen = f"{sum(map(len, before))} batches of {LOADER_PASSES} passes are equal, {LOADER_TIMES} times"
        return GateCheck(DATA_ORDER, GateAnswer.PASSED, seen)


def _refused(checks: Sequence[GateCheck]) -> bool:
    return any(check.answer is GateAnswer.REFUSED for check in checks)


def _first_other(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]] | None) -> str:
    """Return where the batches of two loaders differ first, in words."""
    for number, (one, other) in enumerate(zip(before, after or (), strict=False), 1):
        if one != other:
            place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            if place is None:
                return f"pass {number} has {len(other)} batches instead of {len(one)}"
            return f"batch {place + 1} of pass {number} holds other samples"
    return "the patched program gave no batches"


def _answer(name: str, compared: RunComparison, seen: str, *, reached: bool = True) -> GateCheck:
    if compared.differs:
        more = len(compared.differs) - 2
        shown = "; ".join(compared.differs[:2]) + (f"; and {more} more" if more > 0 else "")
        return GateCheck(name, GateAnswer.REFUSED, f"the patched program {shown}")
    if compared.unknown:
        seen += f"; not compared: {'; '.join(compared.unknown)}"
    return GateCheck(name, GateAnswer.PASSED if reached else GateAnswer.UNVERIFIED, seen)
