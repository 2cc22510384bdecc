"""Many fixes in one trial: what the stack would be with all of them, and what that promises.

One by one, ten fixes take ten trials, most of them on a program that is still slow. Tried at once they take one; what
each of them gives is then measured beside all others, by leaving it out of a program that is fast by then. Where the
trial of all breaks down, halves of them are tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from diagnose.compose.journal import Journal
from diagnose.compose.proposals.candidates import Candidate, followed
from diagnose.compose.proposals.constraints import excluded_by
from diagnose.compose.proposals.line_coverage import Treated, promised_together_ns
from diagnose.compose.proposals.proposals import Proposal, least_sure, next_up
from diagnose.compose.proposals.proposed_edits import ProposedEdits, ask
from diagnose.compose.search.single_trial import BREAKS_DOWN
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Fixer
from diagnose.model import TOGETHER, Confidence, Decision, Gate
from diagnose.program import Program, patch
from diagnose.session import TrialStarted
from diagnose.trial.bench import Bench, Trial
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.numerics_check import PartialStack

LEAST = 3
"""Fewer are tried one by one, if there is time for that: it says more of each."""
_BY_TIME = frozenset({Decision.NO_CHANGE, Decision.SLOWER, Decision.UNEXPLAINED})
SAVES_LITTLE = frozenset({Decision.NO_CHANGE, Decision.SLOWER})
"""The decisions on what may save more beside other fixes: a device that works faster waits for its host."""
_COARSEST_FIRST = ("fp8", "bf16", "fp16", "tf32")


@dataclass(frozen=True)
class Bundle:
    """Fixes for one trial."""

    members: tuple[ProposedEdits, ...]
    """The members in the order in which they are put on; the first variant of each is tried."""
    stack: Stack
    """The stack with all of them in it."""
    harmless: Stack
    """The stack with those of them that do not change the training; they are put on first."""

    @property
    def trains(self) -> bool:
        """Whether one of them changes the training."""
        return any(fixer.gate is Gate.TRAINING for fixer in self.fixers)

    @property
    def without_training(self) -> Bundle:
        """Return the bundle of those members that do not change the training."""
        members = [member for member in self.members if member.variants[0].fixer.gate is not Gate.TRAINING]
        return Bundle(tuple(members), self.harmless, self.harmless)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its fixers."""
        return tuple(member.proposal.fixer.name for member in self.members)

    @property
    def foreseen(self) -> frozenset[str]:
        """The names of those that treat what is no finding yet."""
        return frozenset(kept.fixer.name for kept in self.stack.kept if kept.foreseen) & frozenset(self.names)

    @property
    def rules(self) -> frozenset[str]:
        """The rules whose findings the bundle treats."""
        treated = (member.proposal for member in self.members if member.proposal.fixer.name not in self.foreseen)
        return frozenset(finding.rule for proposal in treated for finding in proposal.findings)

    @property
    def fixers(self) -> tuple[Fixer, ...]:
        """The fixers of the bundle, each with the gate that its answer promises."""
        return tuple(member.variants[0].fixer for member in self.members)

    @property
    def plan(self) -> Plan:
        """The plan of a trial of all its members."""
        harmless = self.without_training
        if not self.trains or not harmless.members:
            return Plan(as_one(self.fixers), promised=self.share)
        part, saved_ns = as_one(harmless.fixers), harmless.predicted_ns
        return Plan(as_one(self.fixers), part=part, saved_ns=saved_ns, promised=self.share)

    @property
    def predicted_ns(self) -> int:
        """Per step, with every finding counted once, however many of the fixers treat it."""
        treated: dict[str, list[Treated]] = {}
        for proposal in (member.proposal for member in self.members):
            for finding, left in proposal.parts:
                treated.setdefault(finding.rule, []).append((finding, left))
        return sum(promised_together_ns(some) for some in treated.values())

    @property
    def share(self) -> float:
        """The predicted saving, as a share of the step in which the findings were made."""
        findings = (finding for member in self.members for finding in member.proposal.findings)
        largest = max(findings, key=lambda finding: finding.recoverable_ns)
        return largest.share * self.predicted_ns / largest.recoverable_ns if largest.recoverable_ns else 0.0

    @property
    def prediction(self) -> Confidence:
        """The confidence of the predicted saving. Fixes that work together save more than the limits of each: a sum of
        those is none.
        """
        least = least_sure(member.proposal.prediction for member in self.members)
        return Confidence.HINT if least is Confidence.BOUND else least


def gather(
    stack: Stack, queue: Sequence[Candidate], allow: Collection[Gate], on_ask: Callable[[Fixer], None] = lambda _: None
) -> Bundle:
    """All fixes of the queue that go together, each put on top of those before it.

    What changes the training, where that is allowed, comes last. Left for later: what is not judged by the step's time
    alone, what excludes one that is in already or takes back what that wrote (two cures of one ailment), a plan that
    one of the others makes obsolete, and a fixer that fails. `on_ask` is told who is asked, which takes a while where
    programs are long.
    """
    gathered = Gathering(stack, allow, on_ask=on_ask)
    bold = gathered.put_on(queue, trains=False)
    harmless = gathered.stack
    if bold:
        again = followed(queue, stack.texts, harmless.texts)
        # What rests on one of them had nothing to change before it.
        due = [one for one in again if one.fixer.name in bold or not bold.isdisjoint(one.fixer.after)]
        gathered.put_on(due, trains=True)
    return Bundle(tuple(gathered.members), gathered.stack, harmless)


class Gathering:
    """The fixes that a bundle under construction holds so far."""

    def __init__(
        self,
        base: Stack,
        allow: Collection[Gate],
        stack: Stack | None = None,
        members: Sequence[ProposedEdits] = (),
        on_ask: Callable[[Fixer], None] = lambda _: None,
    ) -> None:
        """`stack` has `members` on `base`."""
        self.base, self.stack = base, stack or base
        self.members = list(members)
        self._allow = allow
        self._on_ask = on_ask

    def put_on(self, queue: Sequence[Candidate], *, trains: bool | None, foreseen: bool = False) -> set[str]:
        """Put on all that fit and change the training, or not, as asked (None: either); return the names of those that
        do the other."""
        left, other = list(queue), set[str]()
        while left:
            proposal = next_up(left)
            left = [one for one in left if one.fixer.name != proposal.fixer.name]
            below = self.stack
            found = self._ask(proposal, trains=trains, foreseen=foreseen)
            if self.stack is not below:
                left = followed(left, below.texts, self.stack.texts)
            elif found is not None:
                other.add(proposal.fixer.name)
        return other

    def _ask(self, proposal: Proposal, *, trains: bool | None, foreseen: bool) -> bool | None:
        """Put it on if it does what is asked for; whether it changes the training, None where it has no place here."""
        if any(not finding.asks_for_time for finding in proposal.findings):
            return None
        self._on_ask(proposal.fixer)
        try:
            found = ask(self.stack, proposal)
        except Exception:  # noqa: BLE001 - a fixer may be the user's own; its own trial tells how it fails
            return None
        allowed = [one for one in found.variants if one.fixer.gate in self._allow]
        # Where one of its settings changes no training, the others wait for the choice between all of them.
        fits = [one for one in allowed if one.fixer.gate is not Gate.TRAINING] or allowed
        if not fits or excluded_by(proposal.fixer, [kept.fixer for kept in self.stack.kept]):
            return None
        if takes_back(self.base.texts, self.stack.texts, fits[0].answer.files):
            return None
        chosen = fits[0]
        changes_training = chosen.fixer.gate is Gate.TRAINING
        if trains is not None and changes_training is not trains:
            return changes_training
        self.members.append(ProposedEdits(found.proposal, tuple(fits), found.advice))
        self.stack = self.stack.with_fix(
            chosen.fixer, found.proposal.findings, chosen.setting, chosen.answer, together=True, foreseen=foreseen
        )
        return changes_training


def as_one(fixers: Sequence[Fixer]) -> Fixer:
    """A fixer that stands for all of these: the boldest promise, and the sum of what they say will move."""
    formats = {fixer.rounds_to for fixer in fixers}
    unexplained = any(fixer.gate is Gate.TRAINING and fixer.rounds_to is None for fixer in fixers)
    return Fixer(
        TOGETHER,
        lambda _request: None,
        max((fixer.gate for fixer in fixers), key=lambda gate: gate.boldness),
        _mechanism(fixers),
        # No number format explains what a fix changes that changes the training by something else.
        rounds_to=None if unexplained else next((name for name in _COARSEST_FIRST if name in formats), None),
        changes_loading=any(fixer.changes_loading for fixer in fixers),
        order=max(fixers, key=lambda fixer: (fixer.brings_compiler, fixer.compiles, fixer.order)).order,
    )


def try_bundle(
    bench: Bench,
    journal: Journal,
    bundle: Bundle,
    stack: Stack,
    original: Program,
    baseline: Program,
    patched: Program,
    harmless: Program | None = None,
) -> Trial:
    """The common trial of a bundle, told: `baseline` has the stack in it, `patched` the bundle too.

    `harmless` has in it what does not change the training, where there is something that does: the numbers of that
    part are held against the original's, and the training of the whole against its.
    """
    diff = patch.diff(stack.texts, bundle.stack.texts, stack.program.root)
    summary = f"{', '.join(bundle.names)}, at once"
    journal.record(
        TrialStarted(fixer=TOGETHER, setting={}, predicted_ns=bundle.predicted_ns, summary=summary, diff=diff)
    )
    # With only bitwise fixes below it, the original has the numbers of the baseline, and is captured already.
    numbers = original if stack.bitwise else baseline
    part = bundle.without_training.fixers
    halfway = PartialStack(harmless, as_one(part)) if harmless is not None and part else None
    figures: dict[str, Any] = {"predicted_ns": bundle.predicted_ns, "prediction": bundle.prediction, "diff": diff}
    telling, sure = journal.telling(TOGETHER), journal.telling_sure(None, **figures)
    trial = bench.attempt(
        as_one(bundle.fixers), baseline, patched, telling, numbers, halfway, promised=bundle.share, on_sure=sure
    )
    journal.tell(replace(trial.verdict, **figures))
    return trial


def parts_left(bundle: Bundle, decision: Decision) -> list[frozenset[str]]:
    """Return the parts to try next of a bundle that was not kept, in order; empty where each fix has a trial of its
    own.

    Of one that broke down: what changes no training, then what does; else those put on first, then the others. Of one
    that was not faster, or not by what it claims: all that findings ask for, where more rode along. Of one that did not
    come to its end: what compiles nothing, where the compiler may have taken the time. Of one whose numbers could not
    be checked: the same, then what changes no bit, which needs no reference. What was only foreseen is in none of them:
    there is no finding yet that asks for it.
    """
    names = [name for name in bundle.names if name not in bundle.foreseen]
    if decision in _BY_TIME:
        return [frozenset(names)] if bundle.foreseen else []
    if decision not in BREAKS_DOWN:
        parts = [frozenset(fixer.name for fixer in bundle.fixers if not fixer.compiles)]
        if decision is Decision.UNVERIFIED:
            parts.append(frozenset(fixer.name for fixer in bundle.fixers if fixer.gate is Gate.BITWISE))
        return [part for part in (part & frozenset(names) for part in parts) if 1 < len(part) < len(names)][:1]
    middle = sum(fixer.gate is not Gate.TRAINING and fixer.name in names for fixer in bundle.fixers)
    middle = middle if bundle.trains else 0
    middle = middle or (len(names) + 1) // 2
    return [frozenset(names[:middle]), frozenset(names[middle:])]


def _mechanism(fixers: Sequence[Fixer]) -> str:
    """All measures in time; calls that wait, which are a count, show in the time that the device idles."""
    parts = dict.fromkeys(part for fixer in fixers for part in fixer.mechanism.split("+"))
    if set(parts) == {"sync_calls"}:
        return "sync_calls"
    measures = dict.fromkeys("idle" if part == "sync_calls" else part for part in parts)
    # Idle time holds all its kinds: to count one of them beside it would count that twice.
    return "+".join(part for part in measures if "idle" not in measures or not part.startswith("idle."))


_WORDS = re.compile(r"\w+")


def takes_back(before: Mapping[str, str], now: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether an edit from `now` to `after` removes what was written from `before` to `now`; texts by path.

    A line that was written may be written again with all of the words that are new in it: arguments are added to one
    call, and others of it are changed.
    """
    return any(
        not words >= new
        for path, text in after.items()
        for new, words in _rewritten(before.get(path, ""), now.get(path, ""), text)
    )


def _rewritten(before: str, now: str, after: str) -> Iterator[tuple[set[str], set[str]]]:
    """Yield, for each line of `now` that is neither in `before` nor in `after`, the words that are not in what it
    replaced, and those that stand in its place.
    """
    lines, following = now.splitlines(), after.splitlines()
    written = dict(_written(before.splitlines(), lines))
    for kind, begin, end, to, until in _opcodes(lines, following):
        if kind in ("replace", "delete"):
            words = _words_of(following[to:until])
            yield from ((written[at], words) for at in range(begin, end) if at in written)


def _written(original: list[str], lines: list[str]) -> Iterator[tuple[int, set[str]]]:
    """Yield the places of new lines, with their new words; one that was only indented, as under a `with`, is none."""
    for kind, start, stop, begin, end in _opcodes(original, lines):
        if kind != "equal":
            replaced = original[start:stop]
            there, words = {line.strip() for line in replaced}, _words_of(replaced)
            yield from (
                (at, _words_of([lines[at]]) - words) for at in range(begin, end) if lines[at].strip() not in there
            )


def _words_of(lines: Sequence[str]) -> set[str]:
    return {word for line in lines for word in _WORDS.findall(line)}


def _opcodes(one: list[str], other: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
