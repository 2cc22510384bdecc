"""Regressions between two commits as text, as JSON, and for code hosts."""

from __future__ import annotations

import json

from diagnose.regressions import Checked, Difference
from diagnose.regressions.costs import Costs
from diagnose.report.export.regressions import as_commands, as_sarif
from diagnose.report.terminal.regressions import as_json, as_text

SYNC = Difference("sync", "the host waits for the device once in each step (never before)", "src/train.py", 12)
SIZE = Difference("flops", "matrix products take 20 % more FLOPs; the batch is [8] instead of [4]", is_regression=False)


def checked(*differences: Difference) -> Checked:
    costs = Costs(4, {"launch": {("src/train.py", 3): 400}}, peak_bytes=2048)
    return Checked("a" * 40, ".", "/home/u/project", "src/train.py", (costs, costs), differences)


def test_text_has_a_line_for_each_difference_and_one_for_the_step() -> None:
    first, *lines, last = as_text(checked(SYNC, SIZE)).splitlines()
    assert first == "1 regression from aaaaaaaaaaaa to the work tree"
    assert lines == [f"  ! src/train.py:12: {SYNC.message} (sync)", f"  - {SIZE.message} (flops)"]
    assert last.startswith("A step now: 100 kernels, 0 waits of the host")
    assert as_text(checked(SIZE)).startswith("no regression from")


def test_one_wait_is_no_plural() -> None:
    costs = Costs(4, {"launch": {("train.py", 3): 4}, "sync": {("train.py", 5): 4}}, peak_bytes=2048)
    said = as_text(Checked("a" * 40, ".", "/home/u/project", "train.py", (costs, costs), ()))
    assert "A step now: 1 kernel, 1 wait of the host, 0 copies to the device" in said


def test_json_tells_regressions_and_information_apart() -> None:
    found = json.loads(as_json(checked(SYNC, SIZE)))
    assert found["regressions"] == [{"kind": "sync", "message": SYNC.message, "file": "src/train.py", "line": 12}]
    assert [one["kind"] for one in found["information"]] == ["flops"]
    assert (found["base"], found["head"], found["steps"]) == ("a" * 40, ".", 4)


def test_annotations_are_warnings_at_lines_and_notices() -> None:
    assert as_commands(checked(SYNC, SIZE)).splitlines() == [
        f"::warning file=src/train.py,line=12,title=diagnose%3A sync::{SYNC.message}",
        f"::notice title=diagnose%3A flops::{SIZE.message.replace('%', '%25')}",
    ]
    assert as_commands(checked()) == "::notice title=diagnose::a training step costs what it did\n"


def test_sarif_has_a_place_for_every_difference() -> None:
    """Code scanning refuses a log with a result that has none: the script stands for what no line does."""
    (run,) = json.loads(as_sarif(checked(SYNC, SIZE)))["runs"]
    levels = [(result["ruleId"], result["level"]) for result in run["results"]]
    assert levels == [("regression-sync", "warning"), ("regression-flops", "note")]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert [place["artifactLocation"]["uri"] for place in places] == ["src/train.py", "src/train.py"]
    assert [place["region"]["startLine"] for place in places] == [12, 1]
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": "file:///home/u/project/"}}
