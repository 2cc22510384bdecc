"""A run that dies of lack of memory: what the watcher leaves of that moment, and what is said of it.

The device is a stand-in (`programs/dying.py`); benchmarks/out_of_memory.py does the same on a real one.
"""

from __future__ import annotations

import pickle
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from watching import PROGRAMS, Ran, run

from diagnose.cli.programs.ending import judge_exit
from diagnose.collect.launch import Outcome
from diagnose.engine import diagnose
from diagnose.model import Diagnosis, Severity
from diagnose.plugins import load
from diagnose.report.export import markdown
from diagnose.report.terminal import text
from diagnose.trace.readers import open_traces

MIB = 1 << 20
SOURCE = (PROGRAMS / "dying.py").read_text().splitlines()


def line_of(marker: str) -> int:
    (number,) = [number for number, line in enumerate(SOURCE, 1) if line.endswith(f"# {marker}")]
    return number


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("dying"), "dying.py", "5")


@pytest.fixture(scope="module")
def diagnosis(died: Ran) -> Diagnosis:
    return diagnose(open_traces([died.folder]), load())


def test_the_program_dies_as_it_would_unwatched(died: Ran) -> None:
    assert died.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 305.00 MiB" in died.stderr
    assert died.record("facts.json")["watcher_failures"] == []


def test_the_moment_is_kept_with_what_only_the_process_knows(died: Ran) -> None:
    kept = pickle.loads((died.folder / "rank0" / "memory.pickle").read_bytes())["diagnose"]
    assert (kept["reason"], kept["wanted_bytes"], kept["capacity_bytes"]) == ("out of memory", 305 * MIB, 1000 * MIB)
    assert kept["pieces"] == [[4096, 256, "parameter"]]


def test_what_it_died_of_comes_first(diagnosis: Diagnosis) -> None:
    first = diagnosis.findings[0]
    assert (first.rule, first.severity, first.ends_run) == ("memory-pressure", Severity.HIGH, True)
    assert "asking for 305 MiB" in first.summary
    assert "390 MiB of activations" in first.summary


def test_the_line_that_asked_comes_before_those_that_held_the_memory(diagnosis: Diagnosis) -> None:
    asked, held, *_ = diagnosis.findings[0].where
    assert asked.line == line_of("asks")
    assert held.line == line_of("layer")
    assert held.share == pytest.approx(390 / 395)


def test_what_would_bring_it_under_is_said_in_bytes_that_are_there(diagnosis: Diagnosis) -> None:
    first = diagnosis.findings[0]
    assert first.confirm is not None
    assert "computed again free up to 390 MiB" in first.confirm
    assert "micro-batch" not in first.confirm  # half of it would free less than was asked for
    assert first.fixers[:1] == ("checkpoint-blocks",) or "checkpoint-blocks" not in load().fixers


def test_the_run_says_by_its_name_how_it_ended(died: Ran) -> None:
    seen: Any = SimpleNamespace(outcome=Outcome(1, False, False, (0,)), traces=open_traces([died.folder]))
    code, message = judge_exit(seen, cancelled=False)
    assert (code, message) == (3, "the program ran out of the device's memory, and ended with exit code 1")
    seen.traces = []
    assert judge_exit(seen, cancelled=False) == (3, "the program failed with exit code 1")
    seen.outcome = Outcome(-signal.SIGSEGV, False, False, (0,))
    _, message = judge_exit(seen, cancelled=False)
    assert message.startswith("the program failed with signal 11 (SIGSEGV), ")
    assert "PYTHONFAULTHANDLER=1" in message


def test_what_held_the_memory_is_part_of_every_report(diagnosis: Diagnosis) -> None:
    assert diagnosis.memory is not None
    assert diagnosis.memory.categories == {"parameters": 5 * MIB, "activations": 390 * MIB}
    assert diagnosis.memory.wanted_bytes == 305 * MIB
    for page in (text.render(diagnosis), markdown.render(diagnosis)):
        assert "What held the memory when 305 MiB found no room" in page
        assert "activations" in page
        assert f"dying.py:{line_of('layer')}" in page


def test_a_damaged_snapshot_is_a_warning_and_no_more(died: Ran, tmp_path: Path) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    for path in (died.folder / "rank0").iterdir():
        data = path.read_bytes()
        (rank / path.name).write_bytes(data[: len(data) // 2] if path.name == "memory.pickle" else data)
    found = diagnose(open_traces([tmp_path]), load())
    assert found.findings[0].rule == "memory-pressure"
    assert found.memory is None
    assert any("memory.pickle" in warning for warning in found.warnings)


def history(*after: dict[str, Any]) -> dict[str, Any]:
    """What whoever asks for a snapshot where memory runs out is handed, with what came after."""
    frames = [{"name": "loss_of", "filename": "train.py", "line": 50}]
    made = [{"name": "forward", "filename": "train.py", "line": 20}]
    held = {"action": "alloc", "addr": 4096, "size": 300 * MIB, "stream": 0, "time_us": 1, "frames": made}
    lack = {"action": "oom", "size": 700 * MIB, "stream": 0, "time_us": 2, "device_free": 7, "frames": frames}
    return {"segments": [], "device_traces": [[held, lack, *after]]}


def test_a_snapshot_of_the_moment_alone_says_what_found_no_room(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(history()))
    first = diagnose(open_traces([path]), load()).findings[0]
    assert (first.rule, first.severity, first.ends_run) == ("memory-pressure", Severity.HIGH, True)
    assert "asking for 700 MiB that found no room beside the 300 MiB" in first.summary
    assert [(place.file, place.line) for place in first.where] == [("train.py", 50), ("train.py", 20)]


def test_what_an_error_frees_on_its_way_does_not_say_that_the_program_went_on(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    freed: list[dict[str, Any]] = [
        {"action": action, "addr": 4096, "size": 300 * MIB, "stream": 0, "time_us": 3, "frames": []}
        for action in ("free_requested", "free_completed")
    ]
    path.write_bytes(pickle.dumps(history(*freed)))
    first = diagnose(open_traces([path]), load()).findings[0]
    assert first.ends_run
    assert "asking for 700 MiB that found no room beside the 300 MiB" in first.summary
    assert first.where[0].line == 50


def test_a_program_that_went_on_did_not_die_of_it(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    later = {"action": "alloc", "addr": 1 << 40, "size": MIB, "stream": 0, "time_us": 3, "frames": []}
    path.write_bytes(pickle.dumps(history(later)))
    (found,) = diagnose(open_traces([path]), load()).findings
    assert found.summary == "an allocation failed for want of memory, and the program went on"
    assert not found.ends_run
