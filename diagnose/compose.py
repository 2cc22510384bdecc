"""Which fixes hold together: tries them one by one, each on top of those already kept, and merges what is left.

Greedy, the largest predicted saving first. A fix is measured against the program with everything kept so far, so that
two cures of one ailment are not both kept. After each kept fix its own profiler window is read again: the findings of
the new state decide what is tried next, and what is gone is said to be gone. The number reported in the end is that of
the patched program alone against the original alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from diagnose.engine import diagnose
from diagnose.errors import InputError
from diagnose.fixer import Advice, Edits, Fixer, Request
from diagnose.model import Decision, Diagnosis, Finding, Gate, Interval, Scalar, Verdict
from diagnose.plugins import Catalogue
from diagnose.program import Program, patch
from diagnose.program.moved import LineMap
from diagnose.session import (
    AnyEvent,
    ControlMeasured,
    FinalMeasured,
    PatchAccepted,
    PhaseChanged,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    Warned,
)
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trial.bench import Bench, Control, Trial, describe, describe_saving
from diagnose.trial.duel import OnPair
from diagnose.trial.knowledge import Known, absolute, knowledge
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import format_share
from diagnose.verdict import Pair

Record = Callable[[AnyEvent], None]
WITHOUT_ASKING = frozenset({Gate.BITWISE, Gate.ROUNDING})
"""Classes of fixes that are tried unless the user says otherwise."""


class Trials(Protocol):
    """What composing needs of a test bench; `diagnose.trial.bench.Bench` is one."""

    def copy(self, texts: Mapping[str, str], name: str) -> Program: ...
    def control(self, original: Program, twin: Program, on_pair: OnPair | None = None) -> Control | None: ...
    def choose(
        self, original: Program, candidates: Sequence[Program], on_try: Callable[[int, Interval | None], None]
    ) -> int | None: ...
    def attempt(self, fixer: Fixer, original: Program, patched: Program, on_pair: OnPair | None = None) -> Trial: ...
    def step_alone(self, program: Program, name: str, steps: int) -> int | None: ...


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    verdicts: tuple[Verdict, ...]
    patch: patch.Patch | None
    """All kept fixes together; None when none was kept."""
    control: Control | None = None
    final: FinalMeasured | None = None


def fix(
    program: Program,
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    catalogue: Catalogue,
    record: Record,
    folder: Path,
    schedule: Schedule | None = None,
    budget_ns: int | None = None,
    allow: frozenset[Gate] = WITHOUT_ASKING,
) -> Outcome:
    """Try what the findings suggest, on copies below `folder`; the patch is stored there too, by `program.patch`.

    Writes nothing to the user's files. Raises ProgramFailed where the program fails in an unchanged copy.
    """
    plan = schedule or Schedule()
    deadline = Deadline.within(budget_ns)
    known = knowledge(program, diagnosis, traces)
    with Bench(program, folder / "trials", plan, deadline) as bench:
        outcome = Composition(program, diagnosis, known, catalogue, record, bench, plan, deadline, allow).run()
    if outcome.patch is not None:
        patch.store(outcome.patch, folder)
    return outcome


@dataclass(frozen=True)
class _Candidate:
    finding: Finding
    fixer: Fixer


@dataclass(frozen=True)
class _Variant:
    setting: Mapping[str, Scalar]
    answer: Edits


class Composition:
    """One greedy pass over the findings."""

    def __init__(
        self,
        program: Program,
        diagnosis: Diagnosis,
        known: Known,
        catalogue: Catalogue,
        record: Record,
        bench: Trials,
        schedule: Schedule,
        deadline: Deadline,
        allow: frozenset[Gate] = WITHOUT_ASKING,
    ) -> None:
        self._program = program
        self._known = known
        self._catalogue = catalogue
        self._record = record
        self._bench = bench
        self._schedule = schedule
        self._deadline = deadline
        self._allow = allow
        self._queue = list(self._candidates(diagnosis.findings))
        self._texts = dict(known.sources)  # with everything kept so far
        self._done: set[str] = set()
        self._advised: set[str] = set()
        self._kept: list[str] = []
        self._verdicts: list[Verdict] = []
        self._copies = 0

    def run(self) -> Outcome:
        """Try everything that is worth it and allowed, then measure what was kept."""
        original, control = None, None
        while self._queue:
            candidate = self._queue.pop(0)
            if candidate.fixer.name in self._done:
                continue
            variants = self._variants(candidate)
            if not variants:
                continue
            self._done.add(candidate.fixer.name)
            if original is None:
                original = self._copy({}, "original")
                baseline = original
                control = self._control(original)
            if control is None:
                self._give_up(candidate, "the program ends before it could be measured", variants[0].answer)
                continue
            baseline = self._try(candidate, variants, baseline) or baseline
        final = self._finish(original, baseline, control) if original is not None and self._kept else None
        merged = patch.make(self._edited(), self._program.root) if self._kept else None
        return Outcome(tuple(self._verdicts), merged, control, final)

    def _variants(self, candidate: _Candidate) -> list[_Variant]:
        """What the fixer would do, by setting; what stands against trying it is told."""
        fixer = candidate.fixer
        request = self._request(candidate)
        try:
            answers = [
                (setting, fixer.rewrite(replace(request, setting=setting))) for setting in fixer.settings(request)
            ]
        except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
            self._done.add(fixer.name)
            self._tell(Verdict(fixer.name, Decision.FAILED, f"the fixer itself failed: {error!r}"), candidate)
            return []
        variants = [_Variant(setting, answer) for setting, answer in answers if isinstance(answer, Edits)]
        reason = None
        if not variants:
            advice = next((answer.text for _, answer in answers if isinstance(answer, Advice)), None)
            if advice is not None and advice not in self._advised:
                self._advised.add(advice)
                self._tell(Verdict(fixer.name, Decision.ADVICE, advice), candidate)
        elif fixer.gate not in self._allow:
            reason = "it changes the training itself, and was not allowed"
        elif self._deadline.passed:
            reason = "the budget ran out"
        if reason is None:
            return variants
        self._done.add(fixer.name)
        self._give_up(candidate, reason, variants[0].answer)
        return []

    def _control(self, original: Program) -> Control | None:
        self._record(PhaseChanged(phase="measuring what this machine can resolve", detail="original against itself"))
        twin = self._copy({}, "twin")
        control = self._bench.control(original, twin)
        if control is not None:
            self._record(
                ControlMeasured(
                    resolution=control.resolution,
                    pairs=control.pairs,
                    generations=control.generations,
                    step_ns=control.step_ns,
                )
            )
            if control.alternated:
                self._record(Warned(message="two copies do not fit on the device together; they run in alternation"))
        return control

    def _try(self, candidate: _Candidate, variants: Sequence[_Variant], baseline: Program) -> Program | None:
        """Choose the setting, run the trial, take the fix into the stack if it holds; the new baseline if so."""
        fixer = candidate.fixer
        copies = [self._copy(variant.answer.files, fixer.name) for variant in variants]
        chosen = self._choose(fixer, baseline, [variant.setting for variant in variants], copies)
        if chosen is None:
            summary = "the patched program failed with every setting"
            verdict = Verdict(fixer.name, Decision.FAILED, summary, diff=self._diff(variants[0].answer))
            self._tell(verdict, candidate)
            return None
        setting, answer, patched = variants[chosen].setting, variants[chosen].answer, copies[chosen]
        self._record(
            TrialStarted(
                fixer=fixer.name,
                setting=dict(setting),
                predicted_ns=candidate.finding.recoverable_ns,
                summary=answer.summary,
                diff=self._diff(answer),
                where=list(candidate.finding.where),
            )
        )
        trial = self._bench.attempt(fixer, baseline, patched, self._telling(fixer.name))
        self._tell(replace(trial.verdict, setting=dict(setting), diff=self._diff(answer)), candidate)
        if trial.verdict.decision is not Decision.KEPT:
            return None
        self._accept(fixer, answer)
        self._look_again(fixer, trial)
        return patched

    def _choose(
        self, fixer: Fixer, baseline: Program, settings: Sequence[Mapping[str, Scalar]], copies: Sequence[Program]
    ) -> int | None:
        if len(copies) == 1:
            return 0

        def tried(number: int, saving: Interval | None) -> None:
            detail = f"{describe(settings[number])}: {describe_saving(saving)}"
            self._record(PhaseChanged(phase=f"choosing the setting of {fixer.name}", detail=detail))

        return self._bench.choose(baseline, copies, tried)

    def _accept(self, fixer: Fixer, answer: Edits) -> None:
        lines = LineMap.between(self._texts, answer.files)
        self._texts |= answer.files
        self._known = replace(
            self._known, sites=tuple(replace(s, line=lines.line(s.file, s.line)) for s in self._known.sites)
        )
        self._queue = [
            replace(candidate, finding=_moved(candidate.finding, lines, self._texts)) for candidate in self._queue
        ]
        self._kept.append(fixer.name)
        whole = patch.make(self._edited(), self._program.root).text
        self._record(PatchAccepted(diff=whole, fixers=list(self._kept)))

    def _look_again(self, fixer: Fixer, trial: Trial) -> None:
        """Let the findings of the new state decide what is tried next."""
        try:
            traces = open_traces(trial.traces) if trial.traces else []
        except InputError:
            traces = []
        if not traces:
            return
        known = self._known
        informed = [replace(trace, sites=known.sites, facts=known.facts) for trace in traces]
        now = diagnose(informed, self._catalogue)
        unsure = {answer.rule for answer in now.cannot_tell}
        # The window of a trial has no samples: where the first run knew the lines, they still hold.
        before = {candidate.finding.rule: candidate.finding for candidate in self._queue}
        found = [
            replace(finding, where=before[finding.rule].where)
            if not finding.where and finding.rule in before
            else finding
            for finding in now.findings
        ]
        seen = {finding.rule for finding in found}
        rest = [candidate for candidate in self._queue if candidate.finding.rule not in seen]
        self._queue = [*self._candidates(found), *(other for other in rest if other.finding.rule in unsure)]
        for candidate in rest:
            waiting = any(other.fixer.name == candidate.fixer.name for other in self._queue)
            if candidate.finding.rule not in unsure and not waiting and candidate.fixer.name not in self._done:
                self._done.add(candidate.fixer.name)
                self._give_up(candidate, f"{candidate.finding.rule} is gone since {fixer.name} was kept")

    def _finish(self, original: Program, patched: Program, control: Control | None) -> FinalMeasured | None:
        """The patched program alone against the original alone, in turns of whole processes."""
        runs = self._schedule.final_runs
        step_ns = control.step_ns if control else 0
        steps = 5 * self._schedule.block_steps(step_ns)
        self._record(PhaseChanged(phase="running the patched program alone", detail=f"{steps} steps, {runs} runs each"))
        befores: list[int] = []
        afters: list[int] = []
        for run in range(runs):
            sides = [(original, befores, "alone-original"), (patched, afters, "alone-patched")]
            for program, found, name in sides if run % 2 == 0 else reversed(sides):
                step = self._bench.step_alone(program, f"{name}-{run}", steps)
                if step is not None:
                    found.append(step)
        if not befores or not afters:
            self._record(Warned(message="the last run of the patched program alone did not come to its end"))
            return None
        how = (
            f"each program alone, mean of {steps} steps after {self._schedule.warmup_steps} of warm-up; "
            "nothing of diagnose inside but the clock that sees steps end"
        )
        before, after = sum(befores) // len(befores), sum(afters) // len(afters)
        final = FinalMeasured(original_ns=before, patched_ns=after, runs=min(len(befores), len(afters)), how=how)
        self._record(final)
        return final

    def _request(self, candidate: _Candidate) -> Request:
        entry = str(self._program.entry) if self._program.entry else None
        return Request(candidate.finding, self._texts, self._known.sites, self._known.facts, {}, entry)

    def _candidates(self, findings: Sequence[Finding]) -> Iterator[_Candidate]:
        for finding in findings:
            places = tuple(replace(place, file=absolute(self._program, place.file)) for place in finding.where)
            for name in finding.fixers:
                if name in self._catalogue.fixers:
                    yield _Candidate(replace(finding, where=places), self._catalogue.fixers[name])

    def _copy(self, edits: Mapping[str, str], name: str) -> Program:
        self._copies += 1
        return self._bench.copy({**self._edited(), **edits}, f"copy-{self._copies}-{name}")

    def _edited(self) -> dict[str, str]:
        return {path: text for path, text in self._texts.items() if text != self._known.sources.get(path)}

    def _diff(self, answer: Edits) -> str:
        return patch.diff(self._texts, answer.files, self._program.root)

    def _telling(self, fixer: str) -> OnPair:
        def tell(number: int, pair: Pair, saving: Interval | None) -> None:
            self._record(
                TrialBlock(
                    fixer=fixer,
                    pair=number,
                    original_ns=round(pair.original_ns),
                    patched_ns=round(pair.patched_ns),
                    saving=saving.estimate if saving else None,
                    low=saving.low if saving else None,
                    high=saving.high if saving else None,
                )
            )

        return tell

    def _give_up(self, candidate: _Candidate, reason: str, answer: Edits | None = None) -> None:
        verdict = Verdict(candidate.fixer.name, Decision.NOT_TRIED, reason)
        self._tell(replace(verdict, diff=self._diff(answer)) if answer else verdict, candidate)

    def _tell(self, verdict: Verdict, candidate: _Candidate) -> None:
        finding = candidate.finding
        whole = replace(verdict, predicted_ns=finding.recoverable_ns, where=finding.where)
        self._verdicts.append(whole)
        self._record(VerdictReached(verdict=whole))


def _moved(finding: Finding, lines: LineMap, texts: Mapping[str, str]) -> Finding:
    places = []
    for place in finding.where:
        line = lines.line(place.file, place.line)
        text = texts.get(place.file, "").splitlines()
        code = text[line - 1].strip() if place.code is not None and 0 < line <= len(text) else place.code
        places.append(replace(place, line=line, code=code))
    return replace(finding, where=tuple(places))


def summary(outcome: Outcome) -> str:
    """One line on the whole."""
    kept = sum(verdict.decision is Decision.KEPT for verdict in outcome.verdicts)
    if outcome.final is None:
        return f"{kept} of {len(outcome.verdicts)} fixes kept"
    saved = 1 - outcome.final.patched_ns / outcome.final.original_ns
    return f"{kept} of {len(outcome.verdicts)} fixes kept, {format_share(saved)} of the step saved"
