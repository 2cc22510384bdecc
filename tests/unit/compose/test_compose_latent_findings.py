"""What rides along in a common trial: small in the program as found, notable in what the others leave of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, Stage, finding, fixer, replacing

from diagnose.compose.proposals import candidates
from diagnose.compose.search import greedy_search
from diagnose.compose.search import latent_findings as foreseen_fixes
from diagnose.compose.search.greedy_search import WITHOUT_ASKING
from diagnose.fixer import Edits, Fixer, Request
from diagnose.model import TOGETHER, Confidence, Decision, Finding, Gate
from diagnose.session import TrialStarted, VerdictReached
from diagnose.trial.schedule import Deadline
from diagnose.what_if import StepWithout

MODEL = fixer("narrow-model", replacing("model = 3", "model = 30"), Gate.ROUNDING)
PIN = fixer("loader-pin", replacing("import torch\n", "import torch  # pin\n"))
TRAINS = fixer("autocast", replacing("model = 3", "model = 3  # bf16"), Gate.TRAINING)
KEEPS = fixer("keep-workers", replacing("# pin", "# pin, keep"), Gate.TRAINING, completes=("loader-pin",))


def small(rule: str, share: float, *fixers: str) -> Finding:
    """Of a step of 4 ms that is left."""
    one = finding(rule, 1, *fixers, line=1)
    return replace(one, recoverable_ns=round(4e6 * share), share=share, confidence=Confidence.HINT)


def stage(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    foreseen: tuple[Finding, ...],
    *more: Fixer,
    decisions: Mapping[str, Decision] | None = None,
    trying: tuple[Fixer, ...] = (LOADER, ITEM, MODEL),
    allow: frozenset[Gate] = WITHOUT_ASKING,
) -> tuple[Stage, list[frozenset[str]]]:
    """Three findings with a fixer each, and what is foreseen beside them; with the rules that were said to be gone."""
    asked: list[frozenset[str]] = []

    def step_without(_trace: object, _catalogue: object, gone: frozenset[str]) -> StepWithout:
        asked.append(gone)
        return StepWithout(4_000_000, foreseen)

    monkeypatch.setattr(greedy_search, "step_without", step_without)
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    findings = [finding(f"rule {one.name}", 9 - at, one.name) for at, one in enumerate(trying)]
    fixers = (*trying, *more)
    decided = {TOGETHER: Decision.KEPT, **{one.name: Decision.KEPT for one in fixers}, **(decisions or {})}
    return Stage(folder, fixers, findings, decided, allow=allow), asked


def common(made: Stage) -> str:
    """The text of the first common trial."""
    return next(patched for name, _, patched in made.bench.attempts if name == TOGETHER)


def test_what_will_weigh_rides_along_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = stage(tmp_path, monkeypatch, (small("pageable", 0.02, "loader-pin"),), PIN)
    verdicts = {one.fixer: one for one in made.run().verdicts}
    assert asked == [{"rule faster-loader", "rule no-item", "rule narrow-model"}]
    assert "# pin" in common(made)
    assert verdicts["loader-pin"].decision is Decision.KEPT
    told = [event.verdict for event in made.events if isinstance(event, VerdictReached)]
    first = next(one for one in told if one.fixer == "loader-pin")
    assert first.summary.startswith(
        "pageable would be 2.0 % of the step once rule faster-loader, rule narrow-model and"
    )
    assert first.prediction is Confidence.HINT


TRIFLES = (
    PIN,
    fixer("defer-log", replacing("import torch\n", "import torch\nlog = 1\n")),
)


@pytest.mark.parametrize("needed", [False, True])
def test_what_is_too_small_for_a_check_of_its_own_has_one_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, needed: bool
) -> None:
    """One by one each would be found to give nothing, and what they give together would be lost."""
    small_ones = (small("pageable", 0.006, "loader-pin"), small("logs", 0.007, "defer-log"))
    made, _ = stage(tmp_path, monkeypatch, small_ones, *TRIFLES)
    made.bench.left_out = {} if needed else {TOGETHER: Decision.NO_CHANGE}
    verdicts = {one.fixer: one for one in made.run().verdicts}
    first, without, whole = made.bench.checks[0]
    assert first == TOGETHER
    assert "# pin" in whole
    assert "log = 1" in whole
    assert "# pin" not in without
    assert "log = 1" not in without
    assert not {"loader-pin", "defer-log"} & {name for name, _, _ in made.bench.checks}
    for name in ("loader-pin", "defer-log"):
        assert verdicts[name].decision is (Decision.KEPT if needed else Decision.NO_CHANGE)
        assert "loader-pin and defer-log" in verdicts[name].summary or "defer-log and loader-pin" in (
            verdicts[name].summary
        )


def test_it_is_left_out_first_and_goes_where_it_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = stage(tmp_path, monkeypatch, (small("pageable", 0.02, "loader-pin"),), PIN)
    made.bench.left_out = {"loader-pin": Decision.NO_CHANGE}
    outcome = made.run()
    assert made.bench.checks[0][0] == "loader-pin"
    assert outcome.patch is not None
    assert b"# pin" not in (outcome.patch.changes[0].after or b"")


def test_two_small_findings_of_one_fix_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = [small(rule, 0.0015, "loader-pin") for rule in ("pageable", "input")]
    made, _ = stage(tmp_path, monkeypatch, tuple(each[:1]), PIN)
    made.run()
    assert "# pin" not in common(made)
    both, _ = stage(tmp_path, monkeypatch, tuple(each), PIN)
    both.run()
    assert "# pin" in common(both)


@pytest.mark.parametrize(
    "unfit",
    [
        replace(PIN, order=60),  # brings a compiler
        replace(PIN, gate=Gate.TRAINING),
        replace(PIN, rewrite=replacing("import torch\n", "import torch  # pin\n" + "more = 1\n" * 20)),
        replace(PIN, conflicts=("no-item",)),
        replace(PIN, rewrite=replacing("loss = 20", "loss = 2  # pin")),  # takes back what another wrote
    ],
)
def test_what_is_bold_long_or_in_the_way_does_not(
    unfit: Fixer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unfit.compiles is (unfit.order == 60)
    foreseen = (small("pageable", 0.02, "loader-pin"),)
    made, _ = stage(tmp_path, monkeypatch, foreseen, unfit, allow=frozenset(Gate))
    made.run()
    assert "# pin" not in common(made)


def test_what_compiles_rides_along_where_something_compiles_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreseen = (small("pageable", 0.02, "loader-pin"),)
    compiled = replace(MODEL, order=60)
    made, _ = stage(tmp_path, monkeypatch, foreseen, replace(PIN, order=65), trying=(LOADER, ITEM, compiled))
    made.run()
    assert "# pin" in common(made)


def test_a_rounding_fix_does_not_ride_with_bitwise_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen = (small("pageable", 0.02, "loader-pin"),)
    exact = replace(MODEL, gate=Gate.BITWISE)
    rounding = replace(PIN, gate=Gate.ROUNDING)
    made, _ = stage(tmp_path, monkeypatch, foreseen, rounding, trying=(LOADER, ITEM, exact))
    made.run()
    assert "# pin" not in common(made)
    among, _ = stage(tmp_path, monkeypatch, foreseen, rounding)
    among.run()
    assert "# pin" in common(among)


def test_the_part_that_keeps_the_numbers_has_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen = (small("pageable", 0.02, "loader-pin"), small("input", 0.001, "keep-workers"))
    trying = (LOADER, ITEM, TRAINS)
    made, _ = stage(tmp_path, monkeypatch, foreseen, PIN, KEEPS, trying=trying, allow=frozenset(Gate))
    made.run()
    assert "# pin, keep" in common(made)  # what completes another rides with it where the training is judged
    (harmless,) = [text for text in made.bench.halfway if text]
    assert "# pin\n" in harmless
    assert "bf16" not in harmless


@pytest.mark.parametrize(("share", "trains", "rides"), [(0.3, True, True), (0.02, True, False), (0.3, False, False)])
def test_what_changes_the_training_rides_along_for_a_clear_saving_where_the_training_is_judged(
    share: float, trains: bool, rides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class promises the same bits, and its answer says that it changes the training here: it is asked once for it
    before the first trial."""
    asked_before: list[int] = []

    def rewrite(request: Request) -> Edits:
        asked_before.append(len(made.bench.attempts))
        files = {
            path: text.replace("import torch\n", "import torch  # pin\n") for path, text in request.sources.items()
        }
        return Edits(files, "draws other numbers", Gate.TRAINING, "workers draw")

    draws = fixer("more-workers", rewrite)
    trying = (LOADER, ITEM, TRAINS if trains else MODEL)
    foreseen = (small("input", share, "more-workers"),)
    made, _ = stage(tmp_path, monkeypatch, foreseen, draws, trying=trying, allow=frozenset(Gate))
    made.run()
    assert ("# pin" in common(made)) is rides
    assert asked_before.count(0) == 1
    assert all("# pin" not in text for text in made.bench.halfway if text)


@pytest.mark.parametrize(("share", "rides"), [(0.006, False), (0.02, True)])
def test_what_changes_loading_rides_along_for_what_would_be_kept_alone(
    share: float, rides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreseen = (small("input", share, "loader-pin"),)
    made, _ = stage(tmp_path, monkeypatch, foreseen, replace(PIN, changes_loading=True))
    made.run()
    assert ("# pin" in common(made)) is rides


def test_where_the_trial_breaks_down_it_is_in_neither_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen = (small("pageable", 0.02, "loader-pin"),)
    made, _ = stage(tmp_path, monkeypatch, foreseen, PIN, decisions={TOGETHER: Decision.FAILED})
    outcome = made.run()
    tried = [event.summary for event in made.events if isinstance(event, TrialStarted)]
    assert "loader-pin" in tried[0]
    assert all("loader-pin" not in one for one in tried[1:])
    assert {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT} == {
        "faster-loader",
        "no-item",
        "narrow-model",
    }


def test_a_program_with_fixes_in_it_is_read_again_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fixes have no common trial: nothing is foreseen."""
    made, asked = stage(tmp_path, monkeypatch, (small("pageable", 0.02, "loader-pin"),), PIN, trying=(LOADER, ITEM))
    made.run()
    assert asked == []
    assert all("# pin" not in patched for _, _, patched in made.bench.attempts)


def test_nothing_small_takes_the_place_of_a_fix_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding of which memory is short has its trial later: what may not stand beside its fix stays out."""
    waits = fixer("frees-memory", replacing("loader = 1", "loader = 1  # less"), conflicts=("loader-pin",))
    made, _ = stage(tmp_path, monkeypatch, (small("pageable", 0.02, "loader-pin"),), PIN, waits)
    made.findings = [*made.findings, replace(finding("rule memory", 1, "frees-memory"), short_of_memory=True)]
    assert not made.findings[-1].asks_for_time
    made.run()
    assert "# pin" not in common(made)
    told, _ = stage(tmp_path, monkeypatch, (small("pageable", 0.02, "loader-pin"),), PIN)
    told.run()
    assert "# pin" in common(told)


def test_lines_that_are_written_over_others_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrites(request: Request) -> Edits:
        (path,) = request.sources
        return Edits({path: "".join(f"{line}  # pin\n" for line in request.sources[path].splitlines())}, "all anew")

    foreseen = (small("pageable", 0.02, "loader-pin"),)
    made, _ = stage(tmp_path, monkeypatch, foreseen, replace(PIN, rewrite=rewrites))
    monkeypatch.setattr(foreseen_fixes, "MOST_LINES", 3)
    made.run()
    assert "# pin" not in common(made)


def test_what_is_foreseen_is_that_of_what_will_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no time for a trajectory: what its fix would save is not gone."""
    trying = (LOADER, ITEM, TRAINS)
    foreseen = (small("pageable", 0.02, "loader-pin"),)
    made, asked = stage(tmp_path, monkeypatch, foreseen, PIN, trying=trying, allow=frozenset(Gate))
    made.budget = Deadline(100, lambda: 0)
    made.bench.training_takes_ns = 200
    made.run()
    # Before the control it was asked of all three, too: how much time that leaves is not known then.
    assert asked[-1] == {"rule faster-loader", "rule no-item"}
    assert "# pin" in common(made)
    told = [event.verdict for event in made.events if isinstance(event, VerdictReached)]
    first = next(one for one in told if one.fixer == "loader-pin")
    assert "once rule faster-loader and rule no-item are gone" in first.summary
    assert "bf16" not in first.diff
    assert first.diff.count("\n+") - first.diff.count("\n+++") == 1


@pytest.mark.parametrize("decision", [Decision.SLOWER, Decision.NO_CHANGE, Decision.UNEXPLAINED])
def test_what_rides_along_costs_the_others_no_common_trial(
    decision: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it the trial shows nothing; without it the others are kept at once."""
    made, asked = stage(tmp_path, monkeypatch, (small("pageable", 0.02, "loader-pin"),), PIN)
    made.bench.by_text = {"# pin": decision}
    outcome = made.run()
    assert [(name, "# pin" in patched) for name, _, patched in made.bench.attempts] == [
        (TOGETHER, True),
        (TOGETHER, False),
    ]
    assert len(asked) == 1
    assert {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT} == {
        "faster-loader",
        "no-item",
        "narrow-model",
    }
