"""The benchmark over public programs: what it is told of each, what it reads from their output, what its table says."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks" / "public"))

import data  # noqa: E402 - a folder of scripts, no package
import run  # noqa: E402

PROGRAMS = tomllib.loads((ROOT / "benchmarks" / "public" / "programs.toml").read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_pinned_and_says_how_its_speed_is_read(name: str) -> None:
    program = run.Program(name, **PROGRAMS[name])
    assert re.fullmatch(r"[0-9a-f]{40}", program.commit)
    assert re.compile(program.figure).groups == 1
    assert program.speed(2.0) > 0
    assert not program.data or program.data in data.MAKERS
    assert program.words(Path("/d"))[0] == sys.executable


def test_figures_of_the_first_third_are_not_counted(tmp_path: Path) -> None:
    """Here all are printed at once, in the first moment: none is left."""
    words = [sys.executable, "-c", "print('time 3.0ms\\nepoch 1\\ntime 4.0ms')"]
    log = tmp_path / "log"
    assert run.printed_figures(words, tmp_path, r"time ([\d.]+)ms", 30.0, log) == []
    assert run.printed_figures(words, tmp_path, r"time ([\d.]+)ms", 0.0, log) == [3.0, 4.0]
    assert log.read_text() == "time 3.0ms\nepoch 1\ntime 4.0ms\n"


def test_every_program_has_a_row_also_where_nothing_was_kept_or_measured() -> None:
    fast = run.Row("fast", "abc", {"as found": [10.0, 11.0, 12.0], "rounding": [20.0, 22.0, 30.0]})
    fast.kept = {"rounding": ["compile-model"], "training": []}
    silent = run.Row("silent", "abc", notes=["as found: no figure in start 1"])
    text = run.table([fast, silent], "5m")
    assert "| fast | – | 2.00 × [1.67] | – | rounding: compile-model; training: nothing |  |" in text
    assert "| silent | – | – | – |  | as found: no figure in start 1 |" in text
