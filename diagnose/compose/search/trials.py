"""The interface that composing needs of a test bench; `diagnose.trial.bench.Bench` implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from diagnose.fixer import Fixer
from diagnose.model import Gate, GateCheck, GateResult, Verdict
from diagnose.program import Program
from diagnose.trial.ab.arm_protocol import OnPair
from diagnose.trial.ab.knob_search import OnSetting
from diagnose.trial.bench import Trial
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.numerics_check import PartialStack
from diagnose.trial.standalone import StandaloneRun


class Trials(Protocol):
    """Runs copies of the program against each other."""

    def go_on(self) -> None:
        """Raise Cancelled if the user has left: asked where a while passes without anything being run."""
        ...

    def copy(self, texts: Mapping[str, str], name: str) -> Program: ...
    def prepare(self, original: Program) -> None:
        """Start the program as found, which any first trial needs, while it is still being decided what that is."""
        ...

    def choose(self, candidates: Sequence[Program], on_try: OnSetting, *, scale: bool = False) -> list[int]: ...
    def attempt(
        self,
        fixer: Fixer,
        original: Program,
        patched: Program,
        on_pair: OnPair | None = None,
        numbers: Program | None = None,
        halfway: PartialStack | None = None,
        promised: float = 0.0,
        on_sure: Callable[[Verdict], None] = lambda _verdict: None,
        *,
        may_wait: bool = False,
    ) -> Trial: ...
    def leave_out(
        self,
        fixer: Fixer,
        without: Program,
        stack: Program,
        on_pair: OnPair | None = None,
        shown: GateResult | None = None,
    ) -> Trial: ...
    def gate(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
        loading: bool = False,
    ) -> GateResult: ...
    @property
    def owes_whole_runs(self) -> bool:
        """Whether those of a kept fix were put off, and have not been made since."""
        ...

    def whole_runs(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]: ...
    def steps_alone(self, programs: Sequence[tuple[Program, str]], steps: int) -> list[int | None]: ...

    def alone(self, program: Program, name: str, least_steps: int = 0) -> StandaloneRun: ...

    def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
        """How long a trial is expected to take, with the choice between settings and its gate; `at_best`: if what is
        only assumed of it turns out short, and what it promises holds."""
        ...

    def least_ns(self, plan: Plan) -> int:
        """How long a trial takes until its first pair."""
        ...

    def check_ns(self) -> int:
        """How long a leave-one-out check is expected to take."""
        ...

    def final_ns(self, *, held: bool = False, runs: int | None = None, rerun: bool = False) -> int:
        """How long the last runs, all or so many, are expected to take, with the gate of the whole stack unless its
        numbers are `held` already; `rerun`: with whole runs of a stack that had none.
        """
        ...
