"""What a program may say of options that a fix changed on its command line, in whole runs that are compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from diagnose.program import Program
from diagnose.source.settings.command_line import COMMAND_LINE
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.whole_run.comparison import Original, compare
from diagnose.trial.whole_run.figures import read_text
from diagnose.trial.whole_run.observation import Observation
from diagnose.trial.whole_run.runs import RunRequest, Runs
from diagnose.trial.whole_run.told_options import Told, changed_options

torch = pytest.importorskip("torch")

GUARDED = """
if args.amp:
    print(f"mixed precision in {dtype}")
    log.info("scales by %s now", scale)
    print(x)
print("other words here")
"""
TOLD = Told.of([], ["--amp"], [GUARDED])
SOURCE = 'parser.add_argument("-j", "--num-workers", type=int)\nparser.add_argument("--amp", action="store_true")\n'


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (["d"], ["d", "--amp"], {"amp"}),
        (["-j", "4"], ["-j", "8"], {"j", "num_workers"}),
        (["--amp-dtype=float16"], ["--amp-dtype=bfloat16"], {"amp_dtype"}),
        (["loader.workers=1"], ["loader.workers=2"], {"workers"}),
        (["--no-compile", "d"], ["--compile", "d"], {"compile"}),
        (["--lr", "1"], ["--lr", "1"], set()),
    ],
)
def test_the_options_that_differ_are_found(before: Sequence[str], after: Sequence[str], names: set[str]) -> None:
    assert changed_options(before, after, [SOURCE]) == names


def run(folder: Path, printed: str, checkpoint: dict[str, Any]) -> Observation:
    folder.mkdir()
    torch.save(checkpoint, folder / "last.pt")
    (folder / "args.yaml").write_text(printed)
    files = {name: folder / name for name in ("last.pt", "args.yaml")}
    return Observation(folder, 0, read_text(printed, {}), read_text("", {}), files)


def differs(tmp_path: Path, printed: str, checkpoint: dict[str, Any]) -> list[str]:
    before = run(tmp_path / "before", "Namespace(amp=False, lr=1)\namp: false\n", {"args": {"amp": False}, "w": 1.0})
    after = run(tmp_path / "after", printed, checkpoint)
    return list(compare(Original(before, before, ()), after, losses=False, told=TOLD).differs)


def test_the_value_of_a_changed_option_is_no_difference(tmp_path: Path) -> None:
    assert differs(tmp_path, "Namespace(amp=True, lr=1)\namp: true\n", {"args": {"amp": True}, "w": 1.0}) == []


def test_what_is_printed_under_the_option_is_no_difference(tmp_path: Path) -> None:
    printed = "Namespace(amp=True, lr=1)\namp: true\nmixed precision in bf16\nINFO train: scales by 2.0 now\n"
    assert differs(tmp_path, printed, {"args": {"amp": True}, "w": 1.0}) == []


@pytest.mark.parametrize(
    ("printed", "checkpoint"),
    [
        ("Namespace(amp=True, lr=2)\namp: true\n", {"args": {"amp": True}, "w": 1.0}),
        ("Namespace(amp=True, lr=1)\namp: true\nmixed\n", {"args": {"amp": True}, "w": 1.0}),
        ("Namespace(amp=True, lr=1)\namp: true\nother words here\n", {"args": {"amp": True}, "w": 1.0}),
        ("Namespace(amp=True, lr=1)\namp: true\n", {"args": {"amp": True}, "w": 2.0}),
    ],
)
def test_whatever_else_differs_is_told(tmp_path: Path, printed: str, checkpoint: dict[str, Any]) -> None:
    assert differs(tmp_path, printed, checkpoint) != []


def test_paths_of_saved_options_are_told_by_their_last_key() -> None:
    assert TOLD.holds("['args'].state['amp']")
    assert not TOLD.holds("['amp'][0]")


def test_a_whole_run_starts_with_the_changed_command(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/train.py").write_text(SOURCE)
    program = Program.parse(["train.py", "d"], cwd=tmp_path / "p")
    copies = Workspace(program, tmp_path / "copies", dict(os.environ))
    patched = copies.make({COMMAND_LINE: "python\ntrain.py\nd\n--amp\n"}, "patched")
    runs = Runs(None, copies, 1)  # type: ignore[arg-type]
    assert runs._fresh(RunRequest(patched), "whole").words == ("train.py", "d", "--amp")
    assert runs.told(patched).options == {"amp"}
    assert not runs.told(copies.make({}, "original"))
