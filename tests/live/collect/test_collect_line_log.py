"""Following the program's lines for one step: what is seen, and that it leaves the program alone."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watching import PROGRAMS, QUICK, Ran, run

from diagnose.collect import Recipe
from diagnose.collect.inside.probes import line_log as following
from diagnose.collect.inside.probes.line_log import MOST_MOMENTS, LineLog, _put_together
from diagnose.collect.inside.source_ownership import Ownership
from diagnose.measure import Measures
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.telemetry.line_records import read_lines

PROGRAM = "written_out.py"
FIXED = Recipe(warmup=3, most_warmup_steps=2)
"""Opens its window after the third step, whatever the machine does."""
TEXT = (PROGRAMS / PROGRAM).read_text().splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TEXT, 1) if text in line)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("plain"), PROGRAM)


@pytest.fixture(scope="module")
def measures(plain: Ran) -> Measures:
    (trace,) = open_traces([plain.folder])
    return Measures(trace)


def followed(ran: Ran, rank: int = 0) -> dict[str, Any]:
    with gzip.open(ran.folder / f"rank{rank}" / "lines.json.gz", "rt") as file:
        record: dict[str, Any] = json.load(file)
    return record


def lines_of(ran: Ran) -> set[int]:
    record = followed(ran)
    return {record["frames"][place][1] for place in record["f"] if place >= 0}


def test_the_step_after_the_window_is_followed_whole(plain: Ran) -> None:
    record, window, steps = followed(plain), plain.record("window.json"), plain.lines("steps.jsonl")
    assert record["whole"]
    assert window["steps"] == QUICK.steps
    after = window["first_step"] + window["steps"]
    assert steps[after - 1]["t"] <= record["start_ns"]
    assert record["start_ns"] + sum(record["t"]) >= steps[after]["t"]
    assert record["f"][-1] == -1
    assert {line_of(text) for text in ("torch.ones(", "self.inner(x)", "0.5 * y", "halved(z)", "x / 2")} <= lines_of(
        plain
    )


def test_the_line_that_calls_the_model_is_a_site_and_those_within_it_are_none(plain: Ran) -> None:
    (site,) = (site for site in plain.lines("sites.jsonl") if site["kind"] == "forward")
    assert (site["line"], site["arguments"]) == (line_of("(call(x) - x)"), {"name": "Gate"})
    assert site["owned"]


def test_the_files_that_the_program_imported_are_known(plain: Ran) -> None:
    files = [site["file"] for site in plain.lines("sites.jsonl") if site["kind"] == "source"]
    assert str(PROGRAMS / PROGRAM) in files
    assert not any("site-packages" in file for file in files)


def test_nothing_of_it_stays(plain: Ran) -> None:
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "False\n", "")
    assert plain.record("facts.json")["watcher_failures"] == []


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("aten::ones", "torch.ones("),
        ("aten::linear", "self.inner(x)"),
        ("aten::tanh", "0.5 * y"),
        ("aten::div", "x / 2"),
        ("aten::square", ".square()"),
        ("aten::mse_loss", ""),
    ],
)
def test_operators_of_the_counted_steps_know_their_lines(measures: Measures, operator: str, text: str) -> None:
    trace = measures.trace
    named = np.array([trace.names[name] == operator for name in trace.ops.name.tolist()])
    inside = (trace.ops.start_ns >= measures.counted.starts[0]) & (trace.ops.start_ns < measures.counted.ends[-1])
    rows = np.flatnonzero(named & inside)
    if not text:
        assert len(rows) == 0  # the program has no such operator: the others are not found by luck
        return
    assert len(rows) >= measures.step_count
    assert places_of_ops(measures, rows)[0].line == line_of(text)


def test_a_helpers_line_comes_with_the_line_that_called_it(measures: Measures) -> None:
    trace = measures.trace
    divisions = np.flatnonzero([trace.names[name] == "aten::div" for name in trace.ops.name.tolist()])
    assert [place.line for place in places_of_ops(measures, divisions)[:2]] == [line_of("x / 2"), line_of("halved(z)")]


def test_what_the_backward_pass_does_belongs_to_the_line_that_it_differentiates(measures: Measures) -> None:
    trace = measures.trace
    wanted = "autograd::engine::evaluate_function: TanhBackward0"
    rows = np.flatnonzero([trace.names[name] == wanted for name in trace.ops.name.tolist()])
    assert len(rows)
    assert {place.line for place in places_of_ops(measures, rows)} <= {line_of("0.5 * y"), line_of("call(x) - x")}
    assert places_of_ops(measures, rows)[0].line == line_of("0.5 * y")


def test_python_between_operators_is_found_where_it_runs(tmp_path: Path) -> None:
    ran = run(tmp_path, PROGRAM, "--slow-python", "20000")
    (trace,) = open_traces([ran.folder])
    slow = Measures(trace)
    assert slow.places(slow.counted)[0].line in (line_of("total += one"), line_of("for one in range"))


def test_a_step_with_very_much_python_is_left_alone(tmp_path: Path) -> None:
    ran = run(tmp_path, PROGRAM, "--slow-python", str(MOST_MOMENTS))
    assert ran.returncode == 0
    assert len(followed(ran)["t"]) <= MOST_MOMENTS + 2
    assert ran.record("window.json")["steps"] == QUICK.steps


LOOPS = """
def work(count):
    total = 0
    for one in range(count):
        total += one
    last = sum(one * one for one in range(count))
    return total + last
"""


def stays(folder: Path, monkeypatch: pytest.MonkeyPatch, tick_ns: int) -> tuple[bool, list[tuple[int, int]]]:
    """Follows `LOOPS` by a clock that ticks whenever it is read: whether to its end, and how long at which line."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(following, "MOST_MOMENTS", 2000)
    monkeypatch.setattr(following, "MOST_NS", 1 << 62)
    monkeypatch.setattr(following, "_clock", itertools.count(step=tick_ns).__next__)
    space: dict[str, Any] = {}
    exec(compile(LOOPS, str(folder / "loops.py"), "exec"), space)
    log = LineLog(Ownership())
    assert log.begin(0)
    try:
        space["work"](5_000)
    finally:
        log.end()
    assert sys.gettrace() is None
    log.save(folder / "lines.json.gz")
    read = read_lines(folder / "lines.json.gz")
    lines = [read.stacks[place][0].line if read.stacks[place] else 0 for place in read.places]
    return log.is_whole, list(zip(lines, np.diff(read.times).tolist(), strict=False))


def test_a_long_loop_of_quick_lines_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_whole, found = stays(tmp_path, monkeypatch, tick_ns=1000)
    assert is_whole
    assert len(found) < 2000
    time_at = {line: sum(length for at, length in found if at == line) for line, _ in found}
    # Of two moments a turn, of a tick each: those of the expression are one line.
    assert time_at[4] == pytest.approx(5e6, rel=0.01)
    assert time_at[5] == pytest.approx(5e6, rel=0.01)
    assert time_at[6] == pytest.approx(10e6, rel=0.01)


def test_lines_that_take_as_long_as_operators_are_not_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_whole, found = stays(tmp_path, monkeypatch, tick_ns=20_000)
    assert not is_whole
    assert 2000 <= len(found) <= 2002
    assert {line for line, _ in found} <= {0, 2, 3, 4, 5}


def test_what_is_put_together_keeps_its_time_and_its_last_moments() -> None:
    times = [*range(0, 10 * 129, 10)]
    places = [7, *[1, 2] * 31, 9, *[3] * 64, 5]
    assert _put_together(times, places)
    assert (times, places) == ([0, 10, 320, 630, 640, 1280], [7, 1, 2, 9, 3, 5])


def test_nothing_is_put_together_where_an_operator_may_lie_between() -> None:
    times = [*range(0, 64 * 10, 10), 64 * 10 + 50_000, 64 * 10 + 50_010]
    places = [1, 2] * 33
    before = (list(times), list(places))
    assert not _put_together(times, places)
    assert (times, places) == before


def test_a_debugger_keeps_its_place(tmp_path: Path) -> None:
    ran = run(tmp_path, PROGRAM, "--debugger")
    assert (ran.stdout, ran.has("lines.json.gz")) == ("True\n", False)
    assert ran.record("window.json")["steps"] == QUICK.steps


def test_compiled_code_is_not_compiled_again(tmp_path: Path) -> None:
    ran = run(tmp_path, PROGRAM, "--compile", recipe=Recipe(warmup=4))
    assert ran.record("facts.json")["watcher_failures"] == []
    assert line_of("call(x) - x") in lines_of(ran)
    last = max(found["e"] for found in ran.lines("ranges.jsonl") if found["k"] == "compile")
    assert last <= ran.record("window.json")["start_ns"]
    assert not [site for site in ran.lines("sites.jsonl") if site["kind"] in ("graph_break", "recompile")]


def test_the_programs_own_profiler_ends_the_recording_but_not_the_program(tmp_path: Path) -> None:
    first = run(tmp_path / "first", PROGRAM, recipe=FIXED).record("window.json")["first_step"]
    ran = run(tmp_path / "second", PROGRAM, "--profile-at", str(first + QUICK.steps), recipe=FIXED)
    window = ran.record("window.json")
    assert (ran.returncode, ran.stdout, window["first_step"]) == (0, "False\n", first)
    assert window["steps"] == QUICK.steps
    assert "cut short" not in window["steady"]
    assert ran.has("trace.json.gz")


@pytest.mark.parametrize(("how", "returncode"), [("exit", 7), ("raise", 1), ("terminate", -15)])
def test_a_program_that_ends_in_the_followed_step_keeps_its_window(tmp_path: Path, how: str, returncode: int) -> None:
    # Decided after step 3, led in by the fourth, four more traced: after step 8 the ninth is being followed.
    ran = run(tmp_path, "training.py", "--end", how, "--end-after", "8", recipe=FIXED)
    assert ran.returncode == returncode
    assert ran.record("facts.json")["watcher_failures"] == []
    assert ran.has("trace.json.gz")
    assert ran.record("window.json")["steps"] == QUICK.steps
    assert not followed(ran)["whole"]


def test_ranks_follow_the_same_step(tmp_path: Path) -> None:
    ran = run(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "two_ranks.py")
    assert ran.returncode == 0
    for rank in (0, 1):
        window, steps = ran.record("window.json", rank), ran.lines("steps.jsonl", rank)
        assert steps[window["first_step"] + 3]["t"] <= followed(ran, rank)["start_ns"]
        assert followed(ran, rank)["whole"]


def test_a_log_that_never_began_writes_nothing(tmp_path: Path) -> None:
    log = LineLog(Ownership())
    log.end()
    log.save(tmp_path / "lines.json.gz")
    assert list(tmp_path.iterdir()) == []
