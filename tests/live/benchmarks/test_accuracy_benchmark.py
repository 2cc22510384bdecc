"""The sick bay says of each program what holds of it, and what is recorded of one can be carried, and scored."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from watching import LIMIT_S

from diagnose.model import Confidence, Finding, Severity

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from accuracy_markdown import markdown  # noqa: E402
from accuracy_pack import pack, unpack  # noqa: E402
from accuracy_programs import Program, programs  # noqa: E402
from accuracy_record import parted, visible_devices  # noqa: E402
from accuracy_score import Answer, predicted_ns, table  # noqa: E402

PROGRAMS = programs()
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])


def accuracy(*words: object) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "accuracy.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@each_program
def test_what_the_toml_says_holds(program: Program) -> None:
    assert program.device in ("cuda", "any")
    assert program.arms == (("train", "healthy") if program.ailment else ("healthy",))
    assert len(program.lines()) == len(program.code)
    assert len(program.functions()) <= len(program.lines())
    assert program.title
    assert program.why


@each_program
def test_both_scripts_can_be_shortened_and_made_tiny(program: Program) -> None:
    for arm in program.arms:
        text = (program.folder / f"{arm}.py").read_text()
        ast.parse(text)
        assert '"--steps"' in text
        assert '"--tiny"' in text


def test_there_are_enough_of_them() -> None:
    assert sum(bool(program.ailment) for program in PROGRAMS) >= 24
    assert sum(not program.ailment for program in PROGRAMS) >= 6
    assert {program.ranks for program in PROGRAMS} == {1, 2, 4}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("accuracy")
    accuracy("record", out, "--device", "cpu", "--only", "python_stall_metric")
    return out


def test_every_arm_is_recorded_in_every_view(recorded: Path) -> None:
    tasks = json.loads((recorded / "results.json").read_text())["tasks"]
    name = "python_stall_metric"
    assert {task for task, record in tasks.items() if record["ok"]} == {
        f"{name}/{arm}/{kind}" for arm in ("train", "healthy") for kind in ("run", "plain")
    }
    for arm in ("train", "healthy"):
        assert (recorded / name / arm / "run" / "rank0" / "steps.jsonl").exists()
        for view in ("stack", "bare"):
            events = profile(recorded / name / arm / "plain" / view / "rank0.json.gz")
            marks = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
            assert len(marks) == 4
            stacks = [event for event in events if event.get("cat") == "python_function"]
            assert bool(stacks) == (view == "stack")


def test_the_recorder_shows_in_no_stack_between_the_script_and_torch(recorded: Path) -> None:
    events = profile(recorded / "python_stall_metric" / "train" / "plain" / "stack" / "rank0.json.gz")
    frames = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert any("train.py" in frame for frame in frames)
    inner = {frame.rpartition(": ")[2] for frame in frames if "accuracy_child" in frame}
    assert inner <= {"main", "<module>", "ended", "_next_profile", "_ready", "_now_ns"}


def test_a_score_compares_with_the_truth(recorded: Path) -> None:
    answers = json.loads(accuracy("score", recorded, "--json", "--only", "python_stall_metric"))
    assert [answer["view"] for answer in answers] == ["run", "stack", "bare"]
    for answer in answers:
        assert answer["ailment"] == "python-stall"
        assert answer["measured_ns"] is not None
        assert answer["false"] is not None


def test_what_is_recorded_is_not_recorded_again(recorded: Path) -> None:
    assert accuracy("record", recorded, "--device", "cpu", "--only", "python_stall_metric") == ""


def test_what_is_packed_is_unpacked_with_the_same_contents(recorded: Path, tmp_path: Path) -> None:
    parts = pack(recorded, tmp_path / "parts")
    unpack(parts, tmp_path / "again")
    before, after = contents(recorded), contents(tmp_path / "again")
    assert before.keys() == after.keys()
    assert before == after
    assert sum(part.stat().st_size for part in parts) < sum(len(data) for data in before.values()) / 5


def test_the_table_tells_hits_from_misses() -> None:
    hit = answer(first="host-sync", place=1, is_line_right=True, predicted_ns=9_000_000, measured_ns=10_000_000)
    miss = answer(first="launch-bound", place=2, is_line_right=False, said_line="train.py:3", others=("launch-bound",))
    text = table([hit, miss])
    assert "first 1 of 2, found 2 of 2, line 1 of 2, false on healthy 0 of 2, saving off by 10%" in text
    assert "-10%" in text
    assert "ailing: launch-bound; line: train.py:3" in text


def test_the_published_tables_say_what_is_missed_in_words() -> None:
    hit = answer(first="host-sync", place=1, is_line_right=True, predicted_ns=9_000_000, measured_ns=10_000_000)
    second = answer(view="bare", first="launch-bound", place=2, is_line_right=None, others=("launch-bound",))
    text = markdown([hit, second])
    assert "| first | 1 of 1 | 0 of 1 |" in text
    assert "| line | 1 of 1 | - |" in text
    assert "| first, -10% | 2., after `launch-bound` | bare: launch-bound |" in text


def test_variables_of_programs_are_those_of_an_arm() -> None:
    found = {program.name: program.environment for program in PROGRAMS if program.environment}
    assert found["cpu_contention"]["healthy"]["OPENBLAS_NUM_THREADS"] == "1"
    assert all(set(arms) <= {"train", "healthy"} for arms in found.values())


def test_without_a_device_nobody_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert visible_devices() == ["1", "3"]


@pytest.mark.parametrize(
    ("devices", "each", "groups"),
    [("0 1 2 3", 1, ["0", "1", "2", "3"]), ("0 1 2 3", 2, ["0,1", "2,3"]), ("0 1 2", 2, ["0,1"]), ("0 1", 4, ["0,1"])],
)
def test_programs_of_several_ranks_share_the_devices_out(devices: str, each: int, groups: list[str]) -> None:
    assert parted(devices.split(), each) == groups


def answer(**facts: Any) -> Answer:
    usual: dict[str, Any] = {"program": "p", "view": "run", "ailment": "host-sync", "others": (), "false": ()}
    unknown = dict.fromkeys(("said_line", "predicted_ns", "measured_ns", "step_ns"))
    return Answer(**{**unknown, **usual, **facts})


def profile(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "results.json"]
    return {
        str(path.relative_to(folder)): gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in files
    }


def test_a_finding_whose_cost_is_not_known_predicts_nothing() -> None:
    found = Finding("leaking-memory", Severity.NOTE, None, 0, 0.0, Confidence.HINT, "it grows")
    assert predicted_ns(found) is None
    assert predicted_ns(replace(found, confidence=Confidence.BOUND)) == 0
