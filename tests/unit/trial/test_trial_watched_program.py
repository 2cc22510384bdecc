"""What it takes to write a profiler window, told by the files of the watched run."""

from __future__ import annotations

import os
from pathlib import Path

from diagnose.trace import Trace
from diagnose.trial.watched_program import written_ns
from diagnose.units import NS_PER_S


def recorded(folder: Path, end_s: int, written_s: int) -> Trace:
    folder.mkdir()
    path = folder / "trace.json.gz"
    path.write_bytes(b"")
    os.utime(path, ns=(0, written_s * NS_PER_S))
    return Trace(str(folder), window_ns=(0, end_s * NS_PER_S))


def test_it_is_that_of_the_slowest_rank(tmp_path: Path) -> None:
    ranks = [recorded(tmp_path / "rank0", 100, 103), recorded(tmp_path / "rank1", 100, 109)]
    assert written_ns(ranks) == 9 * NS_PER_S


def test_it_is_unknown_where_files_are_older_or_much_later_than_their_windows_or_are_not_there(tmp_path: Path) -> None:
    assert written_ns([]) == 0
    assert written_ns([Trace("run")]) == 0
    assert written_ns([recorded(tmp_path / "older", 100, 99)]) == 0
    assert written_ns([recorded(tmp_path / "copied", 100, 10_000)]) == 0
    assert written_ns([Trace(str(tmp_path / "gone"), window_ns=(1, 2))]) == 0
