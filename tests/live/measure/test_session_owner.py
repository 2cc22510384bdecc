"""Trials that a killed run left are cleared by the next one, and those of a living process never are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.session import Session, owner
from diagnose.session.owner import OWNER, TRIALS, clear
from diagnose.units import NS_PER_S


def left(root: Path, **changed: object) -> Path:
    """The trials of a run of this process, with what is noted of its owner changed."""
    folder = Session.create("train", root=root).path
    (folder / TRIALS).mkdir()
    note = folder / OWNER
    note.write_text(json.dumps({**json.loads(note.read_text()), **changed}))
    return folder / TRIALS


def ended_pid() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_what_an_ended_process_left_goes(tmp_path: Path) -> None:
    trials = left(tmp_path, pid=ended_pid())
    Session.create("next", root=tmp_path)
    assert not trials.exists()
    assert (trials.parent / "journal.jsonl").exists()


def test_what_a_process_left_whose_number_is_used_again_goes(tmp_path: Path) -> None:
    trials = left(tmp_path, started=1)
    Session.create("next", root=tmp_path)
    assert not trials.exists()


@pytest.mark.parametrize("changed", [{}, {"machine": ["another host", "", ""], "pid": 1 << 22}, {"pid": "?"}])
def test_what_a_living_process_owns_or_may_own_stays(tmp_path: Path, changed: dict[str, object]) -> None:
    trials = left(tmp_path, **changed)
    Session.create("next", root=tmp_path)
    assert trials.exists()


def test_what_nobody_noted_an_owner_of_stays(tmp_path: Path) -> None:
    trials = left(tmp_path)
    (trials.parent / OWNER).unlink()
    Session.create("next", root=tmp_path)
    assert trials.exists()


@pytest.mark.parametrize("limit_ns", [None, 60 * NS_PER_S])
def test_the_trials_of_a_run_are_gone_where_there_is_time_for_that(tmp_path: Path, limit_ns: int | None) -> None:
    trials = left(tmp_path)
    (trials / "copy").mkdir()
    (trials / "copy" / "train.py").write_text("")
    clear(trials, limit_ns)
    assert not trials.exists()
    clear(trials, limit_ns)  # a run without trials has none


def test_what_takes_longer_to_remove_than_there_is_time_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = left(tmp_path)
    monkeypatch.setattr(owner, "_REMOVE", "import signal; signal.pause()")
    clear(trials, 0)
    remover = owner._REMOVING.pop()
    assert remover.poll() is None
    assert os.getpgid(remover.pid) == remover.pid  # a Ctrl-C does not reach it
    remover.kill()
    remover.wait()
