"""The test bench of one program: copies of it, the machine's resolution, and a verdict for each fix put on it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, GateCheck, GateResult, Scalar, Verdict
from diagnose.program import Program
from diagnose.trial.ab.aa_control import ASSUMED
from diagnose.trial.ab.arm_protocol import OnPair, Starter
from diagnose.trial.ab.knob_search import KnobSweep, OnSetting
from diagnose.trial.ab.knob_trials import KnobTrials
from diagnose.trial.ab.result import ORIGINAL, Comparison, Ending
from diagnose.trial.ab.sequential import worth
from diagnose.trial.baseline_failure import fails_as_found
from diagnose.trial.decision import explained, measured, ruled, settled_by_time, skipped
from diagnose.trial.planning.estimates import MOST_SAVED, Estimates, Plan
from diagnose.trial.planning.numerics_check import PartialStack
from diagnose.trial.process.process_group import never
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.skip_request import SkipRequest
from diagnose.trial.standalone import StandaloneRun, ruling_on_failure
from diagnose.trial.trial_runner import OnControl, OnPhase, TrialRunner, tools_for
from diagnose.trial.watched_program import WatchedProgram
from diagnose.verdict import LEAST_PAIRS, Ruling, saved


@dataclass(frozen=True)
class Trial:
    """A verdict, and what the patched arm left behind for the next look."""

    verdict: Verdict
    traces: Sequence[Path] = ()
    """Profiler windows of the patched program, a rank each."""

    @property
    def patched_ns(self) -> int | None:
        """The untraced step of the patched program, in ns; None where no saving was measured."""
        saving, saving_ns = self.verdict.saving, self.verdict.saving_ns
        if saving is None or saving_ns is None or saving.estimate <= 0:
            return None
        return round(saving_ns * (1 / saving.estimate - 1))


class Bench:
    """Use it as a context manager: leaving it ends every process that it started."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        schedule: Schedule,
        deadline: Deadline,
        watched: WatchedProgram | None = None,
        python: str = sys.executable,
        environment: Mapping[str, str] = os.environ,
        on_phase: OnPhase = lambda _phase, _detail: None,
        on_control: OnControl = lambda _control: None,
        cancelled: Callable[[], bool] = never,
        skip: SkipRequest | None = None,
        *,
        allows_training: bool = False,
    ) -> None:
        """`on_phase` is told of what takes a while and shows no pairs meanwhile, `on_control` of a control that a
        verdict has asked for. Once `cancelled` says so, whatever waits for a program raises Cancelled. `skip` ends the
        trial of one fix while it is measured; the fix is then not tried. `allows_training`: a fix may be kept that
        shows the same training and no more.
        """
        watched = watched or WatchedProgram()
        self._tools = tools_for(
            program, folder, schedule, deadline, watched, python, environment, on_phase, on_control, cancelled
        )
        self._tools.gatekeeper.allows_training = allows_training
        self._trials = TrialRunner.of(self._tools, watched)
        self._shown = self._trials.shown
        self._watched = watched
        self._skip = skip or SkipRequest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tools.groups.close()

    def go_on(self) -> None:
        """Raise Cancelled if the user has left."""
        self._tools.groups.go_on()

    def copy(self, texts: Mapping[str, str], name: str) -> Program:
        """A copy of the program in which the given files have other texts. Raises InputError."""
        return self._tools.copies.make(texts, name)

    def prepare(self, original: Program) -> None:
        """Take a program as the one as found. One that is mortal runs against itself first: where memory runs out in a
        trial, nobody could say why. Raises ProgramFailed where it does so here.
        """
        self._shown.original = self._shown.baseline = original
        if not self._watched.mortal:
            return
        found = self._trials.control(original, ASSUMED)
        if found.failed is not None:
            raise fails_as_found(*found.failed)
        self._tools.controls.saw(found)

    def choose(self, candidates: Sequence[Program], on_try: OnSetting, *, scale: bool = False) -> list[int]:
        """The settings that run: the cheapest that is near the best, then the others, the faster first.

        They come in the order of what they cost; `scale` says that they are a rising number.

        The first that runs is the yardstick for the others. Its process is kept from one to the next, resting.
        """
        tools, schedule = self._tools, self._tools.schedule
        short = schedule.sweep()
        # With fewer pairs than an interval needs, a run-off would be called for every time.
        most_pairs = schedule.pairs // 2 if short.pairs >= LEAST_PAIRS else short.pairs

        def starter(program: Program) -> Starter:
            return self._trials.starter(program, "sweep")

        trial, compiling = self._trials.settings, tools.copies.compiling
        settings = KnobTrials(candidates, starter, trial, schedule, compiling, tools.startups)
        with contextlib.closing(settings):
            return KnobSweep(len(candidates), scale, settings.compare, on_try, short.pairs, most_pairs).ranking()

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
    ) -> Trial:
        """Try one fix, `promised` to save a share; `numbers` is a program with the numbers of what it is made from.

        `on_sure` is told as soon as nothing but whole runs stands between the fix and its keep. `may_wait`: the last
        `gate` runs all kept fixes whole, so that those of this one may wait for it where time is short.

        With `halfway` the numbers are looked at in two parts: that program against `numbers`, then the training of the
        patched one against that program's, which takes its hundreds of steps faster than the original would.

        Where the original itself fails, which did run before, the fix has no trial and the others go on. Raises
        ProgramFailed where it does so in the first trial of all.
        """
        # Trajectories are long: those of the baseline, which is faster, are taken rather than the first original's.
        if numbers is None or (fixer.gate is Gate.TRAINING and halfway is None):
            numbers = original
        tools, shown = self._tools, self._shown
        wanted = tools.prelaunch.wanted(fixer, numbers, patched, halfway.part if halfway else None)
        self._skip.begin()
        trial = replace(self._trials.settings(on_pair), worth=worth(promised), skipped=lambda: self._skip.asked)
        found = self._trials.run(trial, original, patched, fixer.name, wanted, promised)
        if found.ending is Ending.SKIPPED:
            tools.gatekeeper.drop()
            return Trial(skipped(measured(fixer, found, self.resolution)))
        self._trials.look_closer(found)
        figures = tools.startups.beside(measured(fixer, found, self.resolution), original, patched)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            tools.gatekeeper.drop()
            if original is shown.original and not shown.runs:
                raise fails_as_found(*found.failed)
            why = ruling_on_failure(found.failed[1]).summary
            return Trial(replace(figures, summary=f"what it was tried against did not run: {why}"))
        verdict = tools.numerics.judged(figures, fixer, found, numbers, patched, halfway, on_sure, may_wait=may_wait)
        tools.gatekeeper.drop()
        if verdict.decision is Decision.KEPT:
            tools.costs.grew(found)
            shown.baseline, shown.keeps = patched, True
        return Trial(verdict, found.traces[1])

    def probe(self, original: Program, probed: Program, name: str, on_pair: OnPair | None = None) -> Comparison:
        """The program as found against a copy of `probed_copy`: how long their steps take, and nothing else."""
        trial = replace(self._trials.settings(on_pair), trace=False)
        found = self._trials.run(trial, original, probed, name)
        self._trials.look_closer(found)
        return found

    @property
    def owes_whole_runs(self) -> bool:
        """Whether those of a kept fix were put off, and have not been made since."""
        return self._tools.costs.owes_whole_runs

    @property
    def resolution(self) -> float:
        """The share of a step below which this machine can tell nothing; assumed until a control is taken."""
        return self._tools.controls.resolution

    def probed_copy(self, name: str, setting: Mapping[str, Scalar], *, compiles: bool = False) -> Program:
        """A copy of the program whose processes the probe of that name changes. Raises InputError."""
        return self._tools.copies.make_probed(name, setting, self._watched.step_ns, compiles=compiles)

    def leave_out(
        self,
        fixer: Fixer,
        without: Program,
        stack: Program,
        on_pair: OnPair | None = None,
        shown: GateResult | None = None,
    ) -> Trial:
        """Whether a kept fix saves time in its stack: the stack without it against the stack.

        A fix that had a trial of its own is judged by time alone. One that had not, whose numbers were `shown` to hold
        together with all others, has it here: what it claims to move must move too. The verdict is `kept` where it is
        needed. Programs that fail here, on either side, make it `failed`.
        """
        trial = replace(self._trials.settings(on_pair), trace=shown is not None, reassures=shown is None)
        found = self._trials.run(trial, without, stack, f"{fixer.name}-left-out")
        self._trials.look_closer(found)
        verdict = self._tools.startups.beside(measured(fixer, found, self.resolution), without, stack)
        answer = None if found.ending is Ending.REASSURED else settled_by_time(verdict, found)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            answer = Ruling(Decision.FAILED, f"without it the program does not run: {answer.summary if answer else ''}")
        elif answer is None and shown is not None:
            verdict = explained(verdict, fixer, found)
            return Trial(verdict if verdict.decision is Decision.UNEXPLAINED else ruled(verdict, found, shown))
        if answer is None:
            assert found.saving is not None  # or the times would have settled it
            answer = Ruling(Decision.KEPT, saved(found.saving, verdict.pairs))
        return Trial(replace(verdict, decision=answer.decision, summary=answer.summary))

    def gate(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
        loading: bool = False,
    ) -> GateResult:
        """Whether a patched program keeps a promise about its numbers, as `attempt` asks too.

        `asked` False: no fix promised it, and it is looked at only where that is cheap. `loading`: a fix
        changes how data is loaded.
        """
        keeper, deadline = self._tools.gatekeeper, self._tools.gatekeeper.deadline
        if not asked:
            keeper.deadline = self._before_last_runs()
        try:
            return self._tools.numerics.check(gate, original, patched, rounds_to, asked=asked, loading=loading)
        finally:
            keeper.deadline = deadline

    def _before_last_runs(self) -> Deadline:
        """Return when to end what comes before one last run of each program; now, where no process has the time to
        start."""
        tools = self._tools
        before = tools.deadline.earlier(tools.costs.last_runs_ns(1))
        late = before.left_ns is not None and before.left_ns < tools.costs.start_ns
        return replace(before, at_ns=before.clock()) if late else before

    def numbers(self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None) -> GateResult:
        """The part of `gate` that looks at numbers of the first steps."""
        return self._tools.numerics.numbers(gate, original, patched, rounds_to)

    def whole_runs(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]:
        """The part of `gate` that looks at whole runs."""
        return self._tools.numerics.whole_runs(gate, original, patched, rounds_to, loading=loading)

    def broken_by(self, original: Program, patched: Program) -> str | None:
        """Return how the patched program failed in a capture that the original came through; None: it did not."""
        return self._tools.gatekeeper.broken_by(original.root, patched.root)

    def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
        """Return how long a trial is expected to take, with the choice between settings and its gate; `at_best`: if
        what is only assumed of it turns out short, and what it promises holds."""
        tools, fixer, baseline = self._tools, plan.fixer, self._shown.baseline
        # What changes no bit is hardly in what was compiled; anything else may compile all of it anew.
        recompiles = baseline is not None and baseline.root in tools.copies.slow
        arms = None if baseline is None or tools.prelaunch.closed else self._trials.arms(baseline)
        compiles = fixer.brings_compiler or (fixer.gate is not Gate.BITWISE and recompiles)
        windows = 1 if baseline is not None and baseline.root in self._shown.windows else 2
        return Estimates(tools.costs, tools.gatekeeper).trial_ns(
            plan, baseline, compiles=compiles, beside=arms, windows=windows, at_best=at_best
        )

    def least_ns(self, plan: Plan) -> int:
        """Return how long a trial takes until its first pair."""
        return self._tools.costs.least_ns(min(plan.promised, MOST_SAVED), compiles=plan.fixer.brings_compiler)

    def check_ns(self) -> int:
        """Return how long a leave-one-out check is expected to take."""
        return self._tools.costs.check_ns()

    def final_ns(self, *, held: bool = False, runs: int | None = None, rerun: bool = False) -> int:
        """Return how long the last runs, all or so many, are expected to take, with the gate of the whole stack unless
        its numbers are `held` already; `rerun`: with whole runs of a stack that had none."""
        return self._tools.costs.final_ns(held=held, runs=runs, rerun=rerun)

    @property
    def final_steps(self) -> int:
        """The steps of a last run that are timed."""
        return self._tools.costs.final_steps

    def steps_alone(self, programs: Sequence[tuple[Program, str]], steps: int) -> list[int | None]:
        """The mean step of each program, in ns, with nothing inside but the clock of its steps; `str` is its name.

        None for one that ends or fails before.
        """
        self._tools.gatekeeper.drop()
        return self._tools.standalone.steps(programs, steps, together=bool(self._shown.fits))

    def run_alone(self, program: Program, name: str, least_steps: int = 0) -> StandaloneRun:
        """Whether a program runs for a block of steps after its warm-up, or to its own end if that comes before; for
        `least_steps` in all, where there is time for them."""
        return self._tools.standalone.run(program, name, least_steps)
