"""The test bench of one program: copies of it, the machine's resolution, and a verdict for each fix put on it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, GateCheck, GateResult, Scalar, Verdict
from diagnose.program import Program
from diagnose.trial.ab.aa_control import ASSUMED, MOST_OF_BUDGET, AAControl, AAControls
from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.arm_protocol import ArmProtocol, OnPair, Starter
from diagnose.trial.ab.knob_search import KnobSweep, OnSetting
from diagnose.trial.ab.knob_trials import KnobTrials
from diagnose.trial.ab.result import ORIGINAL, Comparison, Ending
from diagnose.trial.ab.sequential import worth
from diagnose.trial.ab.startup_cost import StartupCosts
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.baseline_failure import fails_as_found
from diagnose.trial.decision import measured, ruled, settled_by_time, skipped
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.planning.early_arms import Ahead, Turn
from diagnose.trial.planning.estimates import Estimates, Plan
from diagnose.trial.planning.numerics_check import NumericsChecks, PartialStack
from diagnose.trial.planning.prelaunch import Prelaunch, UpcomingWork
from diagnose.trial.process.arm import Arm, Workplace
from diagnose.trial.process.capacity import Memory, at_once, fills_host, fits_twice, room_ahead, uncrowded
from diagnose.trial.process.process_group import Groups, never, undisturbed
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.process.write_guard import protection
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.skip_request import SkipRequest
from diagnose.trial.standalone import Standalone, StandaloneRun, ruling_on_failure
from diagnose.trial.whole_run.gate import WHOLE_RUN_LIMIT_NS, WholeRunGate
from diagnose.trial.whole_run.runs import Runs
from diagnose.verdict import LEAST_PAIRS, LEAST_SAVING, Ruling, saved

OnPhase = Callable[[str, str], None]
"""Told what is being done now, and a detail of it."""
OnControl = Callable[[AAControl], None]
"""Told of a control that was taken."""

_LONGER = 1.5
"""Times what the last runs are expected to take, that whole runs leave them."""


@dataclass(frozen=True)
class Trial:
    """A verdict, and what the patched arm left behind for the next look."""

    verdict: Verdict
    traces: Sequence[Path] = ()
    """Profiler windows of the patched program, a rank each."""


class Bench:
    """Use it as a context manager: leaving it ends every process that it started."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        schedule: Schedule,
        deadline: Deadline,
        python: str = sys.executable,
        environment: Mapping[str, str] = os.environ,
        memory: Memory | None = None,
        on_phase: OnPhase = lambda _phase, _detail: None,
        on_control: OnControl = lambda _control: None,
        cancelled: Callable[[], bool] = never,
        skip: SkipRequest | None = None,
        *,
        compiles: bool = False,
        mortal: bool = False,
        ranks: int = 1,
        window_ns: int = 0,
        start_ns: int = 0,
        step_ns: int = 0,
    ) -> None:
        """`memory` is what one process of the program was seen to hold, `window_ns` what it took to write its profiler
        window, `start_ns` to start, and `step_ns` its step, where that is known before any trial; `compiles`: it was
        seen to compile something; `mortal`: and to hold more from step to step, until memory runs out; `ranks`: of one
        run.

        `on_phase` is told of what takes a while and shows no pairs meanwhile, `on_control` of a control that a verdict
        has asked for. Once `cancelled` says so, whatever waits for a program raises Cancelled. `skip` ends the trial of
        one fix while it is measured; the fix is then not tried.
        """
        self._on_phase = on_phase
        self._on_control = on_control
        self._copies = Workspace(program, folder, dict(environment), compiles)
        self._schedule = schedule
        self._deadline = deadline
        self._skip = skip or SkipRequest()
        watched = memory or Memory()
        known = fits_twice(watched) if watched.device_bytes is not None else at_once(watched, 2) == 2
        self._fits = True if known else None
        self._mortal = mortal
        self._original: Program | None = None
        self._keeps = False
        """Whether a fix is kept: then one of the last runs has its time."""
        self._runs = False
        """Whether a copy has run, with or without a fix in it."""
        self._controls = AAControls(schedule.pairs)
        self._started = 0
        self._step_ns = step_ns
        self._startups = StartupCosts()
        self._baseline: Program | None = None
        self._windows: dict[Path, Sequence[Path]] = {}
        """Of programs that have had a profiler window, by root."""
        self._costs = CostModel(schedule, start_ns, step_ns, window_ns=window_ns)
        self._groups = Groups(cancelled)
        protect = protection(program, folder)
        self._place = Workplace(
            self._groups,
            folder,
            python,
            self._copies.environment_of,
            {"guard": protect},
            self._copies.edited,
            self._copies.probed,
        )
        self._gatekeeper = Gatekeeper(
            self._place, schedule.start_limit_ns, deadline, watched, compiling=self._copies.compiling
        )
        self._ahead = Ahead(self._arm, lambda: time.monotonic_ns())
        self._beside = Prelaunch(self._ahead, self._gatekeeper, schedule.generations, ranks, on_phase)
        whole = WholeRunGate(Runs(self._place, self._copies, WHOLE_RUN_LIMIT_NS))
        self._looks = NumericsChecks(self._gatekeeper, self._costs, on_phase, whole)
        self._solo = Standalone(
            self._place, schedule, deadline, lambda program: self._ahead.take(Turn.LAST_RUN, program.root)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.closing(self._groups), undisturbed():
            self._beside.end()

    def go_on(self) -> None:
        """Raise Cancelled if the user has left."""
        self._groups.go_on()

    def copy(self, texts: Mapping[str, str], name: str) -> Program:
        """A copy of the program in which the given files have other texts. Raises InputError."""
        return self._copies.make(texts, name)

    def prepare(self, original: Program) -> None:
        """Start the program as found, which any first trial needs, while it is still being decided what that is.

        One that is mortal runs against itself first: where memory runs out in a trial, nobody could say why. Raises
        ProgramFailed where it does so here.
        """
        self._original = self._baseline = original
        if not self._mortal:
            self._beside.prepare(original)
            return
        self._beside.original = original
        found = self._against_itself(original, ASSUMED)
        if found.failed is not None:
            raise fails_as_found(*found.failed)
        self._controls.saw(found)

    def _look_closer(self, found: Comparison) -> None:
        """Measure what the machine can resolve, as finely as a verdict that hangs on it needs, where there is time."""
        left_ns = self._deadline.left_ns
        affordable = left_ns is None or left_ns > self._costs.final_ns() + self._costs.check_ns()
        if found.saving is None or self._original is None or not (affordable and self._controls.wants_a_look(found)):
            return
        control, before = self._against_itself(self._original, found.saving.low), self._controls.latest
        if control.failed is None:
            self._controls.saw(control)
        if self._controls.latest is not None and self._controls.latest is not before:
            self._on_control(self._controls.latest)

    def _against_itself(self, original: Program, resolution: float) -> Comparison:
        """The program as found against a twin, until they agree as closely as this."""
        self._on_phase("measuring what this machine can resolve", "original against itself")
        patience = self._deadline.part(MOST_OF_BUDGET)
        twin = self._copies.make({}, f"twin-{self._started}")
        duel = replace(
            self._duel(),
            control=True,
            mortal=self._mortal,
            patience=patience,
            trace=False,
            resolution=None,
            enough=resolution,
        )
        return self._compare(duel, original, twin, "control", UpcomingWork())

    def choose(self, candidates: Sequence[Program], on_try: OnSetting, *, scale: bool = False) -> list[int]:
        """The settings that run: the cheapest that is near the best, then the others, the faster first.

        They come in the order of what they cost; `scale` says that they are a rising number.

        The first that runs is the yardstick for the others. Its process is kept from one to the next, resting.
        """
        short, compiling = self._schedule.sweep(), self._copies.compiling
        # With fewer pairs than an interval needs, a run-off would be called for every time.
        most_pairs = self._schedule.pairs // 2 if short.pairs >= LEAST_PAIRS else short.pairs

        def starter(program: Program) -> Starter:
            return self._starter(program, "sweep")

        settings = KnobTrials(candidates, starter, self._duel, self._schedule, compiling, self._startups)
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
    ) -> Trial:
        """Try one fix, `promised` to save a share; `numbers` is a program with the numbers of what it is made from.

        `on_sure` is told as soon as nothing but whole runs stands between the fix and its keep.

        With `halfway` the numbers are looked at in two parts: that program against `numbers`, then the training of the
        patched one against that program's, which takes its hundreds of steps faster than the original would.

        Where the original itself fails, which did run before, the fix has no trial and the others go on. Raises
        ProgramFailed where it does so in the first trial of all.
        """
        # Trajectories are long: those of the baseline, which is faster, are taken rather than the first original's.
        if numbers is None or (fixer.gate is Gate.TRAINING and halfway is None):
            numbers = original
        coming = self._beside.after_trial(fixer, patched, numbers, halfway.part if halfway else None)
        self._skip.begin()
        duel = replace(self._duel(on_pair), worth=worth(promised), skipped=lambda: self._skip.asked)
        found = self._compare(duel, original, patched, fixer.name, coming)
        if found.ending is Ending.SKIPPED:
            self._gatekeeper.drop()
            self._beside.keep_last(self._beside.last(original))
            return Trial(skipped(measured(fixer, found, self._controls.resolution)))
        self._look_closer(found)
        figures = self._startups.beside(measured(fixer, found, self._controls.resolution), original, patched)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            self._gatekeeper.drop()
            if original is self._original and not self._runs:
                raise fails_as_found(*found.failed)
            why = ruling_on_failure(found.failed[1]).summary
            return Trial(replace(figures, summary=f"what it was tried against did not run: {why}"))
        verdict = self._looks.judged(figures, fixer, found, numbers, patched, halfway, on_sure)
        self._gatekeeper.drop()
        if verdict.decision is Decision.KEPT:
            self._costs.grew(found)
            self._baseline, self._keeps = patched, True
        self._beside.keep_last(self._beside.last(patched if verdict.decision is Decision.KEPT else original))
        return Trial(verdict, found.traces[1])

    def probe(self, original: Program, probed: Program, name: str, on_pair: OnPair | None = None) -> Comparison:
        """The program as found against a copy of `probed_copy`: how long their steps take, and nothing else."""
        duel = replace(self._duel(on_pair), trace=False)
        found = self._compare(duel, original, probed, name, UpcomingWork())
        self._look_closer(found)
        return found

    @property
    def resolution(self) -> float:
        """The share of a step below which this machine can tell nothing; assumed until a control is taken."""
        return self._controls.resolution

    def probed_copy(self, name: str, setting: Mapping[str, Scalar], *, compiles: bool = False) -> Program:
        """A copy of the program whose processes the probe of that name changes. Raises InputError."""
        return self._copies.make_probed(name, setting, self._step_ns, compiles=compiles)

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
        duel = replace(self._duel(on_pair), trace=shown is not None, reassures=shown is None)
        coming = UpcomingWork(last=self._beside.last(without))
        found = self._compare(duel, without, stack, f"{fixer.name}-left-out", coming)
        self._look_closer(found)
        verdict = self._startups.beside(measured(fixer, found, self._controls.resolution), without, stack)
        answer = None if found.ending is Ending.REASSURED else settled_by_time(verdict, found)
        if found.failed is not None and found.failed[0] == ORIGINAL:
            answer = Ruling(Decision.FAILED, f"without it the program does not run: {answer.summary if answer else ''}")
        elif answer is None and shown is not None:
            return Trial(ruled(verdict, fixer, found, shown))
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
        return self._looks.check(gate, original, patched, rounds_to, asked=asked, loading=loading)

    def numbers(self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None) -> GateResult:
        """The part of `gate` that looks at numbers of the first steps."""
        return self._looks.numbers(gate, original, patched, rounds_to)

    def whole_runs(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]:
        """The part of `gate` that looks at whole runs."""
        return self._looks.whole_runs(gate, original, patched, rounds_to, loading=loading)

    def broken_by(self, original: Program, patched: Program) -> str | None:
        """How the patched program failed in a capture that the original came through; None: it did not."""
        return self._gatekeeper.broken_by(original.root, patched.root)

    def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
        """How long a trial is expected to take, with the choice between settings and its gate; `at_best`: if what is
        only assumed of it turns out short, and what it promises holds."""
        fixer, baseline = plan.fixer, self._baseline
        # What changes no bit is hardly in what was compiled; anything else may compile all of it anew.
        recompiles = baseline is not None and baseline.root in self._copies.slow
        arms = None if baseline is None or self._beside.closed else self._beside.arms(baseline)
        compiles = fixer.brings_compiler or (fixer.gate is not Gate.BITWISE and recompiles)
        windows = 1 if baseline is not None and baseline.root in self._windows else 2
        return Estimates(self._costs, self._gatekeeper).trial_ns(
            plan, baseline, compiles=compiles, beside=arms, windows=windows, at_best=at_best
        )

    def check_ns(self) -> int:
        """How long a leave-one-out check is expected to take."""
        return self._costs.check_ns()

    def final_ns(self, *, held: bool = False, runs: int | None = None) -> int:
        """How long the last runs, all or so many, are expected to take, with the gate of the whole stack unless its
        numbers are `held` already.
        """
        return self._costs.final_ns(held=held, runs=runs, started=self._last_starts_early)

    def steps_alone(self, programs: Sequence[tuple[Program, str]], steps: int) -> list[int | None]:
        """The mean step of each program, in ns, with nothing inside but the clock of its steps; `str` is its name.

        None for one that ends or fails before.
        """
        self._gatekeeper.drop()
        self._beside.keep_last([program for program, _ in programs])
        return self._solo.steps(programs, steps, together=bool(self._fits))

    def alone(self, program: Program, name: str, least_steps: int = 0) -> StandaloneRun:
        """Whether a program runs for a block of steps after its warm-up, or to its own end if that comes before; for
        `least_steps` in all, where there is time for them."""
        return self._solo.run(program, name, least_steps)

    def _duel(self, on_pair: OnPair | None = None) -> ABTrial:
        """As far as the earlier ones have shown how to run one."""
        limit = self._schedule.next_start_limit_ns(self._startups.longest_ns)
        last_ns = self._costs.last_runs_ns(1, started=self._last_starts_early) if self._keeps else 0
        deadline = self._deadline.earlier(last_ns)
        return ABTrial(
            self._schedule,
            deadline,
            self._controls.resolution,
            needed=None if self._controls.exhausted else LEAST_SAVING,
            fits=self._fits,
            apart=fills_host(self._gatekeeper.memory),
            least_steps=self._costs.held_steps,
            on_pair=on_pair,
            start_limit_ns=limit,
            rest=self._beside.rest,
            clear=self._beside.clear,
        )

    def _compare(
        self, duel: ABTrial, original: Program, patched: Program, name: str, coming: UpcomingWork
    ) -> Comparison:
        compiles = patched.root in self._copies.slow
        if compiles:  # no start so far shows how long it takes to compile
            duel = replace(duel, start_limit_ns=self._schedule.start_limit_ns)
        anew = self._compiles_anew(original, patched)
        if anew:
            self._on_phase("compiling", "which may take minutes; later starts find it done")
        ahead = room_ahead(self._gatekeeper.memory, self._gatekeeper.peaks.get(original.root))
        arms = self._beside.arms(original)[: None if ahead else 2]
        self._ahead.end(Turn.TRIAL, but=[one.root for one in (original, patched)])
        window = self._windows.get(original.root, ()) if duel.trace else ()
        duel = replace(duel, window=window, ahead=ahead, compiles=anew, beside=lambda: self._beside.start(arms, coming))
        starters = self._starter(original, f"{name}-original"), self._starter(patched, f"{name}-patched")
        began_ns, before_ns = time.monotonic_ns(), self._gatekeeper.waited_ns
        with self._looks.beside():
            found = compare(duel, *starters)
        took_ns = time.monotonic_ns() - began_ns - (self._gatekeeper.waited_ns - before_ns)
        self._costs.saw(found, took_ns, compiles=compiles)
        self._windows |= {
            program.root: paths for program, paths in zip((original, patched), found.traces, strict=True) if paths
        }
        # What was measured to be faster is not thrown away for the second of two last runs.
        later_ns = self._costs.if_kept(found).last_runs_ns(1, started=self._beside.has_last(coming.last))
        self._looks.whole_runs_end = self._deadline.earlier(round(_LONGER * later_ns))
        self._gatekeeper.deadline = self._deadline.earlier(later_ns) if self._keeps else self._deadline
        self._baseline = original
        self._startups.saw(found, original, patched)
        if found.alternated and self._fits is not False:
            self._on_phase("two copies do not fit on the device together", "they run in alternation")
        if found.pairs:
            self._fits, self._runs = not found.alternated, True
        if found.memory is not None:
            self._gatekeeper.memory = uncrowded(found.memory, self._gatekeeper.memory)
        if found.peak_bytes is not None:
            self._gatekeeper.peaks |= zip((original.root, patched.root), found.peak_bytes, strict=True)
        if self._gatekeeper.step_ns <= 0:
            self._gatekeeper.step_ns = found.step_ns
        return found

    def _compiles_anew(self, original: Program, patched: Program) -> bool:
        """Whether the patched program compiles what nothing before it has: most of it is compiled where the original
        compiles too."""
        slow = self._copies.slow
        cold = patched.root in slow and not self._startups.knows(patched)
        return cold and not (original.root in slow and self._startups.knows(original))

    def _starter(self, program: Program, name: str) -> Starter:
        def start(_number: int) -> ArmProtocol:
            return self._ahead.take(Turn.TRIAL, program.root) or self._arm(program, name)

        return start

    def _arm(self, program: Program, name: str) -> ArmProtocol:
        self._started += 1  # over all trials: no two processes may share a folder
        return Arm(self._place, program, f"{self._started}-{name}", self._schedule.warmup_steps)

    @property
    def _last_starts_early(self) -> bool:
        return self._baseline is not None and self._beside.last_starts_early(self._baseline)
