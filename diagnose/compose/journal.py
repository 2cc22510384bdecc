"""Writes the progress of composing as journal events, and keeps the verdicts so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from diagnose.compose.proposals.proposals import Proposal
from diagnose.model import TOGETHER, Decision, Interval, Verdict
from diagnose.session import AnyEvent, ControlMeasured, PhaseChanged, TrialBlock, VerdictReached, Warned, with_verdict
from diagnose.trial.ab.aa_control import AAControl
from diagnose.trial.ab.arm_protocol import OnPair
from diagnose.verdict import Pair

Record = Callable[[AnyEvent], None]
FOR_NOW = "kept for now, as whole runs are still to be compared"
NOTHING_TO_CHANGE = "nothing to change in the program as it stands"


class Journal:
    """Records events, and remembers the last word on every fix."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.verdicts: tuple[Verdict, ...] = ()
        self.together: list[Verdict] = []
        """Per trial that was not provisional, the fixes that were kept together."""

    def tell(self, verdict: Verdict) -> None:
        """A verdict; on a fix that was judged before it is the new last word."""
        self.verdicts = with_verdict(self.verdicts, verdict)
        if verdict.fixer == TOGETHER and verdict.decision is Decision.KEPT and not verdict.summary.endswith(FOR_NOW):
            self.together.append(verdict)
        self.record(VerdictReached(verdict=verdict))

    def tell_of(self, verdict: Verdict, proposal: Proposal) -> None:
        """A verdict on what was proposed, with what was predicted and where."""
        predicted = replace(verdict, predicted_ns=proposal.predicted_ns, prediction=proposal.prediction)
        self.tell(replace(predicted, where=proposal.where))

    def telling_sure(self, proposal: Proposal | None, **figures: Any) -> Callable[[Verdict], None]:
        """Tells of a fix that only whole runs could still speak against; `figures` go into its verdict."""

        def tell(verdict: Verdict) -> None:
            verdict = replace(verdict, summary=f"{verdict.summary}; {FOR_NOW}", **figures)
            if proposal is None:
                self.tell(verdict)
            else:
                self.tell_of(verdict, proposal)

        return tell

    def tell_of_none(self, fixer: str) -> None:
        """Report that a fixer which a finding names has neither an edit nor advice, unless it has a verdict already."""
        if all(verdict.fixer != fixer for verdict in self.verdicts):
            self.tell(Verdict(fixer, Decision.NOT_TRIED, NOTHING_TO_CHANGE))

    def tell_of_control(self, control: AAControl) -> None:
        """Report the machine's resolution."""
        self.record(
            ControlMeasured(
                resolution=control.resolution,
                pairs=control.pairs,
                generations=control.generations,
                step_ns=control.step_ns,
            )
        )

    def phase(self, phase: str, detail: str = "") -> None:
        """Report the current phase."""
        self.record(PhaseChanged(phase=phase, detail=detail))

    def warn(self, message: str) -> None:
        """Something to know that is no verdict."""
        self.record(Warned(message=message))

    def verdict_on(self, fixer: str) -> Verdict:
        """The last word on a fix that was judged."""
        return next(verdict for verdict in reversed(self.verdicts) if verdict.fixer == fixer)

    def telling(self, fixer: str) -> OnPair:
        """Tells of each pair of blocks of a trial."""

        def tell(number: int, pair: Pair, saving: Interval | None) -> None:
            self.record(
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


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
