"""Fixes that change how the program is started: in the stack, in the patch, and in the copies that trials run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import libcst as cst
import pytest
from composing import finding, fixer

from diagnose.compose.stack import stack_store
from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Answer, Edits, Request
from diagnose.model import Facts
from diagnose.program import Program, patch
from diagnose.source.settings.command_line import COMMAND_LINE
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name, parse
from diagnose.trial.process.workspace import Workspace

TEXT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?")
parser.add_argument("-j", "--workers", type=int, default=0)
parser.add_argument("--pin", action="store_true")
args = parser.parse_args()
loader = DataLoader(data, num_workers=args.workers, pin_memory=args.pin)
"""


def setting(name: str, value: int | bool) -> Callable[[Request], Answer]:
    """Sets an argument of the one `DataLoader(…)` where the program keeps it."""

    def rewrite(request: Request) -> Answer:
        (path,) = request.sources
        source = parse(request.sources[path])
        assert source is not None
        call = next(call for call in source.every(cst.Call) if call_name(call) == "DataLoader")
        given = argument(call, name)
        found = request.set_by(given.value, path, source, switch=True) if given is not None else None
        if found is None or found.value == value:
            return None
        return Edits(request.edited([(found.path, [found.to(value)])]), f"{name}={value}")

    return rewrite


WORKERS = fixer("workers", setting("num_workers", 4))
PIN = fixer("pin", setting("pin_memory", True))


def program_of(tmp_path: Path, words: list[str], **how: bool) -> Program:
    (tmp_path / "train.py").write_text(TEXT)
    return Program.parse(words, cwd=tmp_path, **how)


def stack_of(program: Program) -> Stack:
    assert program.entry is not None
    return Stack.of(program, RunContext({str(program.entry): program.entry.read_text()}, (), Facts()))


def put_on(stack: Stack, *fixers_of: object) -> Stack:
    for one in fixers_of:
        answer = stack.answer(one, (finding("a", 9, one.name),), {})  # type: ignore[attr-defined,arg-type]
        assert isinstance(answer, Edits)
        stack = stack.with_fix(one, (finding("a", 9, one.name),), {}, answer)  # type: ignore[attr-defined,arg-type]
    return stack


@pytest.mark.parametrize(
    ("words", "how", "after"),
    [
        (["train.py", "d"], {}, "python train.py d --workers 4 --pin"),
        (["train.py", "-j", "2", "a b"], {}, "python train.py -j 4 'a b' --pin"),
        (["train.py", "--workers=2"], {}, "python train.py --workers=4 --pin"),
        (["train", "d"], {"module": True}, "python -m train d --workers 4 --pin"),
        (["env", "train.py", "d"], {"launcher": True}, "env train.py d --workers 4 --pin"),
        (["env", "-u", "X", "python", "-m", "train", "d"], {"launcher": True}, None),
    ],
)
def test_an_option_is_set_where_the_program_is_steered(
    tmp_path: Path, words: list[str], how: dict[str, bool], after: str | None
) -> None:
    stack = put_on(stack_of(program_of(tmp_path, words, **how)), WORKERS, PIN)
    assert stack.patch.changes == ()
    assert stack.patch.command is not None
    assert stack.patch.command.typed == (after or "env -u X python -m train d --workers 4 --pin")


def test_which_words_the_program_reads_is_told_of_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    launched = ["env", "-m", "tools", "train.py", "d"]
    assert program_of(tmp_path, launched, launcher=True).own_arguments == 4
    assert program_of(tmp_path, ["env", "python", "-m", "train", "d"], launcher=True).own_arguments == 4
    assert program_of(tmp_path, ["bash", "-c", "python train.py d"], launcher=True).own_arguments is None


def test_a_program_without_arguments_keeps_its_settings_in_its_source(tmp_path: Path) -> None:
    stack = put_on(stack_of(program_of(tmp_path, ["train.py"])), WORKERS)
    assert stack.patch.command is None
    assert "default=4" in stack.patch.text


@pytest.mark.parametrize("words", [["train.py", "d", "--", "e"], ["bash", "-c", "python train.py d"]])
def test_words_that_are_not_the_programs_are_left_alone(tmp_path: Path, words: list[str]) -> None:
    program = program_of(tmp_path, words, launcher=words[0] == "bash")
    assert COMMAND_LINE not in put_on(stack_of(program), WORKERS).edited


def test_one_fix_of_the_command_is_taken_out_without_the_other(tmp_path: Path) -> None:
    stack = put_on(stack_of(program_of(tmp_path, ["train.py", "d"])), WORKERS, PIN)
    left = stack.leave_out("workers")
    assert left is not None
    assert left.patch.command is not None
    assert left.patch.command.typed == "python train.py d --pin"


def test_a_copy_starts_with_the_changed_command(tmp_path: Path) -> None:
    program = program_of(tmp_path, ["train.py", "d"])
    texts = put_on(stack_of(program), WORKERS).edited
    space = Workspace(program, tmp_path.parent / "copies", dict(os.environ))
    assert space.make(texts, "patched").words == ("train.py", "d", "--workers", "4")
    assert space.make({}, "original").words == ("train.py", "d")


def test_a_changed_command_is_stored_beside_the_patch_and_taken_apart(tmp_path: Path) -> None:
    stack = put_on(stack_of(program_of(tmp_path, ["train.py", "d"])), WORKERS, PIN)
    run = tmp_path / "run"
    run.mkdir()
    patch.store(stack.patch, run)
    stack_store.store(stack, run)
    loaded = patch.load(run)
    assert loaded == stack.patch
    assert (run / patch.COMMAND).read_text() == "python train.py d --workers 4 --pin\n"
    part = stack_store.leave_out(run, loaded, ["pin"], {"workers": WORKERS, "pin": PIN})
    assert part.command is not None
    assert part.command.typed == "python train.py d --workers 4"


def test_the_diff_of_a_verdict_shows_the_command(tmp_path: Path) -> None:
    stack = put_on(stack_of(program_of(tmp_path, ["train.py", "d"])), WORKERS)
    assert stack.patch.text == "command line\n-python train.py d\n+python train.py d --workers 4\n"
