"""A program that runs out of memory as found: the first fix with which it runs, or several on top of one another.

There is nothing to measure it against. Of each fix that the finding names, the cheapest setting is tried, then the one
that saves most: if that is too little, so are those between, else the cheapest of them with which the program goes on
is kept. It has to get past the step in which it died as found, and well past it, since what only puts off the end of a
program that leaks gets there too; one for which time ends before that step is not kept. Where the program as found
takes steps enough, its numbers are those to be kept. Where it does not, but a setting that saves more runs too, the
numbers of the two are held against each other: they are of one program, computed in two ways.

Where no fix is enough, those that ran out of memory go together: `diagnose.compose.oom.oom_rescue_bundle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diagnose.compose.dry_run import not_allowed
from diagnose.compose.journal import Journal, Record
from diagnose.compose.oom.oom_rescue_bundle import Short, rescue_together
from diagnose.compose.oom.oom_survival import Alive, OomSurvival, died, verdict_on
from diagnose.compose.outcome import Outcome
from diagnose.compose.proposals.candidates import Candidate, candidates
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.proposals.proposed_edits import Variant, ask
from diagnose.compose.search.budget import OUT_OF_BUDGET
from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.model import Decision, Diagnosis, Gate, Verdict
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import PatchAccepted
from diagnose.source.tree.time_limit import TookTooLong
from diagnose.trial.bench import Bench
from diagnose.trial.schedule import Deadline


def rescue(
    program: Program,
    diagnosis: Diagnosis,
    known: RunContext,
    catalogue: Catalogue,
    record: Record,
    bench: Bench,
    deadline: Deadline,
    allow: frozenset[Gate],
    died_after: int,
) -> Outcome:
    """Try what the findings of which the run died suggest, in the order in which they name it, until it runs.

    `died_after`: the steps that it took as found.
    """
    survival = OomSurvival(Journal(record), bench, deadline, Stack.of(program, known), died_after)
    deadly = tuple(finding for finding in diagnosis.findings if finding.ends_run)
    kept = _Rescue(survival, allow).of(_proposals(candidates(program, deadly, catalogue)))
    if kept is None:
        return Outcome(survival.journal.verdicts, None)
    record(PatchAccepted(diff=kept.patch.text, fixers=list(kept.names)))
    return Outcome(survival.journal.verdicts, kept.patch, stack=kept)


def _proposals(found: Iterable[Candidate]) -> Iterator[Proposal]:
    """Each fixer once, with all that names it, as the findings name them."""
    named: dict[str, list[Candidate]] = {}
    for candidate in found:
        named.setdefault(candidate.fixer.name, []).append(candidate)
    for some in named.values():
        yield Proposal(some[0].fixer, tuple(one.finding for one in some))


@dataclass(frozen=True)
class _Rescue:
    survival: OomSurvival
    allow: frozenset[Gate]

    def of(self, proposals: Iterable[Proposal]) -> Stack | None:
        """The program with what makes it run; None where nothing does."""
        short: list[Short] = []
        for proposal in proposals:
            found, variants = self._treatment(proposal)
            ended = self._first_that_runs(found, variants) if variants else None
            if isinstance(ended, Short):
                short.append(ended)
            elif ended is not None and self._holds(found, variants, ended):
                return ended.stack
        return rescue_together(self.survival, short, self.allow)

    def _treatment(self, proposal: Proposal) -> tuple[Proposal, Sequence[Variant]]:
        """Return what it would treat, with the settings that may be tried; all else that it says is told."""
        name, journal, stack = proposal.fixer.name, self.survival.journal, self.survival.original
        try:
            found = ask(stack, proposal)
        except TookTooLong as error:
            journal.tell_of(Verdict(name, Decision.NOT_TRIED, str(error)), proposal)
            return proposal, ()
        except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
            journal.tell_of(Verdict(name, Decision.FAILED, f"the fixer itself failed: {error!r}"), proposal)
            return proposal, ()
        for _, text in found.advice:
            journal.tell_of(Verdict(name, Decision.ADVICE, text), proposal)
        allowed = [variant for variant in found.variants if variant.fixer.gate in self.allow]
        if found.variants and not allowed:
            diff = stack.diff(found.variants[0].answer)
            journal.tell_of(Verdict(name, Decision.NOT_TRIED, not_allowed(found.variants), diff=diff), proposal)
        return found.proposal, allowed

    def _first_that_runs(self, proposal: Proposal, variants: Sequence[Variant]) -> Alive | Short | None:
        """The cheapest setting with which the program runs, as far as there is time to look for it."""
        last, alive = len(variants) - 1, None
        for at in dict.fromkeys((0, last, *range(last))):
            variant = variants[at]
            if alive is not None and not self.survival.has_time:
                break
            if self.survival.deadline.passed:
                diff = self.survival.original.diff(variant.answer)
                early = Verdict(variant.fixer.name, Decision.NOT_TRIED, OUT_OF_BUDGET, dict(variant.setting), diff=diff)
                self.survival.journal.tell_of(early, proposal)
                return None
            stack = self._with(proposal, variant)
            summary = variant.answer.summary
            verdict = self.survival.begin(proposal, variant.fixer, variant.setting, summary, stack)
            seen = self.survival.run(stack)
            if seen.failure is None:
                alive = Alive(stack, seen)
                if at < last:
                    break
                continue
            self.survival.journal.tell_of(died(verdict, seen.failure), proposal)
            if at == last and seen.failure.decision is Decision.OUT_OF_MEMORY:
                return Short(proposal, seen.reached)
            if seen.failure.decision is Decision.NOT_TRIED and alive is None:
                return None  # settings that save more take no less time
        return alive

    def _holds(self, proposal: Proposal, variants: Sequence[Variant], alive: Alive) -> bool:
        """Whether its numbers do, as far as they can be compared; told either way."""
        (kept,) = alive.stack.kept
        leaner = None if kept.setting == variants[-1].setting else self._with(proposal, variants[-1])
        gate = self.survival.gate(alive.stack, leaner)
        summary = f"{self.survival.how(alive.seen)}; {self.survival.say_without('it')}; {gate.detail}"
        told = verdict_on(kept, alive.stack, summary, gate)
        self.survival.journal.tell_of(told, proposal)
        return told.decision is Decision.KEPT

    def _with(self, proposal: Proposal, variant: Variant) -> Stack:
        return self.survival.original.with_fix(variant.fixer, proposal.findings, variant.setting, variant.answer)
