"""A trajectory that no fix promised is looked at in the time that the last runs leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial.bench import Bench
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_MS, NS_PER_S

START_NS, STEP_NS = 5 * NS_PER_S, 20 * NS_PER_MS
LAST_NS = CostModel(Schedule(), start_ns=START_NS, step_ns=STEP_NS).last_runs_ns(1)


@pytest.mark.parametrize(
    ("left_ns", "asked", "seen_ns"),
    [
        (LAST_NS + 2 * START_NS, True, LAST_NS + 2 * START_NS),
        (LAST_NS + 2 * START_NS, False, 2 * START_NS),
        (LAST_NS + START_NS - 1, False, 0),
        (None, False, None),
    ],
    ids=["asked", "unasked", "no time for a start", "no budget"],
)
def test_time_for_last_runs_stays(
    left_ns: int | None, asked: bool, seen_ns: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    program = Program.parse(["train.py"], cwd=tmp_path)
    deadline = Deadline(left_ns, lambda: 0)
    watched = WatchedProgram(start_ns=START_NS, step_ns=STEP_NS)
    with Bench(program, tmp_path / "trials", Schedule(), deadline, watched) as bench:
        tools: Any = bench._tools
        seen: list[Deadline] = []

        def check(gate: Gate, *_programs: Program, **_options: object) -> GateResult:
            seen.append(tools.gatekeeper.deadline)
            return GateResult(gate, True, "")

        monkeypatch.setattr(tools.numerics, "check", check)
        bench.gate(Gate.TRAINING, program, program, asked=asked)
        assert [one.left_ns for one in seen] == [seen_ns]
        assert tools.gatekeeper.deadline == deadline
