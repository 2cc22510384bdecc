"""What the end needs beside the last runs: nothing where the numbers of the whole were held already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from composing import ITEM, LOADER, Stage, finding, fixer, replacing

from diagnose.compose.proposals import candidates
from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.proposals.proposed_edits import ProposedEdits, Variant
from diagnose.compose.search import budget_fit
from diagnose.compose.search.budget import Budget
from diagnose.compose.search.budget_fit import affordable
from diagnose.compose.search.bundle import Bundle
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Edits, Fixer
from diagnose.model import TOGETHER, Decision, Gate, GateResult
from diagnose.session import PatchAccepted, fold
from diagnose.trial.bench import Bench
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.schedule import Deadline

EXACT = fixer("exact", replacing("a", "b"))
ROUNDS = fixer("rounds", replacing("a", "b"), Gate.ROUNDING)
TRAINS = fixer("trains", replacing("a", "b"), Gate.TRAINING)
COMPILES = fixer("compiles", replacing("a", "b"), Gate.ROUNDING, order=60)
RECORDS = fixer("records", replacing("a", "b"), Gate.BITWISE, order=60)
MODEL = fixer("narrow-model", replacing("model = 3", "model = 30"), Gate.TRAINING)


class Costly:
    """A trial takes 10 ns, at least 2 of them until its first pair; each of two last runs 10, the numbers of a whole
    50, whole runs that were made once already `whole_runs_ns`."""

    whole_runs_ns = 0

    def trial_ns(self, _plan: Plan, *, at_best: bool = False) -> int:
        return 5 if at_best else 10

    def least_ns(self, _plan: Plan) -> int:
        return 2

    def check_ns(self) -> int:
        return 10

    def final_ns(self, *, held: bool = False, runs: int | None = None, rerun: bool = False) -> int:
        return 10 * (runs or 2) + (0 if held else 50) + (self.whole_runs_ns if rerun else 0)


def budget(left_ns: int, *kept: Fixer) -> Budget:
    made = Budget(cast("Bench", Costly()), Deadline(left_ns, lambda: 0))
    for one in kept:
        made.grew(one, GateResult(one.gate, True, ""))
    return made


@pytest.mark.parametrize(
    ("kept", "held"),
    [
        ((EXACT,), True),
        ((EXACT, ROUNDS), True),
        ((ROUNDS, TRAINS), True),
        ((TRAINS, EXACT), True),  # with the same bits, the same training
        ((TRAINS, ROUNDS), False),  # three times the error of what was three times the original's
        ((TRAINS, ROUNDS, EXACT), False),
        ((TRAINS, ROUNDS, TRAINS), True),  # whose training was held again
        ((TRAINS, RECORDS), False),  # shows late
        ((COMPILES,), False),
        ((COMPILES, TRAINS), True),
    ],
)
def test_what_adds_up(kept: tuple[Fixer, ...], held: bool) -> None:
    assert budget(100, *kept).held is held


def test_a_gate_that_fell_back_to_rounding_is_no_exact_one() -> None:
    made = budget(100, TRAINS)
    made.grew(EXACT, GateResult(Gate.ROUNDING, True, "the original is not deterministic"))
    assert not made.held


def test_time_is_set_aside_only_for_what_will_be_asked() -> None:
    assert budget(20, TRAINS).refused(EXACT) is None
    assert budget(20, TRAINS).refused(ROUNDS) is not None
    assert budget(70, TRAINS).refused(ROUNDS) is None
    assert budget(19, TRAINS).refused(EXACT) is not None


def answers(share: float, *fixers: Fixer) -> ProposedEdits:
    made = replace(finding("rule", 9, fixers[0].name), share=share)
    variants = tuple(Variant({}, Edits({}, "made up"), one) for one in fixers)
    return ProposedEdits(Proposal(fixers[0], (made,)), variants)


@pytest.mark.parametrize(
    ("left_ns", "share", "begun", "risky"),
    [
        (20, 0.3, True, False),
        (15, 0.3, True, True),  # 5 at best, and a last run
        (15, 0.05, True, True),  # all that lacks time is the last run, and nothing was tried
        (9, 0.05, False, False),  # a saving that few pairs do not show is not worth being cut short
        (5, 0.08, True, True),  # while nothing is kept, no last run has its time
        (4, 0.08, False, False),
        (4, 0.3, True, True),  # nothing was tried: estimates may be wrong
        (1, 0.3, False, False),  # it would end before its first pair
    ],
)
def test_what_only_an_assumption_stands_against_is_begun_where_it_promises_much(
    left_ns: int, share: float, begun: bool, risky: bool
) -> None:
    told: list[str] = []
    made = Budget(
        cast("Bench", Costly()), Deadline(left_ns, lambda: 0), on_risk=lambda *words: told.append(": ".join(words))
    )
    reason = made.refused_trial(answers(share, ROUNDS, ROUNDS))
    assert (reason is None) is begun
    assert told == []  # another may still be tried first
    if begun:
        made.begins(Plan(ROUNDS, promised=share))
    if risky:
        assert told == [
            "trying rounds although it may be cut short: the budget leaves "
            f"{f'only {left_ns - 10} ns' if left_ns > 10 else 'no time'} before the last runs "
            "(this would take about 10 ns, the last runs 10 ns)"
        ]
    else:
        assert told == []


def test_nothing_that_promises_much_is_given_up_with_a_third_of_the_budget_left() -> None:
    left_ns = 90
    made = Budget(cast("Bench", Costly()), Deadline(90, lambda: 90 - left_ns), kept=(ROUNDS,))
    large, small = Plan(ROUNDS, promised=0.1), Plan(ROUNDS, promised=0.08)
    made.begins(large)
    left_ns = 14  # of which the last run takes ten, and a trial five at best
    assert not made.risks(large) and not made.risks(small)
    made = Budget(cast("Bench", Costly()), Deadline(42, lambda: 0), kept=(ROUNDS,))
    made.begins(large)
    made.deadline = Deadline(14, lambda: 0)
    assert made.risks(large) and not made.risks(small)


@pytest.mark.parametrize(
    ("left_ns", "compiled_ns", "tried"),
    [
        (180, 1, {"exact", "rounds"}),  # nearly all that is promised, a little sooner; the other fits behind it
        (130, 1, {"exact", "rounds"}),  # the other does not, and promises next to nothing
        (80, 1, {"exact", "rounds"}),
        (180, 5, {"exact", "rounds", "compiles"}),  # the minutes of compiling are worth it
        (None, 1, {"exact", "rounds", "compiles"}),  # time is not counted
    ],
)
def test_what_compiles_nothing_goes_first_where_it_saves_more_for_its_time(
    left_ns: int | None, compiled_ns: int, tried: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Costly):
        def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:  # noqa: ARG002 - the bench's
            return 60 if plan.fixer.brings_compiler else 55

    promised = {EXACT: 9, ROUNDS: 9, COMPILES: compiled_ns}
    members = [promising(one, promised_ns, one.name) for one, promised_ns in promised.items()]
    stack = cast("Stack", SimpleNamespace(kept=()))

    def gathered(_stack: Stack, queue: list[Candidate], _allow: Collection[Gate]) -> Bundle:
        wanted = {one.fixer.name for one in queue}
        return Bundle(tuple(one for one in members if one.proposal.fixer.name in wanted), stack, stack)

    monkeypatch.setattr(budget_fit, "gather", gathered)
    queue = [Candidate(one.proposal.findings[0], one.proposal.fixer) for one in members]
    made = Budget(cast("Bench", Slow()), Deadline(left_ns, lambda: 0))
    found = affordable(Bundle(tuple(members), stack, stack), stack, queue, frozenset(Gate), made)
    assert found is not None
    found_names = frozenset(found.names)
    assert found_names == tried
    # What saved too little without the compiler has another trial with it.
    if "compiles" not in tried:
        again = affordable(Bundle(tuple(members), stack, stack), stack, queue, frozenset(Gate), made, [found_names])
        assert again is not None and "compiles" in again.names


@pytest.mark.parametrize(("left_ns", "begun"), [(16, True), (12, False)])
def test_a_clear_saving_is_tried_where_it_may_well_end_in_time(left_ns: int, begun: bool) -> None:
    class Long(Costly):
        def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:  # noqa: ARG002 - the bench's
            return 20

    made = Budget(cast("Bench", Long()), Deadline(left_ns, lambda: 0))
    assert (made.refused_trial(answers(0.08, EXACT)) is None) is begun
    assert made.refused_trial(answers(0.04, EXACT)) is not None


def test_what_may_be_cut_short_is_worth_less_for_its_time() -> None:
    """Of two fixes that promise as much for each second, the one that ends in time comes first."""

    class Long(Costly):
        def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:  # noqa: ARG002 - the bench's
            return 60 if plan.fixer is ROUNDS else 30

    for left_ns, chance in {30: 0.5, 45: 0.84, 1000: 1.0}.items():
        made = Budget(cast("Bench", Long()), Deadline(left_ns, lambda: 0))
        assert made.ns_to_keep(Plan(EXACT)) == pytest.approx(30 / chance, rel=0.01)
        assert made.ns_to_keep(Plan(ROUNDS)) >= 2 * made.ns_to_keep(Plan(EXACT))
    assert Budget(cast("Bench", Long()), Deadline(None)).ns_to_keep(Plan(ROUNDS)) == 60


@pytest.mark.parametrize(("promised_ns", "begun"), [(9, False), (1, True)], ids=["much", "little"])
def test_no_bundle_is_risked_that_would_not_end_where_one_of_its_fixes_promises_much(
    promised_ns: int, begun: bool
) -> None:
    class Dear(Costly):
        def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
            return 60 if plan.fixer.name == TOGETHER or not at_best else 20

    made = Budget(cast("Bench", Dear()), Deadline(30, lambda: 0))
    members = [promising(EXACT, promised_ns, "one"), *(promising(ROUNDS, 1, rule) for rule in ("two", "three"))]
    bundle = Bundle(tuple(members), cast("Stack", None), cast("Stack", None))
    stack = cast("Stack", SimpleNamespace(kept=()))
    assert (affordable(bundle, stack, [], frozenset(Gate), made) is bundle) is begun


@pytest.mark.parametrize(("alone_ns", "begun"), [(1, True), (40, False)], ids=["little", "as much for its time"])
def test_a_bundle_is_risked_beside_a_fix_that_fits_unless_that_saves_as_much_for_its_time(
    alone_ns: int, begun: bool
) -> None:
    class Dear(Costly):
        def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
            return 10 if plan.fixer.name == EXACT.name else 20 if at_best else 30

    made = Budget(cast("Bench", Dear()), Deadline(35, lambda: 0))
    promised = [(EXACT, alone_ns), (ROUNDS, 30), (replace(ROUNDS, name="also rounds"), 9)]
    bundle = Bundle(tuple(promising(one, ns, one.name) for one, ns in promised), *[cast("Stack", None)] * 2)
    assert made.refused(EXACT) is None and made.refused(ROUNDS) is not None
    stack = cast("Stack", SimpleNamespace(kept=()))
    assert (affordable(bundle, stack, [], frozenset(Gate), made) is bundle) is begun


def promising(one: Fixer, promised_ns: int, rule: str) -> ProposedEdits:
    made = finding(rule, promised_ns, one.name)
    return ProposedEdits(Proposal(one, (made,)), (Variant({}, Edits({}, "made up"), one),))


def test_what_is_left_out_leaves_a_whole_that_nobody_has_looked_at() -> None:
    assert budget(79, TRAINS).refused_check() is not None
    assert budget(80, TRAINS).refused_check() is None
    made = budget(30, TRAINS)
    made.changed()
    assert made.refused(EXACT) is not None


def test_what_is_left_out_leaves_time_for_the_whole_runs_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costly, "whole_runs_ns", 30)
    assert budget(109, TRAINS).refused_check() is not None
    assert budget(110, TRAINS).refused_check() is None
    assert budget(89, TRAINS).refused_drop() is not None
    assert budget(90, TRAINS).refused_drop() is None


def test_a_state_that_was_held_stays_where_it_cannot_be_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    fixers = (LOADER, ITEM, MODEL)
    findings = [finding(f"rule {one.name}", 9 - at, one.name) for at, one in enumerate(fixers)]
    decisions = {TOGETHER: Decision.NO_CHANGE, **{one.name: Decision.KEPT for one in fixers}}
    made = Stage(tmp_path, fixers, findings, decisions, allow=frozenset(Gate))
    made.bench.gate_passes = None
    outcome = made.run()
    assert outcome.patch is not None
    assert all(one.decision is Decision.KEPT for one in outcome.verdicts)
    assert any("could not be checked" in warning for warning in fold(made.events).warnings)


def test_a_rounding_fix_on_a_trained_state_goes_where_its_whole_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    late = fixer("late", replacing("import torch\n", "import torch  # late\n"), Gate.ROUNDING, after=("narrow-model",))
    fixers = (LOADER, MODEL, late)
    findings = [finding(f"rule {one.name}", 9 - at, one.name) for at, one in enumerate(fixers)]
    decisions = {TOGETHER: Decision.NO_CHANGE, **{one.name: Decision.KEPT for one in fixers}}
    made = Stage(tmp_path, fixers, findings, decisions, allow=frozenset(Gate))
    made.bench.gate_by_text = {"# late": None}
    outcome = made.run()
    told = {one.fixer: one for one in outcome.verdicts}
    assert told["late"].decision is Decision.UNVERIFIED
    assert told["late"].summary.startswith("not kept: beside faster-loader, narrow-model its numbers could not be")
    assert outcome.patch is not None
    assert b"late" not in (outcome.patch.changes[0].after or b"")
    accepted = [event.fixers for event in made.events if isinstance(event, PatchAccepted)]
    assert accepted[-1] == ["faster-loader", "narrow-model"]


HARMLESS = (
    LOADER,
    ITEM,
    fixer("more-imports", replacing("import torch\n", "import os\nimport torch\n")),
)
BOLD = tuple(fixer(f"bold-{at}", replacing("model = 3", f"model = 3  # {at}"), Gate.TRAINING) for at in range(3))


def test_what_is_too_long_for_a_common_trial_says_so_beside_kept_fixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but what changes the training is left to try, and no part of that takes less time."""
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    fixers = (*HARMLESS, *BOLD)
    findings = [finding(f"rule {one.name}", 9 - at, one.name) for at, one in enumerate(HARMLESS)]
    findings += [replace(finding(f"rule {one.name}", 1, one.name), share=0.01) for one in BOLD]
    decisions = {TOGETHER: Decision.KEPT, **{one.name: Decision.KEPT for one in fixers}}
    made = Stage(tmp_path, fixers, findings, decisions, Deadline(100, lambda: 0), frozenset(Gate))
    made.bench.training_takes_ns = 200
    told = {one.fixer: one for one in made.run().verdicts}
    assert all(told[one.name].decision is Decision.KEPT for one in HARMLESS)
    for one in BOLD:
        assert told[one.name].decision is Decision.NOT_TRIED
        assert "the budget leaves only" in told[one.name].summary


def test_one_last_run_is_enough_where_there_is_no_time_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    now = [0]
    made = Stage(tmp_path, (LOADER,), [finding("rule", 9, "faster-loader")], {"faster-loader": Decision.KEPT})
    made.budget = Deadline(10, lambda: now[0])
    ran: list[int] = []

    def runs(programs: Sequence[object], _steps: int) -> list[int | None]:
        now[0] = 20
        ran.append(len(programs))
        return [20_000_000, 10_000_000]

    monkeypatch.setattr(made.bench, "steps_alone", runs)
    monkeypatch.setattr(made.bench, "gate", spent(now, made.bench.gate))
    assert made.run().final is not None
    assert ran == [2]


def spent(now: list[int], gate: Callable[..., GateResult]) -> Callable[..., GateResult]:
    """A look at the numbers that takes all of the time."""

    def looked(*given: object, **more: object) -> GateResult:
        now[0] = 20
        return gate(*given, **more)

    return looked
