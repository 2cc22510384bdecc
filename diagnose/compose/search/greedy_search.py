"""One greedy pass over the fixers that the findings name, largest predicted saving first.

What fixers ask of each other is looked at before anything runs. Where many may go together they are tried at once (see
bundle.py), else one by one: a fix is then measured against the program with everything kept so far, so that two cures
of one ailment are not both kept. After each trial that kept something its own profiler window is read again: the
findings of the new state decide what is tried next, and what is gone is said to be gone. What is left in the end is
checked one out at a time and as a whole, and the number reported is that of the patched program alone against the
original alone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from diagnose.compose.dry_run import not_allowed
from diagnose.compose.journal import Journal, Record, listed
from diagnose.compose.outcome import Outcome
from diagnose.compose.proposals.candidates import Candidate, candidates, followed, review
from diagnose.compose.proposals.constraints import excluded_by
from diagnose.compose.proposals.fixes_without_finding import UNNAMED, is_named, unnamed
from diagnose.compose.proposals.proposals import Proposal, next_up
from diagnose.compose.proposals.proposed_edits import ProposedEdits, ask
from diagnose.compose.search.budget import OUT_OF_BUDGET, Budget
from diagnose.compose.search.budget_fit import affordable, better_apart, outbids
from diagnose.compose.search.bundle import LEAST, SAVES_LITTLE, Bundle, as_one, gather, parts_left, try_bundle
from diagnose.compose.search.copies import Copies
from diagnose.compose.search.final_check import FinalCheck
from diagnose.compose.search.latent_findings import in_words, with_foreseen
from diagnose.compose.search.leave_one_out import LeaveOneOut
from diagnose.compose.search.single_trial import Held, SingleTrials
from diagnose.compose.search.tuning import Tuning
from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Fixer
from diagnose.model import TOGETHER, Decision, Diagnosis, Gate, GateResult, Verdict
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import PatchAccepted
from diagnose.source.tree.time_limit import TookTooLong
from diagnose.trial.bench import Bench
from diagnose.trial.interruption import TimeIsUp, interrupted_at
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import format_ns
from diagnose.what_if import step_without

WITHOUT_ASKING = frozenset({Gate.BITWISE, Gate.ROUNDING})
"""Classes of fixes that are tried unless the user says otherwise."""
_FEW = 3
"""Fixes that are named of those that come next."""
MOST_TO_FORESEE = 4
"""One part in so many of the time that is left may pass while it is foreseen what kept fixes will bring to light."""


class GreedySearch:
    """The search for the fixes that hold together."""

    def __init__(
        self,
        program: Program,
        diagnosis: Diagnosis,
        known: RunContext,
        catalogue: Catalogue,
        record: Record,
        bench: Bench,
        schedule: Schedule,
        deadline: Deadline,
        allow: frozenset[Gate] = WITHOUT_ASKING,
    ) -> None:
        self._program, self._catalogue = program, catalogue
        self._journal = Journal(record)
        self._bench = bench
        self._copy = Copies(bench).of
        self._schedule = schedule
        self._deadline = deadline
        self._budget = Budget(bench, deadline, on_risk=self._journal.phase)
        self._sound: Stack | None = None
        """The newest state of which the numbers as a whole were held against the original's."""
        self._allow = allow
        self._stack = Stack.of(program, known)
        named = list(candidates(program, diagnosis.findings, catalogue))
        more = list(unnamed(diagnosis, known.facts, catalogue, {one.fixer.name for one in named}))
        self._queue = [*named, *more]
        self._done: set[str] = set()
        self._advised: set[str] = set()
        self._no_time: list[Proposal] = []
        self._looked_ahead = False
        """Whether a common trial has taken along what was foreseen."""
        self._apart = {one.fixer.name for one in more}
        """Fixers that have a trial of their own, if any."""
        self._excluded: dict[str, tuple[Proposal, Stack]] = {}
        """The proposals that must not stand beside a kept fix, with the stack that they were asked of."""
        self._groups: list[frozenset[str]] = []
        """Parts of a bundle that broke down, still to be tried: the next one last."""
        self._part = False
        """Whether the bundle that is due is one of them."""
        self._leaves_some = False
        """Whether the bundle that is due leaves out fixes that go together with it."""
        self._saved_little: list[frozenset[str]] = []
        """Bundles that did, and saved too little: they are tried again together with the others."""

    def run(self) -> Outcome:
        """Try everything that is worth it and allowed, then judge what was kept as a whole."""
        return replace(self._run(), no_time=tuple(self._no_time))

    def _run(self) -> Outcome:
        if not self._queue:
            return Outcome(self._journal.verdicts, None)
        original = patched = self._copy(self._stack, "original")
        self._bench.prepare(original)
        patched = self._try_all(original, patched)
        if not self._stack.kept:
            return Outcome(self._journal.verdicts, None)
        return self._finish(original, patched)

    def _try_all(self, original: Program, baseline: Program) -> Program:
        """Try all of the queue; the program with all that holds."""
        while self._queue:
            due = self._due()
            if due is not None:
                baseline = self._try(due, original, baseline)
        return baseline

    def _due(self) -> Bundle | ProposedEdits | None:
        """Return what to try now; None where the next of the queue turned out to be nothing to try."""
        bundle = self._bundle()
        if bundle is not None:
            part = self._affordable(bundle)
            if part is None:
                self._apart.update(bundle.names)  # each says for itself why it is not tried
                return None
            self._leaves_some = len(part.members) < len(bundle.members)
            if self._part or not self._is_outbid(part):
                return part
        alone = self._alone()
        return self._ready(self._next(alone)) if alone else None

    def _affordable(self, bundle: Bundle) -> Bundle | None:
        if not self._part and better_apart(bundle, self._budget):
            return None
        return affordable(bundle, self._stack, self._queue, self._allow, self._budget, self._saved_little)

    def _is_outbid(self, part: Bundle) -> bool:
        """Whether one fix saves more for its time than a part of a bundle."""
        return self._counts_time and outbids(self._next(self._alone()), part, self._budget)

    def _next(self, queue: Sequence[Candidate]) -> Proposal:
        """Return what promises most; of each second of its trial, once that is known and the seconds are counted."""
        return next_up(queue, (lambda fixer: self._budget.ns_to_keep(Plan(fixer))) if self._counts_time else None)

    @property
    def _counts_time(self) -> bool:
        """Whether there is a budget, and it is known how long trials take."""
        return self._deadline.at_ns is not None and self._bench.check_ns() > 0

    def _alone(self) -> list[Candidate]:
        """Return what may have a trial of its own now: not what waits for the trial of its part of a bundle."""
        waiting = frozenset[str]().union(*self._groups)
        return [one for one in self._queue if one.fixer.name not in waiting]

    def _try(self, due: Bundle | ProposedEdits, original: Program, baseline: Program) -> Program:
        """One trial; the baseline of the next one."""
        if isinstance(due, Bundle):
            return self._try_together(due, original, baseline) or baseline
        return self._try_alone(due, original, baseline) or baseline

    def _bundle(self) -> Bundle | None:
        """Return what may be tried at once; None where that is too little."""
        group = self._groups.pop() if self._groups else None
        some = [one for one in self._queue if one.fixer.name not in self._apart]
        some = [one for one in some if group is None or one.fixer.name in group]
        self._part = group is not None
        # Where time is short, two may have to go together.
        least = LEAST if group is None and self._deadline.at_ns is None else 2
        if len({one.fixer.name for one in some}) >= least and not self._deadline.passed:
            found = gather(self._stack, some, self._allow, self._on_ask)
            if len(found.members) >= least:
                return found
        self._apart.update(one.fixer.name for one in some)
        return None

    def _with_foreseen(self, bundle: Bundle) -> Bundle:
        """The first bundle, with what its savings will bring to light; of a program in which nothing is kept yet."""
        known = self._stack.known
        if self._stack.kept or self._looked_ahead or not known.traces:
            return bundle
        self._looked_ahead = True
        waiting = [one.fixer for one in self._queue]
        with contextlib.suppress(TimeIsUp), interrupted_at(self._deadline.part(MOST_TO_FORESEE)):
            found = step_without(known.traces[0], self._catalogue, bundle.rules)
            return with_foreseen(bundle, self._stack, found, self._program, self._catalogue, waiting, self._done)
        return bundle

    def _finish(self, original: Program, patched: Program) -> Outcome:
        """Set the knobs, take out what is not needed, try what that had excluded, then judge the whole."""
        patched = self._tune(patched)
        check = LeaveOneOut(self._bench, self._copy, self._journal, self._budget)
        self._stack, patched = check.run(self._stack, patched)
        set_before, self._queue = self._stack.names, self._released()
        patched = self._tune(self._try_all(original, patched), set_before)
        if not self._stack.kept:
            return Outcome(self._journal.verdicts, None)
        final = FinalCheck(self._bench, self._copy, self._journal, self._budget, self._schedule)
        judged = final.judge(self._stack, original, patched, self._sound)
        if judged is None:
            return Outcome(self._journal.verdicts, None)
        stack, patched, gate = judged
        measured = final.compare_alone(stack, original, patched, gate)
        return Outcome(self._journal.verdicts, stack.patch, measured, stack)

    def _tune(self, patched: Program, set_before: Collection[str] = ()) -> Program:
        """Set the knobs of all kept fixes but those that were `set_before`; the program with all that holds."""
        tuning = Tuning(self._bench, self._copy, self._journal, self._budget)
        self._stack, patched = tuning.run(self._stack, patched, self._allow, set_before)
        self._sound = self._stack if self._budget.held else self._sound
        return patched

    def _ready(self, proposal: Proposal) -> ProposedEdits | None:
        """Return what the fixer would do, where that is to be tried now; what stands against it is told."""
        fixer = proposal.fixer
        self._on_ask(fixer)
        try:
            found = ask(self._stack, proposal)
        except TookTooLong as error:
            self._settle(fixer)
            self._give_up(ProposedEdits(proposal), str(error), no_time=True)
            return None
        except Exception as error:  # noqa: BLE001 - a fixer may be the user's own; a broken one must not hide the others
            self._settle(fixer)
            self._journal.tell_of(Verdict(fixer.name, Decision.FAILED, f"the fixer itself failed: {error!r}"), proposal)
            return None
        rival = excluded_by(fixer, [kept.fixer for kept in self._stack.kept])
        if rival is None:
            self._advise(found)
        allowed = tuple(variant for variant in found.variants if variant.fixer.gate in self._allow)
        treated = {finding.rule for finding in found.proposal.findings} if found.variants else set()
        self._queue = [one for one in self._queue if one.fixer.name != fixer.name or one.finding.rule in treated]
        if rival is not None:
            self._excluded[fixer.name] = (proposal, self._stack)
        if not found.variants:
            if not found.advice and is_named(proposal):
                self._journal.tell_of_none(fixer.name)
            return None
        if self._next(self._alone()).fixer.name != fixer.name:
            return None  # it treats less than it was proposed for, and others promise more now
        self._settle(fixer)
        reason = OUT_OF_BUDGET if self._deadline.passed else None
        if rival is not None:
            reason = f"it excludes {rival}, which is kept"
        elif not allowed:
            reason = not_allowed(found.variants)
        if reason is not None:
            self._give_up(found, reason, no_time=reason == OUT_OF_BUDGET)
            return None
        return replace(found, variants=allowed)

    def _on_ask(self, fixer: Fixer) -> None:
        """Where the program is large, to look at it takes a while."""
        self._bench.go_on()
        self._journal.phase("looking at what each fix would change", fixer.name)

    def _released(self) -> list[Candidate]:
        """Return what was refused beside a fix that has been taken out again; each has a trial of its own now."""
        free: list[Candidate] = []
        for name, (proposal, stack) in self._excluded.items():
            if excluded_by(proposal.fixer, [kept.fixer for kept in self._stack.kept]) is None:
                self._done.discard(name)
                self._apart.add(name)
                refused = [Candidate(one, proposal.fixer) for one in proposal.findings]
                free += followed(refused, stack.texts, self._stack.texts)
        self._excluded = {}
        return free

    def _settle(self, fixer: Fixer) -> None:
        """Note that a proposal has had its turn: no finding names it any more."""
        self._done.add(fixer.name)
        self._queue = [one for one in self._queue if one.fixer.name != fixer.name]

    def _advise(self, found: ProposedEdits) -> None:
        """Tell what is left to the user, each text once."""
        fixer = found.proposal.fixer
        for finding, text in found.advice:
            if text not in self._advised and finding.rule != UNNAMED:
                self._advised.add(text)
                there = Proposal(fixer, (self._stack.as_found(finding),))
                self._journal.tell_of(Verdict(fixer.name, Decision.ADVICE, text), there)

    def _try_together(self, bundle: Bundle, original: Program, baseline: Program) -> Program | None:
        """One trial of many fixes; the new baseline if they hold. Where they break down, halves of them come next."""
        bundle = self._with_foreseen(bundle)
        whole = as_one(bundle.fixers)
        patched = self._copy(bundle.stack, "together")
        harmless = self._copy(bundle.harmless, "harmless") if bundle.trains else None
        self._begin(bundle.plan, bundle.names)
        trial = try_bundle(self._bench, self._journal, bundle, self._stack, original, baseline, patched, harmless)
        if trial.verdict.decision is Decision.KEPT:
            self._accept_all(bundle, trial.verdict)
            self._look_again(whole, trial.traces, trial.patched_ns)
            return patched
        if self._leaves_some and trial.verdict.decision in SAVES_LITTLE:
            self._saved_little.append(frozenset(bundle.names) - bundle.foreseen)
            self._looked_ahead = False
            return None
        groups = parts_left(bundle, trial.verdict.decision)
        self._groups += reversed(groups)
        if not groups:
            self._apart.update(bundle.names)
        return None

    def _accept_all(self, bundle: Bundle, found: Verdict) -> None:
        """Each is kept for now on the word of their common trial."""
        for member in bundle.members:
            self._settle(member.proposal.fixer)
            self._advise(member)
        self._grow(bundle.stack, as_one(bundle.fixers), found.gate)
        beside = "1 other" if len(bundle.members) == 2 else f"{len(bundle.members) - 1} others"
        said = f"tried with {beside} at once, which together gave: {found.summary}"
        for kept, member in zip(self._stack.kept[-len(bundle.members) :], bundle.members, strict=True):
            below, variant = kept.below, member.variants[0]
            why = f"{in_words(member.proposal.findings, bundle.rules)}; " if kept.foreseen else ""
            verdict = Verdict(
                kept.fixer.name,
                Decision.KEPT,
                why + said,
                setting=dict(variant.setting),
                resolution=found.resolution,
                gate=found.gate,
                diff=below.diff(variant.answer),
            )
            self._journal.tell_of(verdict, member.proposal)
        self._journal.record(PatchAccepted(diff=self._stack.patch.text, fixers=list(self._stack.names)))

    def _try_alone(self, ready: ProposedEdits, original: Program, baseline: Program) -> Program | None:
        """One fix, where there is time for it; the new baseline if it holds."""
        reason = self._budget.refused_trial(ready)
        if reason is not None:
            self._give_up(ready, reason, no_time=True)
            return None
        self._begin(Plan(ready.variants[0].fixer, promised=ready.proposal.share), ())
        alone = SingleTrials(self._bench, self._copy, self._journal, self._budget)
        held = alone.run(ready, self._stack, original, baseline)
        if held is None:
            return None
        self._accept(ready.proposal, held)
        self._look_again(held.variant.fixer, held.trial.traces, held.trial.patched_ns)
        return held.patched

    def _begin(self, plan: Plan, members: Sequence[str]) -> None:
        """A trial is next: told with the time that is left, and with what comes after it."""
        self._budget.begins(plan)
        name, left_ns = plan.fixer.name, self._deadline.left_ns
        if left_ns is None:
            return
        later = dict.fromkeys(one.fixer.name for one in self._queue if one.fixer.name not in (name, *members))
        few = [*itertools.islice(later, _FEW), *([f"{len(later) - _FEW} more"] if len(later) > _FEW else [])]
        then = f", then {listed(few)}" if few else ""
        self._journal.phase(f"{format_ns(left_ns)} of the budget left", f"now {name}{then}")

    def _accept(self, proposal: Proposal, held: Held) -> None:
        variant, gate = held.variant, held.trial.verdict.gate
        grown = self._stack.with_fix(
            variant.fixer, proposal.findings, variant.setting, variant.answer, tuned=held.tuned
        )
        self._grow(grown, variant.fixer, gate)
        self._journal.record(PatchAccepted(diff=self._stack.patch.text, fixers=list(self._stack.names)))

    def _grow(self, stack: Stack, fixer: Fixer, gate: GateResult | None) -> None:
        """The stack is this one now, by what passed a gate; what waits has its places in its lines."""
        self._queue = followed(self._queue, self._stack.texts, stack.texts)
        self._stack = stack
        self._budget.grew(fixer, gate)
        if self._budget.held:
            self._sound = stack

    def _look_again(self, fixer: Fixer, windows: Sequence[Path], step_ns: int | None) -> None:
        """Let the findings of the new state, whose untraced step is known from its trial, decide what is tried next."""
        known, names = self._stack.known, self._stack.names
        try:
            with interrupted_at(self._deadline):
                seen = review(self._queue, windows, self._program, known, self._catalogue, step_ns, names)
        except TimeIsUp:
            return  # each that is left says so
        self._queue = [one for one in seen.queue if one.fixer.name not in self._done]
        for candidate, fate in seen.gone:
            if candidate.fixer.name not in self._done:
                self._settle(candidate.fixer)
                since = "the others were" if fixer.name == TOGETHER else f"{fixer.name} was"
                reason = f"{fate} since {since} kept"
                self._give_up(ProposedEdits(Proposal(candidate.fixer, (candidate.finding,))), reason)

    def _give_up(self, found: ProposedEdits, reason: str, *, no_time: bool = False) -> None:
        if no_time:
            self._no_time.append(found.proposal)
        diff = self._stack.diff(found.variants[0].answer) if found.variants else ""
        verdict = Verdict(found.proposal.fixer.name, Decision.NOT_TRIED, reason, diff=diff)
        self._journal.tell_of(verdict, found.proposal)
