"""Trials that a killed run left are cleared by the next one, and those of a living process never are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.session import Session
from diagnose.session.owner import OWNER, TRIALS


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
