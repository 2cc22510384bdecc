"""The queue of proposals: each a fixer with all findings that name it, the largest predicted saving first.

What a fixer is predicted to save is the sum over the findings that it treats: settlement lets no nanosecond be claimed
by two findings, so nothing counts twice. Whether it does treat a finding is known only once it has been asked; until
then the sum is an upper limit. That is enough for a greedy order, as long as a fixer whose sum turns out smaller goes
back into the queue.

A fixer that treats a finding in part (`line_coverage`) is predicted by that part. Its turn is that of the whole: the
fixers of one finding stay in their order, and what rewrites everything is not tried before what rewrites a few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.constraints import goes_first
from diagnose.compose.proposals.line_coverage import Left, promised_ns, promised_share
from diagnose.fixer import Fixer
from diagnose.model import Confidence, Finding, Gate, Place

TakesNs = Callable[[Fixer], float]
"""How long the trial of a fixer is expected to take, for each chance that it ends in time."""
_SURENESS = (Confidence.HINT, Confidence.BOUND, Confidence.MEASURED)


def least_sure(of: Iterable[Confidence]) -> Confidence:
    """Return the confidence of a sum of predictions: that of its least sure part."""
    return min(of, key=_SURENESS.index)


@dataclass(frozen=True)
class Proposal:
    """A fixer for one or more findings, the heaviest first."""

    fixer: Fixer
    findings: tuple[Finding, ...]
    left: tuple[Left, ...] = ()
    """Per finding, the places that the fixer leaves alone; empty before it has been asked."""

    @property
    def parts(self) -> Iterator[tuple[Finding, Left]]:
        """Yield each finding with the places of it that the fixer leaves alone."""
        return zip(self.findings, self.left or [frozenset()] * len(self.findings), strict=True)

    @property
    def predicted_ns(self) -> int:
        """Per step, if all that the fixer can save of its findings were gone."""
        return sum(promised_ns(finding, left) for finding, left in self.parts)

    @property
    def share(self) -> float:
        """The predicted saving, as a share of the step in which the findings were made."""
        return sum(promised_share(finding, left) for finding, left in self.parts)

    @property
    def prediction(self) -> Confidence:
        """The confidence of the predicted saving.

        What was measured is the whole of a finding: a part of it is an estimate. So is what is predicted of a fixer
        that changes more than findings count.
        """
        if self.fixer.uncounted:
            return Confidence.HINT
        return least_sure(
            Confidence.HINT if left and finding.confidence is Confidence.MEASURED else finding.confidence
            for finding, left in self.parts
        )

    @property
    def where(self) -> tuple[Place, ...]:
        """The places of all its findings, each once."""
        return tuple(dict.fromkeys(place for finding in self.findings for place in finding.where))


def proposals(queue: Sequence[Candidate], takes_ns: TakesNs | None = None) -> list[Proposal]:
    """One for each fixer: by predicted saving, then by order class, then as the findings came.

    Among the fixers of one finding, which promise the same, the order class decides. Fixers that change the training
    come after all others, whatever they promise: they have to earn their place beside what changes nothing, and what
    proves them harmless takes hundreds of steps, which are short by then. Only where time is short, and `takes_ns` says
    how long a trial is expected to take, what is saved per second of it decides on all of them alike.
    """
    findings: dict[str, list[Finding]] = {}
    fixers: dict[str, Fixer] = {}
    for candidate in queue:
        fixers[candidate.fixer.name] = candidate.fixer
        findings.setdefault(candidate.fixer.name, []).append(candidate.finding)
    made = [
        Proposal(fixers[name], tuple(sorted(of, key=lambda finding: -finding.recoverable_ns)))
        for name, of in findings.items()
    ]
    if takes_ns is not None:
        return sorted(made, key=lambda one: (-one.predicted_ns / max(1, takes_ns(one.fixer)), one.fixer.order))
    return sorted(made, key=lambda one: (one.fixer.gate is Gate.TRAINING, -one.predicted_ns, one.fixer.order))


def next_up(queue: Sequence[Candidate], takes_ns: TakesNs | None = None) -> Proposal:
    """The one that promises most, or what must have its turn before it. Raises IndexError for an empty queue."""
    made = proposals(queue, takes_ns)
    first = goes_first(made[0].fixer, [one.fixer for one in made])
    return next(one for one in made if one.fixer.name == first.name)
