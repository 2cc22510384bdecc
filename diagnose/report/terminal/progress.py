"""Progress lines for a terminal without a screen: at most one line per event.

Noisy events are held back by their own time stamps, never by a clock, so that a replayed journal says the same.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median_low

from diagnose.errors import DiagnoseError
from diagnose.model import TOGETHER, Decision, Diagnosis, Verdict
from diagnose.report.sections.verdict_table import is_idle, look
from diagnose.report.style.vocabulary import Look, named_count
from diagnose.report.wording.phrases import gain, interval, is_priced, signed_percent
from diagnose.report.wording.resolution import resolution_in_words
from diagnose.session import (
    AnyEvent,
    ControlMeasured,
    DiagnosisMade,
    FinalMeasured,
    PatchAccepted,
    PhaseChanged,
    RunEnded,
    RunStarted,
    State,
    StepsSeen,
    TraceWritten,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    Warned,
)
from diagnose.units import NS_PER_S, format_ns, format_setting, format_share

EVERY_NS = 5 * NS_PER_S
_RECENT = 200
_NO_PHASE = PhaseChanged(at_ns=0, phase="")


class Progress:
    """Turns the events of one run into lines. Call it with each event, in order."""

    def __init__(self, every_ns: int = EVERY_NS) -> None:
        self._every_ns = every_ns
        self._said_ns: dict[str, int] = {}
        self._ends_ns: dict[int, list[int]] = {}
        self._input_ns: dict[int, list[int]] = {}
        self._seen: dict[int, int] = {}
        self._pairs = 0
        self._phase = _NO_PHASE
        self._phases: set[str] = set()
        self._found: tuple[object, ...] | None = None
        self._dry = False
        self._verdicts: dict[str, str] = {}
        self._known = State()

    def __call__(self, event: AnyEvent) -> str | None:
        """The line that tells of `event`; None when it is not worth one, or too soon after the last of its kind."""
        if isinstance(event, StepsSeen):
            return self._steps(event)
        if isinstance(event, PhaseChanged):
            return self._entered(event)
        if isinstance(event, DiagnosisMade):
            before, self._found = self._found, _what_is_found(event.diagnosis)
            return _diagnosed(event.diagnosis) if self._found not in (before, None) else None
        if isinstance(event, RunStarted):
            self._dry = event.dry
        if isinstance(event, VerdictReached) and self._dry and event.verdict.decision is Decision.NOT_TRIED:
            return f"would try {event.verdict.fixer}: {event.verdict.summary}"
        if isinstance(event, VerdictReached):
            return self._reached(event.verdict)
        if isinstance(event, ControlMeasured):
            self._known = State(control=event)
        if isinstance(event, TrialStarted | TrialBlock):
            self._phases.clear()
            self._phase = _NO_PHASE
        if isinstance(event, TrialStarted):
            self._pairs = 0
            self._verdicts.pop(event.fixer, None)
        if isinstance(event, TrialBlock):
            anew, self._pairs = event.pair == 0 and self._pairs > 0, event.pair + 1
            if anew:
                return f"  {event.fixer}: a step of many takes far longer, so the blocks are made to hold several; anew"
            return self._block(event)
        return _line(event)

    def _steps(self, event: StepsSeen) -> str | None:
        ends = self._ends_ns.setdefault(event.rank, [])
        inputs = self._input_ns.setdefault(event.rank, [])
        ends += event.ends_ns
        inputs += event.input_ns
        self._seen[event.rank] = self._seen.get(event.rank, 0) + sum(event.skipped) + len(event.ends_ns)
        kept = 2 if event.skipped else _RECENT + 1
        del ends[:-kept], inputs[:-kept]
        if event.rank != min(self._ends_ns) or len(ends) < 2 or self._too_soon("steps", event.at_ns):
            return None
        if event.skipped:
            mean_ns = (ends[-1] - ends[0]) // (event.skipped[-1] + 1)
            return f"step {self._seen[event.rank]:,}: {format_ns(mean_ns)} per step"
        step_ns = median_low(after - before for before, after in pairwise(ends))
        line = f"step {self._seen[event.rank]:,}: {format_ns(step_ns)} per step"
        waited, span = sum(inputs[1:]), ends[-1] - ends[0]
        if waited > 0 and span > 0:
            line += f", {format_share(waited / span)} of it waiting for input"
        return line

    def _reached(self, verdict: Verdict) -> str | None:
        """A verdict that whole runs only confirmed was told before them."""
        line = _judged(verdict, look(self._known, verdict))
        before = self._verdicts.get(verdict.fixer)
        self._verdicts[verdict.fixer] = line
        return line if line != before else None

    def _block(self, event: TrialBlock) -> str | None:
        if self._too_soon(f"block {event.fixer}", event.at_ns):
            return None
        times = f"{format_ns(event.original_ns)} → {format_ns(event.patched_ns)}"
        line = f"  {event.fixer}, pair {self._pairs}: {times}"
        if event.saving is not None and event.low is not None and event.high is not None:
            low, high = (signed_percent(end).removesuffix(" %") for end in (event.low, event.high))
            line += f", saves {signed_percent(event.saving)} of a step so far [{low}, {high}]"
        return line

    def _entered(self, event: PhaseChanged) -> str | None:
        """A phase's first line at once, and once until a trial goes on; what it is at, or how far it has come, only now
        and then."""
        if event.phase == self._phase.phase:
            if self._too_soon(f"phase {event.phase}", event.at_ns):
                return None
            if event.detail.startswith(f"{self._phase.detail}, "):
                return _line(event)
        self._phase = event
        self._said_ns[f"phase {event.phase}"] = event.at_ns
        line = _line(event) or ""
        said = line in self._phases
        self._phases.add(line)
        return None if said else line

    def _too_soon(self, kind: str, now_ns: int) -> bool:
        said = self._said_ns.get(kind)
        if said is not None and now_ns - said < self._every_ns:
            return True
        self._said_ns[kind] = now_ns
        return False


def _line(event: AnyEvent) -> str | None:
    match event:
        case RunStarted():
            return f"diagnose {event.version}: {event.command} {event.program}"
        case PhaseChanged():
            return f"{event.phase}: {event.detail}" if event.detail else event.phase
        case TraceWritten():
            return f"traced {named_count(event.steps, 'step')} of rank {event.rank}: {event.path}"
        case ControlMeasured():
            pairs = named_count(event.pairs, "pair")
            difference = resolution_in_words(event.resolution)
            return f"control: the original against itself differs by {difference} of a step ({pairs})"
        case TrialStarted():
            if event.predicted_ns is None:
                return None  # a check, and the phase after it says of what
            knobs = f" ({format_setting(event.setting)})" if event.setting else ""
            # Of what is only hinted at, nobody knows how much it is.
            predicted = f", predicted to save {format_ns(event.predicted_ns)} per step" if event.predicted_ns else ""
            what = event.summary if event.fixer == TOGETHER else event.fixer
            return f"trying {what}{knobs}{predicted}"
        case PatchAccepted():
            return f"kept: {', '.join(event.fixers)}" if event.fixers else "no fix was kept"
        case FinalMeasured():
            return f"final: {format_ns(event.original_ns)} → {format_ns(event.patched_ns)} per step, {event.how}"
        case Warned():
            return f"warning: {event.message}"
        case RunEnded():
            # An error of the call or the input is said by the command itself, with its name before it; so are the words
            # of a copy that failed, which take several lines.
            return event.message.partition("\n")[0] or None if event.exit_code != DiagnoseError.exit_code else None
        case _:
            return None


def _judged(verdict: Verdict, shown: Look) -> str:
    """A verdict with its figure; what was not measured has its reason instead."""
    if is_idle(verdict):
        return f"{shown.mark} {verdict.fixer}: {verdict.summary}"
    said = f"{shown.mark} {verdict.fixer}: {shown.label}"
    if verdict.saving is not None:
        return f"{said}, {interval(verdict.saving)} of a step"
    if verdict.decision is Decision.KEPT:
        return said
    return f"{said}: {verdict.summary.split('; ')[0]}"


def _what_is_found(diagnosis: Diagnosis) -> tuple[object, ...] | None:
    """Return what a diagnosis says, but for its figures, which every reading of the recording shifts a little; None
    without a step, of which the warnings say why."""
    findings = diagnosis.findings
    if not findings and not diagnosis.steps.count:
        return None
    first = [(finding.rule, finding.severity, finding.confidence) for finding in findings[:1]]
    return len(findings), *first


def _diagnosed(diagnosis: Diagnosis) -> str:
    findings = diagnosis.findings
    if not findings:
        return "diagnosed: no findings"
    first = findings[0]
    what = f"{first.rule} could give back {gain(first)}" if is_priced(first) else f"{first.rule}, {gain(first)}"
    return f"diagnosed: {named_count(len(findings), 'finding')}; {what}"
