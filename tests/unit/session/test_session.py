"""A journal survives what runs do not, and folds into what a screen shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.model import Decision, Verdict
from diagnose.session import (
    JOURNAL,
    AnyEvent,
    PhaseChanged,
    RunEnded,
    RunStarted,
    Session,
    StepsSeen,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    fold,
    latest,
    read,
)

STARTED = RunStarted(at_ns=1, command="run", program="train.py", cwd="/home/u", version="0", pid=7)


def test_what_was_recorded_is_read_back_as_it_was(tmp_path: Path) -> None:
    session = Session.create("train", root=tmp_path)
    told: list[AnyEvent] = [STARTED, StepsSeen(at_ns=2, rank=0, ends_ns=[10, 20], input_ns=[1, 2])]
    for event in told:
        session.record(event)
    session.close()
    assert read(session.path) == (told, [])


def test_a_listener_hears_every_event_after_it_is_on_disk(tmp_path: Path) -> None:
    heard: list[tuple[AnyEvent, int]] = []
    session = Session.create("x", lambda event: heard.append((event, len(read(session.path)[0]))), tmp_path)
    session.record(STARTED)
    session.close()
    assert heard == [(STARTED, 1)]


def test_a_journal_that_was_cut_off_in_a_line_still_opens(tmp_path: Path) -> None:
    session = Session.create("x", root=tmp_path)
    session.record(STARTED)
    session.record(RunEnded(at_ns=3, returncode=0, exit_code=0))
    session.close()
    journal = session.path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-12])
    events, (warning,) = read(session.path)
    assert events == [STARTED]
    assert warning == "journal.jsonl line 2 was skipped: cut off, as after a kill"


def test_a_line_of_another_version_costs_only_itself(tmp_path: Path) -> None:
    session = Session.create("x", root=tmp_path)
    session.record(STARTED)
    session.close()
    journal = session.path / JOURNAL
    journal.write_bytes(b'{"type":"FromTheFuture"}\n' + journal.read_bytes())
    events, (warning,) = read(journal)
    assert events == [STARTED]
    assert "line 1" in warning


def test_a_folder_without_a_journal_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no journal of a run"):
        read(tmp_path)


def test_run_folders_are_ignored_by_git_and_never_collide(tmp_path: Path) -> None:
    paths = {Session.create("../odd name", root=tmp_path).path for _ in range(3)}
    assert len(paths) == 3
    assert all(path.parent == tmp_path / ".diagnose" / "runs" for path in paths)
    assert (tmp_path / ".diagnose" / ".gitignore").read_text() == "*\n"
    assert latest(tmp_path) in paths
    assert latest(tmp_path / "elsewhere") is None


def test_steps_of_a_rank_add_up_and_phases_replace_each_other() -> None:
    state = fold(
        [
            STARTED,
            PhaseChanged(phase="waiting for the first step"),
            StepsSeen(rank=0, ends_ns=[10], input_ns=[1]),
            StepsSeen(rank=1, ends_ns=[11], input_ns=[0]),
            PhaseChanged(phase="watching"),
            StepsSeen(rank=0, ends_ns=[20, 30], input_ns=[2, 3]),
        ]
    )
    assert (state.steps[0].ends_ns, state.steps[0].input_ns) == ((10, 20, 30), (1, 2, 3))
    assert state.steps[1].ends_ns == (11,)
    assert state.phase is not None
    assert state.phase.phase == "watching"


def test_a_trial_is_a_phase_until_the_next_one() -> None:
    trial = TrialStarted(fixer="allow-tf32", setting={}, predicted_ns=1, summary="", diff="")
    state = fold([PhaseChanged(phase="measuring what this machine can resolve"), trial])
    assert state.phase is not None
    assert state.phase.phase == "trying allow-tf32"
    state = state.after(PhaseChanged(phase="checking the numbers of allow-tf32"))
    assert state.phase is not None
    assert state.phase.phase == "checking the numbers of allow-tf32"


def test_blocks_and_verdict_belong_to_the_trial_that_is_running() -> None:
    verdict = Verdict("defer-item", Decision.KEPT, "3 % saved")
    state = fold(
        [
            TrialStarted(fixer="allow-tf32", setting={}, predicted_ns=1, summary="", diff=""),
            VerdictReached(verdict=Verdict("allow-tf32", Decision.NO_CHANGE, "")),
            TrialStarted(fixer="defer-item", setting={}, predicted_ns=2, summary="", diff=""),
            TrialBlock(fixer="defer-item", pair=0, original_ns=100, patched_ns=97),
            VerdictReached(verdict=verdict),
        ]
    )
    assert [len(trial.blocks) for trial in state.trials] == [0, 1]
    assert state.trials[-1].verdict == verdict
    assert [each.fixer for each in state.verdicts] == ["allow-tf32", "defer-item"]


def test_a_run_folder_that_the_program_removed_is_not_made_again(tmp_path: Path) -> None:
    heard: list[AnyEvent] = []
    session = Session.create("x", heard.append, tmp_path)
    shutil.rmtree(tmp_path)
    session.record(STARTED)
    assert session.write("diagnosis.json", "{}") is None
    session.close()
    assert not tmp_path.exists()
    assert [type(event).__name__ for event in heard] == ["RunStarted", "Warned"]
