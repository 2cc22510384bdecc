"""A watched program does not find the watcher where it looks at its own frames and calls."""

from __future__ import annotations

from pathlib import Path

from watching import run


def printed_the_same(folder: Path, program: str) -> str:
    """What a program prints, after checking that watched it prints the same and is traced to the end."""
    watched = run(folder, program)
    alone = run(folder, program, watched=False)
    assert watched.stdout == alone.stdout
    assert watched.returncode == alone.returncode == 0
    assert watched.has("window.json")
    assert watched.record("facts.json")["watcher_failures"] == []
    return alone.stdout


def test_warnings_are_shown_at_the_same_lines(tmp_path: Path) -> None:
    shown = printed_the_same(tmp_path, "counts_frames.py")
    places = ("block", "model", "constructor", "step", "backward", "sample", "loader", "checkpoint", "Anomaly")
    assert all(place in shown for place in places)


def test_modes_of_the_program_see_its_own_calls_only(tmp_path: Path) -> None:
    assert "aten.addmm.default" in printed_the_same(tmp_path, "asks_modes.py")


def test_the_compiler_looks_at_the_same_functions(tmp_path: Path) -> None:
    assert "compiled_step.py step" in printed_the_same(tmp_path, "compiled_step.py")


def test_a_program_that_waits_for_all_threads_finds_its_own_alone(tmp_path: Path) -> None:
    assert printed_the_same(tmp_path, "joins_threads.py").endswith("['MainThread'] ['current_thread', 'own_thread']\n")
