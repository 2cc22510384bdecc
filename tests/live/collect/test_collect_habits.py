"""Ordinary programs, alone and watched with a traced window: what they print, write and end with is the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from watching import BARE, LIMIT_S, PROGRAMS, QUICK

from diagnose.collect import environment

HABITS = {
    "plain": 0,
    "accumulates": 0,
    "at_exit": 5,
    "closes_files": 0,
    "closure": 0,
    "forks": 0,
    "generator": 0,
    "hooks": 0,
    "mixed_precision": 0,
    "modes": 0,
    "profiles": 0,
    "raises": 1,
    "saves": 0,
    "signals": 0,
    "streams": 0,
    "threads": 0,
    "warns": 0,
    "workers": 0,
}
"""By habit: the exit code."""
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def ran(folder: Path, *words: str, run: Path | None = None) -> tuple[int, str, str, dict[str, str]]:
    """Exit code, standard output and error, and the files of a program that runs in a folder of its own."""
    folder.mkdir()
    variables = environment(QUICK.to_json(run), BARE) if run is not None else BARE
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S
    )
    # Kineto notes the times of its starts, unless it was first started by the watcher, which keeps it quiet.
    complained = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("USDT:"))
    return done.returncode, done.stdout, complained, files(folder)


@pytest.mark.parametrize("habit", HABITS)
def test_a_program_is_what_it_is_alone(tmp_path: Path, habit: str) -> None:
    words = (str(PROGRAMS / "habits.py"), habit)
    alone = ran(tmp_path / "alone", *words)
    assert alone[0] == HABITS[habit], alone[2]
    run = tmp_path / "run"
    assert ran(tmp_path / "watched", *words, run=run) == alone
    assert (run / "rank0" / "window.json").exists()
    # A file of ours that is open while the program closes all of them is lost, and told of.
    assert habit == "closes_files" or '"watcher_failures":[]' in (run / "rank0" / "facts.json").read_text()


def test_two_ranks_are_what_they_are_alone(tmp_path: Path) -> None:
    words = (*TWO_RANKS, str(PROGRAMS / "two_ranks.py"))
    alone, watched = ran(tmp_path / "alone", *words), ran(tmp_path / "watched", *words, run=tmp_path / "run")
    assert (watched[0], watched[1], watched[3]) == (alone[0], alone[1], alone[3])
    assert all((tmp_path / "run" / f"rank{rank}" / "window.json").exists() for rank in (0, 1))
