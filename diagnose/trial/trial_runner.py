"""Runs comparisons of two copies of one program, each with all that earlier ones have shown."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.program import Program
from diagnose.trial.ab.aa_control import MOST_OF_BUDGET, AAControl, AAControls
from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.arm_protocol import ArmProtocol, OnPair, Starter
from diagnose.trial.ab.result import SIDES, Comparison
from diagnose.trial.ab.startup_cost import StartupCosts
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.gates.capture_plan import CaptureRequest
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.planning.numerics_check import NumericsChecks
from diagnose.trial.planning.prelaunch import Prelaunch
from diagnose.trial.process.arm import Arm, Workplace
from diagnose.trial.process.capacity import at_once, fills_host, fits_twice, room_ahead, uncrowded
from diagnose.trial.process.process_group import Groups
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.process.write_guard import protection
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.standalone import Standalone
from diagnose.trial.watched_program import WatchedProgram
from diagnose.trial.whole_run.gate import WHOLE_RUN_LIMIT_NS, WholeRunGate
from diagnose.trial.whole_run.runs import Runs
from diagnose.verdict import LARGE_PROMISE, LEAST_SAVING

OnPhase = Callable[[str, str], None]
"""Told what is being done now, and a detail of it."""
OnControl = Callable[[AAControl], None]
"""Told of a control that was taken."""

_LONGER = 1.5
"""The time that whole runs leave to the last runs, as a multiple of what these are expected to take; chosen, not
measured."""


@dataclass(frozen=True)
class Tools:
    """The tools that trials are run with. Each learns from what it sees; which they are does not change."""

    schedule: Schedule
    deadline: Deadline
    on_phase: OnPhase
    on_control: OnControl
    groups: Groups
    copies: Workspace
    gatekeeper: Gatekeeper
    prelaunch: Prelaunch
    numerics: NumericsChecks
    standalone: Standalone
    costs: CostModel
    controls: AAControls
    start_arm: Callable[[Program, str], ArmProtocol]
    """Starts a program; `str` goes into the names of its files."""
    startups: StartupCosts = field(default_factory=StartupCosts)


def tools_for(
    program: Program,
    folder: Path,
    schedule: Schedule,
    deadline: Deadline,
    watched: WatchedProgram,
    python: str,
    environment: Mapping[str, str],
    on_phase: OnPhase,
    on_control: OnControl,
    cancelled: Callable[[], bool],
) -> Tools:
    """Return the tools for trials of one program, which keep their files below `folder`."""
    copies = Workspace(program, folder, dict(environment), watched.compiles)
    groups = Groups(cancelled)
    recipe = {"guard": protection(program, folder), "searches": watched.searches}
    place = Workplace(groups, folder, python, copies.environment_of, recipe, copies.edited, copies.probed)
    numbers = itertools.count(1)  # over all trials: no two processes may share a folder

    def start_arm(one: Program, name: str) -> ArmProtocol:
        return Arm(place, one, f"{next(numbers)}-{name}", schedule.warmup_steps)

    precision = "float32" if watched.narrow else "float64"
    gatekeeper = Gatekeeper(
        place, schedule.start_limit_ns, deadline, watched.memory, compiling=copies.compiling, precision=precision
    )
    alternates = watched.memory.device_bytes is not None and fits_twice(watched.memory) is False
    costs = CostModel(schedule, watched.start_ns, watched.step_ns, window_ns=watched.window_ns, alternates=alternates)
    whole_runs = WholeRunGate(Runs(place, copies, WHOLE_RUN_LIMIT_NS))
    return Tools(
        schedule,
        deadline,
        on_phase,
        on_control,
        groups,
        copies,
        gatekeeper,
        Prelaunch(gatekeeper, schedule.generations, watched.ranks, on_phase),
        NumericsChecks(gatekeeper, costs, on_phase, whole_runs),
        Standalone(place, schedule, deadline),
        costs,
        AAControls(schedule.pairs),
        start_arm,
    )


@dataclass
class TrialFacts:
    """The facts that the trials of one program have shown so far."""

    fits: bool | None = None
    """Whether two copies fit side by side; None until that is known."""
    original: Program | None = None
    """The program as found."""
    baseline: Program | None = None
    """The program that the newest fix was put on, or the newest that was kept."""
    keeps: bool = False
    """Whether a fix is kept: then one of the last runs has its time."""
    runs: bool = False
    """Whether a copy has run, with or without a fix in it."""
    windows: dict[Path, Sequence[Path]] = field(default_factory=dict)
    """The profiler windows of programs that have had one, by root."""


@dataclass(frozen=True)
class TrialRunner:
    """Compares programs with some tools, and remembers in `shown` what that has shown."""

    tools: Tools
    watched: WatchedProgram
    shown: TrialFacts

    @classmethod
    def of(cls, tools: Tools, watched: WatchedProgram) -> TrialRunner:
        """One that has compared nothing yet."""
        memory = watched.memory
        known = fits_twice(memory) if memory.device_bytes is not None else at_once(memory, 2) == 2
        return cls(tools, watched, TrialFacts(fits=True if known else None))

    def settings(self, on_pair: OnPair | None = None) -> ABTrial:
        """Return the settings of the next comparison, as far as the earlier ones have shown how to run one."""
        tools = self.tools
        last_ns = tools.costs.last_runs_ns(1) if self.shown.keeps else 0
        return ABTrial(
            tools.schedule,
            tools.deadline.earlier(last_ns),
            tools.controls.resolution,
            needed=None if tools.controls.exhausted else LEAST_SAVING,
            fits=self.shown.fits,
            apart=fills_host(tools.gatekeeper.memory),
            least_steps=tools.costs.held_steps,
            on_pair=on_pair,
            on_window=lambda side: tools.on_phase("recording a profiler window", side),
            start_limit_ns=tools.schedule.next_start_limit_ns(tools.startups.longest_ns),
            rest=tools.prelaunch.rest,
            clear=tools.prelaunch.clear,
        )

    def run(
        self,
        trial: ABTrial,
        original: Program,
        patched: Program,
        name: str,
        wanted: Sequence[CaptureRequest] = (),
        promised: float = 0.0,
    ) -> Comparison:
        """Compare two programs; `wanted` are the captures that a gate will need after that, `promised` the predicted
        saving as a share of a step.
        """
        tools, shown = self.tools, self.shown
        gatekeeper, slow = tools.gatekeeper, tools.copies.slow
        compiles = patched.root in slow
        if compiles:  # no start so far shows how long it takes to compile
            trial = replace(trial, start_limit_ns=tools.schedule.start_limit_ns)
        # Most of a program is compiled where the original compiles too.
        anew = compiles and not (
            tools.startups.knows(patched) or (original.root in slow and tools.startups.knows(original))
        )
        if anew:
            tools.on_phase("compiling", "which may take minutes; later starts find it done")
        arms, cold = self._arms_at_once(original, promised, wanted, anew=anew), patched.root if anew else None
        window = shown.windows.get(original.root, ()) if trial.trace else ()
        trial = replace(
            trial,
            window=window,
            ahead=len(arms) > SIDES,
            compiles=anew,
            beside=lambda: tools.prelaunch.start(arms, wanted, cold),
        )
        starters = self.starter(original, f"{name}-original"), self.starter(patched, f"{name}-patched")
        began_ns, before_ns = time.monotonic_ns(), gatekeeper.waited_ns
        with tools.numerics.beside():
            found = compare(trial, *starters)
        took_ns = time.monotonic_ns() - began_ns - (gatekeeper.waited_ns - before_ns)
        tools.costs.saw(found, took_ns, compiles=compiles)
        self._learn(found, original, patched)
        # What was measured to be faster is not thrown away for the second of two last runs.
        later_ns = tools.costs.if_kept(found).last_runs_ns(1)
        tools.numerics.whole_runs_end = tools.deadline.earlier(round(_LONGER * later_ns))
        gatekeeper.deadline = tools.deadline.earlier(later_ns) if shown.keeps else tools.deadline
        return found

    def _arms_at_once(
        self, original: Program, promised: float, wanted: Sequence[CaptureRequest], *, anew: bool
    ) -> list[float]:
        """Return what each arm that starts at once, of one generation or of all, needs of the memory that was seen.

        A fix that promises much seldom needs the next generation, which waits where it would not start beside the first
        but after it, as that compiles `anew`, or where the gate could not start as a whole beside it.
        """
        arms = self.arms(original)
        dear = anew or not self.tools.prelaunch.fits_beside(arms, wanted)
        return arms[:SIDES] if promised >= LARGE_PROMISE and dear else arms

    def arms(self, original: Program) -> list[float]:
        """Return what the arms that fit at once, of all generations or of one, need of the memory that was seen."""
        gatekeeper = self.tools.gatekeeper
        arms = self.tools.prelaunch.arms(original)
        return arms if room_ahead(gatekeeper.memory, gatekeeper.peaks.get(original.root)) else arms[:SIDES]

    def _learn(self, found: Comparison, original: Program, patched: Program) -> None:
        tools, shown, gatekeeper = self.tools, self.shown, self.tools.gatekeeper
        both = original, patched
        shown.windows |= {one.root: paths for one, paths in zip(both, found.traces, strict=True) if paths}
        shown.baseline = original
        tools.startups.saw(found, original, patched)
        if found.alternated and shown.fits is not False:
            tools.on_phase("two copies do not fit on the device together", "they run in alternation")
        if found.pairs:
            shown.fits, shown.runs = not found.alternated, True
        if found.memory is not None:
            gatekeeper.memory = uncrowded(found.memory, gatekeeper.memory)
        if found.peak_bytes is not None:
            gatekeeper.peaks |= zip((one.root for one in both), found.peak_bytes, strict=True)
        if gatekeeper.step_ns <= 0:
            gatekeeper.step_ns = found.step_ns

    def control(self, original: Program, resolution: float) -> Comparison:
        """The program as found against a twin, until they agree as closely as this."""
        tools = self.tools
        tools.on_phase("measuring what this machine can resolve", "original against itself")
        twin = tools.copies.make({}, f"twin-{len(tools.copies.edited)}")
        trial = replace(
            self.settings(),
            control=True,
            mortal=self.watched.mortal,
            patience=tools.deadline.part(MOST_OF_BUDGET),
            trace=False,
            resolution=None,
            enough=resolution,
        )
        return self.run(trial, original, twin, "control")

    def look_closer(self, found: Comparison) -> None:
        """Measure what the machine can resolve, as finely as a verdict that hangs on it needs, where there is time."""
        tools, original = self.tools, self.shown.original
        left_ns = tools.deadline.left_ns
        affordable = left_ns is None or left_ns > tools.costs.final_ns() + tools.costs.check_ns()
        if found.saving is None or original is None or not (affordable and tools.controls.wants_a_look(found)):
            return
        control, before = self.control(original, found.saving.low), tools.controls.latest
        if control.failed is None:
            tools.controls.saw(control)
        if tools.controls.latest is not None and tools.controls.latest is not before:
            tools.on_control(tools.controls.latest)

    def starter(self, program: Program, name: str) -> Starter:
        """Starts a program."""
        return lambda _number: self.tools.start_arm(program, name)
