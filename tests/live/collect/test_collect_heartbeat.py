"""A run of days, in small: heartbeats, a loader that becomes slow, the trace that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from watching import PROGRAMS, Ran, run

from diagnose.collect import Recipe
from diagnose.program import Program
from diagnose.session import Noticed, Session
from diagnose.units import NS_PER_S
from diagnose.watching.service import Watching

HEARTBEAT = Recipe(mode="heartbeat", heartbeat_s=0.1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Forty plain steps, loaded by the training process itself."""
    return run(tmp_path_factory.mktemp("heartbeat"), "training.py", recipe=HEARTBEAT)


def test_the_program_prints_what_it_prints_alone(plain: Ran, tmp_path: Path) -> None:
    alone = run(tmp_path, "training.py", watched=False)
    assert (plain.stdout, plain.stderr, plain.returncode) == (alone.stdout, alone.stderr, 0)


def test_the_last_heartbeat_counts_all_steps(plain: Ran) -> None:
    last = plain.lines("heartbeats.jsonl")[-1]
    assert (last["i"], last["n"], last["end"]) == (40, 1, True)
    # Two samples a batch, each of which sleeps for a millisecond.
    assert last["w"] >= 40 * 2_000_000
    assert last["f"] > 0
    assert last["m"] > 0


def test_a_run_leaves_neither_trace_nor_log_of_steps(plain: Ran) -> None:
    assert sorted(path.name for path in (plain.folder / "rank0").iterdir()) == ["claim", "heartbeats.jsonl"]


@pytest.mark.slow
def test_a_loader_that_becomes_slow_is_told_and_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[Noticed] = []

    def of_the_loader() -> list[Noticed]:
        # A busy machine changes the time of a step as well, and may do so just when the loader does: it does so again.
        return [event for event in told if "data" in event.causes]

    def tell(event: Noticed) -> None:
        told.append(event)
        if of_the_loader() and any(one.kind == "traced" for one in told):
            (tmp_path / "told").touch()

    program = Program.parse([str(PROGRAMS / "decaying.py"), "1000", "250", "40000"], cwd=tmp_path)
    session = Session.create(program.name, lambda _event: None, tmp_path)
    watching = Watching(program, session, 1 << 30, tmp_path / "metrics.prom", tell, block_ns=NS_PER_S // 4)
    assert watching.run().returncode == 0
    session.close()
    assert any("waiting for the data loader" in event.message for event in of_the_loader())
    traced = next(event for event in told if event.kind == "traced")
    assert "loader" in traced.message
    window = json.loads((session.path / "changes" / "0001" / "rank0" / "window.json").read_text())
    assert window["steps"] == 4
    assert "diagnose_notices_total" in (tmp_path / "metrics.prom").read_text()
