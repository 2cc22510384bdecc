"""A program that runs out of memory as found: what is tried, in which order, what is kept and what is told."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from composing import SOURCE, finding, fixer, replacing
from rescuing import DIES, FEWER, SMALLER, rescued
from watching import LIGHT_TORCH, LIMIT_S

from diagnose import compose
from diagnose.compose import Outcome
from diagnose.fixer import Advice
from diagnose.model import Accounting, Decision, Diagnosis, Gate, GateResult, Steps
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import fold
from diagnose.trace import Trace
from diagnose.trial.baseline_failure import OutOfMemoryBaseline
from diagnose.trial.bench import Bench
from diagnose.trial.process.oom_progress import OomProgress
from diagnose.trial.schedule import Deadline
from diagnose.trial.standalone import StandaloneRun
from diagnose.verdict import Ruling


def test_the_cheapest_setting_with_which_the_program_runs_is_kept(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [FEWER], {"model = 31": DIES})
    (verdict,) = outcome.verdicts
    assert (verdict.decision, dict(verdict.setting)) == (Decision.KEPT, {"k": 2})
    assert "runs with a peak of 3.00 GiB, 12.0 ms a step; without it the program runs out of memory" in verdict.summary
    assert [text[-3:-1] for text in stage.bench.ran_alone] == ["31", "35", "32"]
    assert outcome.patch is not None and "+model = 32" in outcome.patch.text
    assert fold(stage.events).patch is not None
    assert (tmp_path / "train.py").read_text() == SOURCE


def test_where_the_setting_that_saves_most_is_too_little_those_between_are_not_tried(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [FEWER], {"torch": DIES})
    assert outcome.patch is None
    assert [text[-3:-1] for text in stage.bench.ran_alone] == ["31", "35"]


def test_the_setting_that_saves_most_is_kept_where_there_is_no_time_for_a_cheaper_one(tmp_path: Path) -> None:
    clock = iter(range(100))
    deadline = Deadline(7, lambda: next(clock))
    outcome, stage = rescued(tmp_path, [FEWER], {"model = 31": DIES}, deadline=deadline)
    assert [text[-3:-1] for text in stage.bench.ran_alone] == ["31", "35"]
    assert [dict(verdict.setting) for verdict in outcome.verdicts] == [{"k": 5}]
    assert outcome.patch is not None


def test_its_numbers_are_held_against_those_of_a_setting_that_saves_more(tmp_path: Path) -> None:
    _, stage = rescued(tmp_path, [FEWER], {"model = 31": DIES})
    ((gate, leanest, kept, _),) = stage.bench.gates
    assert gate is Gate.BITWISE
    assert ("model = 35" in leanest, "model = 32" in kept) == (True, True)


def test_other_numbers_than_those_of_the_leanest_setting_are_not_kept(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [FEWER], {}, gate_passes=False)
    assert outcome.patch is None
    assert outcome.verdicts[0].decision is Decision.CHANGES_NUMBERS


def test_with_nothing_to_compare_it_is_kept_and_said_so(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [SMALLER], {})
    (verdict,) = outcome.verdicts
    assert verdict.decision is Decision.KEPT
    assert verdict.gate is not None and verdict.gate.passed is None
    assert "could not be compared" in verdict.summary


def test_it_has_to_get_well_past_the_step_in_which_it_died(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [SMALLER], {}, died_after=41)
    assert stage.bench.alone_steps == [62]
    assert "12.0 ms a step, for 62 steps; without it the program runs out of memory after 41" in (
        outcome.verdicts[0].summary
    )


@pytest.mark.parametrize(("most", "kept"), [(40, False), (41, False), (42, True)])
def test_where_time_ends_before_the_step_in_which_it_died_nothing_is_kept(
    tmp_path: Path, most: int, kept: bool
) -> None:
    outcome, stage = rescued(tmp_path, [FEWER], {}, died_after=41, most_steps=most)
    assert (outcome.patch is not None) is kept
    if not kept:
        (verdict,) = outcome.verdicts
        assert verdict.decision is Decision.NOT_TRIED
        said = f"runs for {most} steps, for which there was time: as found, it runs out of memory after 41"
        assert said in verdict.summary
        assert len(stage.bench.ran_alone) == 1  # settings that save more would take as long


def test_a_program_that_takes_steps_as_found_has_numbers_to_keep(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [FEWER], {}, died_after=6)
    ((_, original, kept, _),) = stage.bench.gates
    assert (original, "model = 31" in kept) == (SOURCE, True)
    assert "against the program as found, which takes 6 steps, as gated" in outcome.verdicts[0].summary
    assert outcome.verdicts[0].gate is not None and outcome.verdicts[0].gate.passed


def test_where_the_program_as_found_shows_none_those_of_the_leanest_setting_stand_in(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [FEWER], {}, gate_passes=None, died_after=6)
    assert ["model = 35" in against for _, against, _, _ in stage.bench.gates] == [False, True]
    assert "its numbers could not be compared: as gated" in outcome.verdicts[0].summary


def test_the_next_fixer_is_tried_where_the_first_is_not_enough(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [FEWER, SMALLER], {"loader = 1": DIES})
    assert [verdict.decision for verdict in outcome.verdicts] == [DIES, Decision.KEPT]
    assert outcome.patch is not None and outcome.stack is not None
    assert outcome.stack.names == ("smaller",)


def test_what_two_findings_name_is_tried_once(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [SMALLER], {"torch": DIES}, findings=2)
    assert len(stage.bench.ran_alone) == 1
    assert [verdict.decision for verdict in outcome.verdicts] == [DIES]


def test_what_the_budget_leaves_no_time_for_is_said_to_be_untried(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [FEWER], {}, deadline=Deadline(0, lambda: 1))
    assert stage.bench.ran_alone == []
    assert [(verdict.decision, verdict.summary) for verdict in outcome.verdicts] == [
        (Decision.NOT_TRIED, "the budget ran out")
    ]


def test_where_nothing_helps_there_is_no_patch(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [FEWER, SMALLER], {"torch": DIES})
    assert outcome.patch is None
    assert {verdict.decision for verdict in outcome.verdicts} == {DIES}


def test_advice_and_what_may_not_be_tried_are_told(tmp_path: Path) -> None:
    by_hand = fixer("by-hand", lambda _request: Advice("buy a larger one"))
    bold = fixer("bold", replacing("loader = 1", "loader = 0"), Gate.TRAINING)
    outcome, stage = rescued(tmp_path, [by_hand, bold], {})
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.ADVICE, Decision.NOT_TRIED]
    assert stage.bench.ran_alone == []
    allowed, _ = rescued(tmp_path, [bold], {}, allow=frozenset(Gate))
    assert allowed.patch is not None


class _AllDie(Bench):
    """Two copies of the program as found die after 36 steps, one by itself after `alone_after`; patched ones run."""

    alone_after: int | None = 70

    def prepare(self, _original: Program) -> NoReturn:
        raise OutOfMemoryBaseline("as found", 36)

    def run_alone(self, program: Program, _name: str, least_steps: int = 0) -> StandaloneRun:
        if self.alone_after is not None and (program.root / "train.py").read_text() == SOURCE:
            return StandaloneRun(failure=Ruling(DIES, "as it ended"), reached=OomProgress(self.alone_after))
        return StandaloneRun(12_000_000, 3 << 30, least_steps)

    def gate(self, gate: Gate, *_words: object, **_named: object) -> GateResult:
        return GateResult(gate, True, "as gated")


@pytest.mark.parametrize(
    ("ends_run", "alone_after", "kept"),
    [(True, 70, [SMALLER.name]), (False, 70, None), (True, None, None)],  # two that share a device die, one does not
)
def test_a_leak_that_outlives_the_watched_run_but_not_a_copy_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_run: bool, alone_after: int | None, kept: list[str] | None
) -> None:
    monkeypatch.setattr(compose, "Bench", _AllDie)
    monkeypatch.setattr(_AllDie, "alone_after", alone_after)
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "run").mkdir()
    leaks = replace(finding("leaking-memory", 9, SMALLER.name), ends_run=ends_run)
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20_000_000), Accounting(), (leaks,))
    catalogue, program = Catalogue({}, {SMALLER.name: SMALLER}), Program.parse(["train.py"], cwd=tmp_path)

    def fixed() -> Outcome:
        return compose.fix(program, diagnosis, [Trace("run")], catalogue, lambda _event: None, tmp_path / "run")

    if kept is None:
        with pytest.raises(OutOfMemoryBaseline):
            fixed()
        return
    outcome = fixed()
    assert outcome.stack is not None and list(outcome.stack.names) == kept
    assert "for 105 steps; without it the program runs out of memory after 70" in outcome.verdicts[-1].summary


def test_a_program_that_runs_out_of_memory_runs_after_fix(tmp_path: Path) -> None:
    program = (Path(__file__).parents[2] / "programs" / "fills_memory.py").read_text()
    train = tmp_path / "train.py"
    train.write_text(program.replace("import torch\n", f"{LIGHT_TORCH}\n", 1))
    written = train.read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    before = ran("train.py", "2")
    assert before.returncode == 1 and "can't allocate memory" in before.stderr
    fix = ran("-m", "diagnose", "fix", "--plain", "--quick", "train.py", "2")
    assert fix.returncode == 0, fix.stderr
    assert "checkpoint-blocks  kept" in fix.stdout
    assert train.read_bytes() == written
    assert ran("-m", "diagnose", "apply").returncode == 0
    after = ran("train.py", "2")
    assert after.returncode == 0, after.stderr
    assert after.stdout.startswith("done: ")
