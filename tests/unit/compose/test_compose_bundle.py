"""Many fixes in one trial: what goes into it, what each is measured by, and what happens where it breaks down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from composing import ALL, ITEM, LOADER, MODEL, SOURCE, Stage, finding, fixer, replacing, together

from diagnose.compose import WITHOUT_ASKING
from diagnose.compose.proposals import candidates
from diagnose.compose.search import greedy_search
from diagnose.compose.search.bundle import as_one, gather, takes_back
from diagnose.compose.stack.run_context import knowledge
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Advice, Edits, Fixer, Request
from diagnose.model import TOGETHER, Confidence, Decision, Diagnosis, Gate, Interval, Steps
from diagnose.model import Accounting as Nothing
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import fold
from diagnose.trace import Trace
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")

IMPORT = fixer("more-imports", replacing("import torch\n", "import os\nimport torch\n"))


def attempts(made: Stage) -> list[str]:
    return [name for name, _, _ in made.bench.attempts]


def test_three_fixes_have_one_trial_and_each_is_then_left_out(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    outcome = made.run()
    assert made.bench.attempts == [(TOGETHER, SOURCE, ALL)]
    without = {name: text for name, text, _ in made.bench.checks}
    assert without == {
        "faster-loader": ALL.replace("= 10", "= 1"),
        "no-item": ALL.replace("= 20", "= 2"),
        "narrow-model": ALL.replace("= 30", "= 3"),
    }
    assert [whole for _, _, whole in made.bench.checks] == [ALL] * 3
    assert outcome.patch is not None
    assert outcome.patch.changes[0].after == ALL.encode()


def test_the_bench_is_told_what_many_promise_together(tmp_path: Path) -> None:
    """By that it decides whether their gate starts beside their trial."""
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.run()
    (promised,) = made.bench.promised
    assert promised == pytest.approx(sum(one.share for one in made.findings))


def test_advice_names_lines_of_the_users_own_file(tmp_path: Path) -> None:
    longer = fixer("longer", replacing("loader = 1\n", "# more\n# lines\nloader = 10\n"))

    def by_hand(request: Request) -> Advice:
        (path,) = request.sources
        line = request.sources[path].splitlines().index("model = 30") + 1
        return Advice(f"{path}:{line} is yours to change")

    advises = fixer("by-hand", by_hand, Gate.TRAINING)
    made = together(tmp_path, longer, ITEM, MODEL, advises)
    made.findings = [*made.findings[:3], finding("rule by-hand", 1, "by-hand", line=4)]
    (told,) = [verdict for verdict in made.run().verdicts if verdict.decision is Decision.ADVICE]
    assert told.summary == "train.py:4 is yours to change"
    assert [(place.line, place.code) for place in told.where] == [(4, "model = 3")]


def test_two_fixes_are_tried_one_by_one(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM)
    made.run()
    assert attempts(made) == ["faster-loader", "no-item"]


def test_where_all_break_down_halves_are_tried_and_the_culprit_is_found(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL, IMPORT)
    made.bench.by_text = {"model = 30": Decision.CHANGES_NUMBERS}
    outcome = made.run()
    assert attempts(made) == [TOGETHER, TOGETHER, TOGETHER, "narrow-model", "more-imports"]
    assert {verdict.fixer: verdict.decision for verdict in outcome.verdicts} == {
        "faster-loader": Decision.KEPT,
        "no-item": Decision.KEPT,
        "narrow-model": Decision.CHANGES_NUMBERS,
        "more-imports": Decision.KEPT,
    }


def test_a_single_of_one_half_has_its_trial_before_the_half_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_line(request: Request) -> Edits:
        return Edits({path: f"{text}end = 5\n" for path, text in request.sources.items()}, "one more line")

    last = fixer("one-more-line", add_line)
    made = together(tmp_path, LOADER, ITEM, MODEL, IMPORT, last)
    made.bench.by_text = {"model = 30": Decision.CHANGES_NUMBERS, "import os": Decision.CHANGES_NUMBERS}

    def promise_more(queue: Sequence[candidates.Candidate], *_: object) -> candidates.Review:
        """Of the last fixer, once something was kept."""
        more = {last.name: 19_000_000}
        found = [replace(one.finding, recoverable_ns=more.get(one.fixer.name, 1)) for one in queue]
        return candidates.Review(tuple(replace(one, finding=its) for one, its in zip(queue, found, strict=True)))

    monkeypatch.setattr(greedy_search, "review", promise_more)
    made.run()
    assert attempts(made) == [TOGETHER, TOGETHER, TOGETHER, "narrow-model", TOGETHER, "one-more-line", "more-imports"]


def test_where_all_change_nothing_each_has_a_trial(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL, decisions={TOGETHER: Decision.NO_CHANGE})
    made.run()
    assert attempts(made) == [TOGETHER, "faster-loader", "no-item", "narrow-model"]


def test_where_there_is_no_time_for_all_each_says_for_itself_why_it_is_not_tried(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL, budget=Deadline(100, lambda: 0))
    made.findings = [replace(one, share=0.01) for one in made.findings]
    made.bench.trial_takes_ns = 200
    outcome = made.run()
    assert made.bench.attempts == []
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.NOT_TRIED] * 3


BOLD = fixer("bfloat16", replacing("import torch", "import torch  # bf16"), Gate.TRAINING)
BOLD_TOO = ALL.replace("import torch", "import torch  # bf16")


def test_what_changes_the_training_is_tried_with_the_others_and_judged_against_them(tmp_path: Path) -> None:
    made = together(tmp_path, BOLD, LOADER, ITEM, MODEL, allow=frozenset(Gate))
    made.run()
    assert made.bench.attempts == [(TOGETHER, SOURCE, BOLD_TOO)]
    assert made.bench.halfway == [ALL]


def test_where_it_was_not_allowed_it_is_not_among_them(tmp_path: Path) -> None:
    made = together(tmp_path, BOLD, LOADER, ITEM, MODEL)
    made.run()
    assert made.bench.attempts == [(TOGETHER, SOURCE, ALL)]
    assert made.bench.halfway == [None]


def test_where_all_with_what_changes_the_training_break_down_the_others_come_first(tmp_path: Path) -> None:
    made = together(tmp_path, BOLD, LOADER, ITEM, MODEL, allow=frozenset(Gate))
    made.bench.by_text = {"# bf16": Decision.CHANGES_NUMBERS}
    made.run()
    assert made.bench.attempts[1:] == [(TOGETHER, SOURCE, ALL), ("bfloat16", ALL, BOLD_TOO)]


def test_where_there_is_no_time_for_a_trajectory_the_others_are_tried_without_it(tmp_path: Path) -> None:
    made = together(tmp_path, BOLD, LOADER, ITEM, MODEL, allow=frozenset(Gate), budget=Deadline(100, lambda: 0))
    made.findings = [replace(one, share=0.01) for one in made.findings]
    made.bench.training_takes_ns = 200
    found = made.run()
    assert made.bench.attempts == [(TOGETHER, SOURCE, ALL)]
    (left,) = [one for one in found.verdicts if one.decision is Decision.NOT_TRIED]
    assert left.fixer == "bfloat16"
    assert left.predicted_ns == 9_000_000


def test_a_text_that_was_copied_before_is_not_copied_again(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.run()
    texts = [text for root, text in made.bench.copies.items() if root.name != "twin"]
    assert len(texts) == len(set(texts))


def test_what_mends_the_end_of_a_run_has_a_trial_of_its_own(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL, IMPORT)
    deadly = finding("leak", 1, "more-imports")
    made.findings = [*made.findings[:3], replace(deadly, ends_run=True)]
    made.run()
    assert attempts(made) == [TOGETHER, "more-imports"]


def test_a_fixer_that_fails_when_asked_hides_no_other(tmp_path: Path) -> None:
    def fails(_request: Request) -> Edits:
        raise KeyError("mine")

    made = together(tmp_path, LOADER, fixer("broken", fails), ITEM, MODEL)
    outcome = made.run()
    assert attempts(made) == [TOGETHER]
    (failed,) = [verdict for verdict in outcome.verdicts if verdict.decision is Decision.FAILED]
    assert failed.fixer == "broken"


def test_of_two_that_exclude_each_other_the_greater_promise_is_in(tmp_path: Path) -> None:
    rival = fixer("rival", replacing("import torch", "import torch  # rival"), conflicts=("faster-loader",))
    made = together(tmp_path, LOADER, ITEM, MODEL, rival)
    outcome = made.run()
    assert made.bench.attempts == [(TOGETHER, SOURCE, ALL)]
    (told,) = [verdict for verdict in outcome.verdicts if verdict.fixer == "rival"]
    assert "it excludes faster-loader" in told.summary


def test_of_two_cures_of_one_place_the_second_waits_for_what_the_first_leaves(tmp_path: Path) -> None:
    def rewrite(request: Request) -> Edits:
        (path,) = request.sources
        text = request.sources[path]
        return Edits({path: text.replace("model = 3\n", "model = 4\n").replace("model = 30\n", "model = 4\n")}, "")

    made = together(tmp_path, LOADER, ITEM, MODEL, fixer("other-model", rewrite))
    made.bench.decisions = {**made.bench.decisions, "other-model": Decision.NO_CHANGE}
    made.run()
    assert made.bench.attempts[0] == (TOGETHER, SOURCE, ALL)
    assert attempts(made) == [TOGETHER, "other-model"]


def test_a_line_written_again_with_more_in_it_is_not_taken_back() -> None:
    before, now = {"a.py": "loader(data)\n"}, {"a.py": "loader(data, workers=2)\n"}
    assert not takes_back(before, now, {"a.py": "loader(data, workers=2, pin=True)\n"})
    assert takes_back(before, now, {"a.py": "loader(data, pin=True)\n"})
    assert takes_back(before, now, {"a.py": ""})
    renumbered = {"a.py": "loader(data, size=32, workers=2)\n"}  # what stood there before may change
    assert not takes_back({"a.py": "loader(data, size=8)\n"}, {"a.py": "loader(data, size=8, workers=2)\n"}, renumbered)
    assert not takes_back(now, now, {"a.py": ""})  # nobody had written it


def test_a_line_that_was_only_indented_may_still_be_written_anew() -> None:
    before, now = {"a.py": "loss = f(x)\n"}, {"a.py": "with autocast():\n    loss = f(x)\n"}
    assert not takes_back(before, now, {"a.py": "with autocast():\n    loss = model(x)\n"})
    assert takes_back(before, now, {"a.py": "loss = model(x)\n"})  # the `with` was written


def test_the_screen_shows_the_common_trial_beside_those_of_each(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.run()
    state = fold(made.events)
    common, *others = state.trials
    assert common.started.fixer == TOGETHER
    assert common.started.summary == "faster-loader, no-item, narrow-model, at once"
    assert common.started.diff
    assert common.verdict is not None
    assert common.verdict.predicted_ns == common.started.predicted_ns == 24_000_000
    assert all(verdict.fixer != TOGETHER for verdict in state.verdicts)
    assert len(others) == 3


def test_a_finding_that_two_of_them_treat_is_promised_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    program = Program.parse(["train.py"], cwd=tmp_path)
    findings = (finding("a", 9, "faster-loader", "no-item"), finding("b", 3, "narrow-model"))
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20_000_000), Nothing(), findings)
    catalogue = Catalogue({}, {one.name: one for one in (LOADER, ITEM, MODEL)})
    stack = Stack.of(program, knowledge(program, diagnosis, [Trace("run")]))
    bundle = gather(stack, list(candidates.candidates(program, findings, catalogue)), WITHOUT_ASKING)
    assert bundle.names == ("faster-loader", "no-item", "narrow-model")
    assert bundle.predicted_ns == 12_000_000
    assert bundle.prediction is Confidence.MEASURED


def test_limits_of_many_fixes_add_up_to_none(tmp_path: Path) -> None:
    """What one leaves of a step is less for the next to shorten, or more: together they may save more than the sum."""
    (tmp_path / "train.py").write_text(SOURCE)
    program = Program.parse(["train.py"], cwd=tmp_path)
    limited = replace(finding("b", 3, "narrow-model"), confidence=Confidence.BOUND)
    findings = (finding("a", 9, "faster-loader"), limited)
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20_000_000), Nothing(), findings)
    catalogue = Catalogue({}, {one.name: one for one in (LOADER, MODEL)})
    stack = Stack.of(program, knowledge(program, diagnosis, [Trace("run")]))
    bundle = gather(stack, list(candidates.candidates(program, findings, catalogue)), WITHOUT_ASKING)
    assert bundle.predicted_ns == 12_000_000
    assert bundle.prediction is Confidence.HINT


def test_all_of_them_promise_what_the_boldest_does() -> None:
    calls = Fixer("calls", lambda _: None, Gate.BITWISE, "sync_calls")
    waits = Fixer("waits", lambda _: None, Gate.BITWISE, "idle.input")
    compiles = Fixer("compiles", lambda _: None, Gate.ROUNDING, "compute+idle.launch", order=60)
    memory = Fixer("memory", lambda _: None, Gate.BITWISE, "compute", order=70)
    assert as_one([calls]).mechanism == "sync_calls"
    assert as_one([waits, memory]).mechanism == "idle.input+compute"
    one = as_one([calls, waits, compiles, memory])
    assert (one.gate, one.order, one.mechanism) == (Gate.ROUNDING, 60, "idle+compute")
    assert as_one([calls, MODEL]).rounds_to == "tf32"
    assert as_one([MODEL, Fixer("batch", lambda _: None, Gate.TRAINING, "compute")]).rounds_to is None


@pytest.mark.parametrize(("low", "asked"), [(0.4, 2), (0.03, 3)])
def test_the_last_one_left_is_asked_only_where_the_others_may_have_given_all_of_it(
    low: float, asked: int, tmp_path: Path
) -> None:
    """What the others gave is known from leaving them out: at most a percent each."""
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.saving = Interval(low + 0.1, low, low + 0.2)
    made.bench.left_out = {"narrow-model": Decision.NO_CHANGE, "no-item": Decision.NO_CHANGE}
    outcome = made.run()
    assert [one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT] == ["faster-loader"]
    assert len(made.bench.checks) == asked
