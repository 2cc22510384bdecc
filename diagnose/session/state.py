"""A journal, folded: all that a screen or a report shows of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from diagnose.model import TOGETHER, Decision, Diagnosis, Facts, ProbeResult, StepProfile, Verdict
from diagnose.session.events import (
    AnyEvent,
    ControlMeasured,
    CountersRead,
    DiagnosisMade,
    FactsLearned,
    FinalMeasured,
    Noticed,
    PatchAccepted,
    PhaseChanged,
    Probed,
    ProgramOutput,
    RunEnded,
    RunStarted,
    StepsProfiled,
    StepsSeen,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    Warned,
)

STEPS_KEPT = 10_000
"""The least number of steps that are kept per rank: what a screen or a page draws. Twice as many are kept at most."""


@dataclass(frozen=True)
class RankSteps:
    """The newest steps of one rank, oldest first."""

    ends_ns: tuple[int, ...] = ()
    input_ns: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    """Per end: steps since the end before it that have none of their own; empty where each step has one."""
    earlier: int = 0
    """Steps before these."""

    @property
    def count(self) -> int:
        """All steps so far."""
        return self.earlier + len(self.ends_ns) + sum(self.skipped)

    @property
    def lengths_ns(self) -> list[int]:
        """Per end but the first: the time of its step, or the mean of the steps since the end before."""
        spans = (after - before for before, after in pairwise(self.ends_ns))
        if not self.skipped:
            return list(spans)
        return [span // (1 + skipped) for span, skipped in zip(spans, self.skipped[1:], strict=True)]

    def newest(self, ends: int) -> RankSteps:
        """Return the newest `ends` steps."""
        gone = len(self.ends_ns) - ends
        if gone <= 0:
            return self
        earlier = self.earlier + gone + sum(self.skipped[:gone])
        return RankSteps(self.ends_ns[gone:], self.input_ns[gone:], self.skipped[gone:], earlier)


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
    counter_history: Mapping[int, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """The newest readings by rank and counter, oldest first."""
    watts: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """The mean of the power that its device was read to draw, and the number of readings, by rank."""
    facts: Mapping[int, Facts] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    profile: StepProfile | None = None
    control: ControlMeasured | None = None
    trials: tuple[TrialState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    patch: PatchAccepted | None = None
    final: FinalMeasured | None = None
    probes: tuple[ProbeResult, ...] = ()
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
    skipped = before.skipped
    if event.skipped or skipped:
        known = skipped or (0,) * len(before.ends_ns)
        skipped = (*known, *(event.skipped or (0,) * len(event.ends_ns)))
    seen = RankSteps(
        before.ends_ns + tuple(event.ends_ns), before.input_ns + tuple(event.input_ns), skipped, before.earlier
    )
    if len(seen.ends_ns) > 2 * STEPS_KEPT:
        seen = seen.newest(STEPS_KEPT)
    return replace(state, steps={**state.steps, event.rank: seen})


_READINGS_KEPT = 240  # of each counter: four minutes, at one a second
_WATTS = "gpu.power_watts"


def _fold_counters(state: State, event: CountersRead) -> State:
    values = {**state.counters.get(event.rank, {}), **event.values}
    before = state.counter_history.get(event.rank, {})
    read = {name: (*before.get(name, ()), value)[-_READINGS_KEPT:] for name, value in event.values.items()}
    watts = state.watts
    if _WATTS in event.values:
        mean, readings = watts.get(event.rank, (0.0, 0))
        mean += (event.values[_WATTS] - mean) / (readings + 1)
        watts = {**watts, event.rank: (mean, readings + 1)}
    return replace(
        state,
        counters={**state.counters, event.rank: values},
        counter_history={**state.counter_history, event.rank: {**before, **read}},
        watts=watts,
    )


def _fold_trial(state: State, event: TrialStarted) -> State:
    phase = PhaseChanged(at_ns=event.at_ns, phase=f"trying {event.fixer}")
    return replace(state, phase=phase, trials=(*state.trials, TrialState(event)))


def _fold_block(state: State, event: TrialBlock) -> State:
    if not state.trials:
        return state
    *earlier, current = state.trials
    before = current.blocks if event.pair else ()
    return replace(state, trials=(*earlier, replace(current, blocks=(*before, event))))


def with_verdict(verdicts: tuple[Verdict, ...], verdict: Verdict) -> tuple[Verdict, ...]:
    """One verdict more: in the place of an earlier one on the same fixer. Advice stands beside what was measured."""
    if verdict.fixer == TOGETHER:
        return verdicts  # each of them has its own
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
    CountersRead: _fold_counters,
    ProgramOutput: lambda state, event: replace(state, output=(state.output + event.text)[-_OUTPUT_KEPT:]),
    FactsLearned: lambda state, event: replace(state, facts={**state.facts, event.rank: event.facts}),
    DiagnosisMade: lambda state, event: replace(state, diagnosis=event.diagnosis),
    StepsProfiled: lambda state, event: replace(state, profile=event.profile),
    ControlMeasured: lambda state, event: replace(state, control=event),
    TrialStarted: _fold_trial,
    TrialBlock: _fold_block,
    VerdictReached: _fold_verdict,
    PatchAccepted: lambda state, event: replace(state, patch=event),
    FinalMeasured: lambda state, event: replace(state, final=event),
    Probed: lambda state, event: replace(state, probes=(*state.probes, event.result)),
    Noticed: lambda state, event: replace(state, warnings=(*state.warnings, event.message)),
    Warned: lambda state, event: replace(state, warnings=(*state.warnings, event.message)),
    RunEnded: lambda state, event: replace(state, ended=event),
}
