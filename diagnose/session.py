"""The journal of a run: the one thing that screens and reports read.

A run is a folder `.diagnose/runs/<time>-<name>/`, ignored by git through its own `.gitignore`. Its `journal.jsonl`
takes one event a line, appended and flushed whole, so that a killed run leaves a journal that still opens: a torn last
line is dropped on reading and said so. Screens and reports fold the events into a `State`; nothing else is shared.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from diagnose.errors import InputError
from diagnose.model import Decision, Diagnosis, Facts, GateResult, Place, Scalar, Verdict
from diagnose.program.atomic import write_atomic

RUNS = Path(".diagnose") / "runs"
JOURNAL = "journal.jsonl"


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all events; `at_ns` is nanoseconds since the epoch."""

    at_ns: int = msgspec.field(default_factory=time.time_ns)


class RunStarted(Event, frozen=True, tag=True, kw_only=True):
    """A command began on a program or on recordings."""

    command: str
    """`run`, `fix` or `analyze`."""
    program: str
    """What the user typed after the options."""
    cwd: str
    version: str
    pid: int = 0


class PhaseChanged(Event, frozen=True, tag=True, kw_only=True):
    """What the run is doing now, in the user's words: `waiting for the first step`, `tracing 4 steps`, …"""

    phase: str
    detail: str = ""


class StepsSeen(Event, frozen=True, tag=True, kw_only=True):
    """Steps that ended since the event before, of one rank."""

    rank: int
    ends_ns: list[int]
    input_ns: list[int]
    """Per step: time inside the loader's `__next__`."""


class CountersRead(Event, frozen=True, tag=True, kw_only=True):
    """The newest value of each counter of one rank: `gpu.utilization`, `gpu.sm_activity`, `host.cpu`, …"""

    rank: int
    values: dict[str, float]


class ProgramOutput(Event, frozen=True, tag=True, kw_only=True):
    """Text that the program printed while a screen owned the terminal."""

    text: str


class TraceWritten(Event, frozen=True, tag=True, kw_only=True):
    """A profiler window was closed and its trace lies on disk."""

    rank: int
    path: str
    steps: int


class FactsLearned(Event, frozen=True, tag=True, kw_only=True):
    """What is known of the process and its device."""

    rank: int
    facts: Facts


class DiagnosisMade(Event, frozen=True, tag=True, kw_only=True):
    """Accounting and ranked findings; a later one replaces an earlier one."""

    diagnosis: Diagnosis


class ControlMeasured(Event, frozen=True, tag=True, kw_only=True):
    """The A/A control: the original against itself with the schedule of the trials."""

    resolution: float
    """Half-width of the 95 % interval, as a share of the step."""
    pairs: int
    generations: int
    step_ns: int


class TrialStarted(Event, frozen=True, tag=True, kw_only=True):
    """A fix is being tried."""

    fixer: str
    setting: dict[str, Scalar]
    predicted_ns: int | None
    summary: str
    diff: str
    where: list[Place] = []


class TrialBlock(Event, frozen=True, tag=True, kw_only=True):
    """One pair of blocks was measured."""

    fixer: str
    pair: int
    original_ns: int
    patched_ns: int
    """Mean step of the block."""
    saving: float | None = None
    low: float | None = None
    high: float | None = None
    """The paired estimate so far, with its interval, once there are enough pairs."""


class VerdictReached(Event, frozen=True, tag=True, kw_only=True):
    """A fix was judged; judged again, as when the final stack is checked, the later verdict is the valid one."""

    verdict: Verdict


class PatchAccepted(Event, frozen=True, tag=True, kw_only=True):
    """The diff of all kept fixes together, as `diagnose apply` will write it."""

    diff: str
    fixers: list[str]


class FinalMeasured(Event, frozen=True, tag=True, kw_only=True):
    """The patched program alone against the original alone, without `diagnose` inside: the number reported."""

    original_ns: int
    patched_ns: int
    runs: int
    how: str
    gate: GateResult | None = None
    """What the numerics gate saw of all kept fixes together, against the original."""


class Warned(Event, frozen=True, tag=True, kw_only=True):
    """Something the user should know that is no finding."""

    message: str


class RunEnded(Event, frozen=True, tag=True, kw_only=True):
    """The command is done; `returncode` is the program's own (None where none was run)."""

    returncode: int | None
    exit_code: int
    message: str = ""


AnyEvent = (
    RunStarted
    | PhaseChanged
    | StepsSeen
    | CountersRead
    | ProgramOutput
    | TraceWritten
    | FactsLearned
    | DiagnosisMade
    | ControlMeasured
    | TrialStarted
    | TrialBlock
    | VerdictReached
    | PatchAccepted
    | FinalMeasured
    | Warned
    | RunEnded
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Session:
    """A run folder and its journal. `record` is the only way to write; it may be called from any thread."""

    def __init__(self, path: Path, listener: Callable[[AnyEvent], None] | None = None) -> None:
        self.path = path
        self._listener = listener
        self._lock = threading.Lock()
        self._file = (path / JOURNAL).open("ab", buffering=0)

    @classmethod
    def create(cls, name: str, listener: Callable[[AnyEvent], None] | None = None, root: Path | None = None) -> Session:
        """A new run folder below the working directory, or below `root`."""
        runs = (root or Path.cwd()) / RUNS
        runs.mkdir(parents=True, exist_ok=True)
        ignore = runs.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        stem = time.strftime("%Y%m%d-%H%M%S-") + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run")
        for attempt in range(1000):
            path = runs / (f"{stem}-{attempt}" if attempt else stem)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls(path, listener)
        raise InputError(runs, "cannot make a run folder; remove old ones")

    def record(self, event: AnyEvent) -> None:
        """Append one event, then tell the listener."""
        line = _encoder.encode(event) + b"\n"
        with self._lock:
            self._file.write(line)
        if self._listener is not None:
            self._listener(event)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the run folder in one piece: it is there whole or not at all."""
        path = self.path / name
        write_atomic(path, text.encode())
        return path

    def close(self) -> None:
        """Close the journal; recording ends."""
        with self._lock:
            self._file.close()


def read(path: Path) -> tuple[list[AnyEvent], list[str]]:
    """The events of a run folder or journal, and warnings for lines that could not be read."""
    journal = path / JOURNAL if path.is_dir() else path
    try:
        raw = journal.read_bytes()
    except OSError as error:
        raise InputError(path, f"no journal of a run ({error.strerror}); name a folder below {RUNS}") from error
    events: list[AnyEvent] = []
    warnings: list[str] = []
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            events.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            torn = number == len(lines)
            reason = "cut off, as after a kill" if torn else str(error)
            warnings.append(f"{journal.name} line {number} was skipped: {reason}")
    return events, warnings


def latest(root: Path | None = None) -> Path | None:
    """The newest run folder below the working directory, or None."""
    runs = (root or Path.cwd()) / RUNS
    found = sorted(runs.glob(f"*/{JOURNAL}"), key=lambda journal: journal.stat().st_mtime_ns)
    return found[-1].parent if found else None


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank so far, oldest first."""

    ends_ns: tuple[int, ...] = ()
    input_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrialState:
    """One fix as far as it has been tried."""

    started: TrialStarted
    blocks: tuple[TrialBlock, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True)
class State:
    """A journal, folded: what a screen shows."""

    started: RunStarted | None = None
    phase: PhaseChanged | None = None
    steps: Mapping[int, RankSteps] = field(default_factory=dict)
    counters: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    facts: Mapping[int, Facts] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    control: ControlMeasured | None = None
    trials: tuple[TrialState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    patch: PatchAccepted | None = None
    final: FinalMeasured | None = None
    output: str = ""
    warnings: tuple[str, ...] = ()
    ended: RunEnded | None = None

    def after(self, event: AnyEvent) -> State:
        """The state once `event` has happened."""
        step: Callable[[State, Any], State] = _FOLD.get(type(event), lambda state, _: state)
        return step(self, event)


def fold(events: Iterable[AnyEvent]) -> State:
    """The state after all of `events`."""
    state = State()
    for event in events:
        state = state.after(event)
    return state


def _fold_steps(state: State, event: StepsSeen) -> State:
    before = state.steps.get(event.rank, RankSteps())
    seen = RankSteps(before.ends_ns + tuple(event.ends_ns), before.input_ns + tuple(event.input_ns))
    return replace(state, steps={**state.steps, event.rank: seen})


def _fold_block(state: State, event: TrialBlock) -> State:
    if not state.trials:
        return state
    *earlier, current = state.trials
    return replace(state, trials=(*earlier, replace(current, blocks=(*current.blocks, event))))


def with_verdict(verdicts: tuple[Verdict, ...], verdict: Verdict) -> tuple[Verdict, ...]:
    """One verdict more: in the place of an earlier one on the same fixer. Advice stands beside what was measured."""
    advice = verdict.decision is Decision.ADVICE
    for at, earlier in enumerate(verdicts):
        if not advice and earlier.fixer == verdict.fixer and earlier.decision is not Decision.ADVICE:
            return (*verdicts[:at], verdict, *verdicts[at + 1 :])
    return (*verdicts, verdict)


def _fold_verdict(state: State, event: VerdictReached) -> State:
    verdict, trials = event.verdict, state.trials
    tried = [at for at, trial in enumerate(trials) if trial.started.fixer == verdict.fixer]
    if tried and verdict.decision is not Decision.ADVICE:
        at = tried[-1]
        trials = (*trials[:at], replace(trials[at], verdict=verdict), *trials[at + 1 :])
    return replace(state, trials=trials, verdicts=with_verdict(state.verdicts, verdict))


_OUTPUT_KEPT = 200_000  # characters of program output that a screen keeps for scrolling back

_FOLD: dict[type, Callable[[State, Any], State]] = {
    RunStarted: lambda state, event: replace(state, started=event),
    PhaseChanged: lambda state, event: replace(state, phase=event),
    StepsSeen: _fold_steps,
    CountersRead: lambda state, event: replace(
        state, counters={**state.counters, event.rank: {**state.counters.get(event.rank, {}), **event.values}}
    ),
    ProgramOutput: lambda state, event: replace(state, output=(state.output + event.text)[-_OUTPUT_KEPT:]),
    FactsLearned: lambda state, event: replace(state, facts={**state.facts, event.rank: event.facts}),
    DiagnosisMade: lambda state, event: replace(state, diagnosis=event.diagnosis),
    ControlMeasured: lambda state, event: replace(state, control=event),
    TrialStarted: lambda state, event: replace(state, trials=(*state.trials, TrialState(event))),
    TrialBlock: _fold_block,
    VerdictReached: _fold_verdict,
    PatchAccepted: lambda state, event: replace(state, patch=event),
    FinalMeasured: lambda state, event: replace(state, final=event),
    Warned: lambda state, event: replace(state, warnings=(*state.warnings, event.message)),
    RunEnded: lambda state, event: replace(state, ended=event),
}
