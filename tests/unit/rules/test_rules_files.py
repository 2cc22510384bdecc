"""Files that every step waits for: named as such, with the line and the fixer that writes them in the background."""

from __future__ import annotations

from dataclasses import replace

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.rule import Trace, drawn

SAVING = [("torch/serialization.py", 800, "save"), ("train.py", 70, "main")]


def on_the_host(*files: str) -> Trace:
    """A CPU-only run of steps with these ten columns of files each, `w` where one is written."""
    steps = len(files)
    trace = drawn(
        f"""
        host: {"oooooo          oooo" * steps}
        ckpt: {"".join("      " + columns + "    " for columns in files)}
        line: {"".join("      " + columns.replace("w", "x") + "    " for columns in files)}
        opt : {(" " * 19 + "O") * steps}
        """,
        stacks={"x": SAVING},
    )
    stacks = tuple(tuple(replace(frame, owned="torch/" not in frame.file) for frame in stack) for stack in trace.stacks)
    return replace(trace, stacks=stacks)


def test_a_checkpoint_in_every_step_is_the_first_finding_with_its_line() -> None:
    first = diagnose([on_the_host(*["wwwwwwwwww"] * 4)], plugins.load()).findings[0]
    assert first.rule == "python-stall"
    assert first.summary.endswith("10.0 ms per step reading or writing files, most of it at train.py:70")
    assert (first.where[0].file, first.where[0].line) == ("train.py", 70)
    assert first.fixers == ("async-checkpoint",)


def test_files_of_one_step_in_four_are_no_part_of_every_step() -> None:
    empty = " " * 10
    found = diagnose([on_the_host("wwwwwwwwww", empty, empty, empty)], plugins.load()).findings
    assert not [one for one in found if "files" in one.summary]
