"""`diagnose check`: one fixer's edit of a program, and what the gates say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import LIGHT_TORCH, LIMIT_S

from diagnose.cli import main
from diagnose.cli.programs import check
from diagnose.cli.programs.argv_split import Split, split_named
from diagnose.errors import Cancelled
from diagnose.model import EditCheck, GateAnswer, GateCheck
from diagnose.plugins import load
from diagnose.report.terminal.checks import as_json, as_text

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

PROGRAM = f"""
{LIGHT_TORCH}
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
"""

FIXER = '''
"""Changes a line.

What it changes
    A line.
Why it helps
    It does not.
Fix safety
    None.
"""

from diagnose.fixer import Edits, Fixer, Gate, Request


def rewrite(request: Request) -> Edits:
    path = request.entry
    text = request.sources[path].replace({before!r}, {after!r})
    return Edits({{path: text}}, "change a line")


FIXER = Fixer("{name}", rewrite, Gate.BITWISE, "compute", rules=("host-sync",))
'''


def diagnose(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diagnose", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "mine").mkdir()
    return tmp_path


def changing(folder: Path, name: str, before: str, after: str) -> None:
    """A fixer of the user's that puts one text in the place of another."""
    (folder / "mine" / f"{name}.py").write_text(FIXER.format(name=name, before=before, after=after))


def checked(folder: Path, *words: str) -> dict[str, Any]:
    done = diagnose(folder, "check", "--json", "--fixers", "mine", *words)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_an_edit_that_keeps_the_numbers_passes_and_nothing_is_left_behind(folder: Path) -> None:
    changing(folder, "square", ".square()", ".pow(2)")
    said = checked(folder, "square", "train.py")
    assert (said["fixer"], said["edits"], said["gate"]) == ("square", True, "passed")
    assert "+    loss = model(torch.randn(4, 8)).pow(2).mean()" in said["diff"]
    assert [(one["name"], one["answer"]) for one in said["gates"]] == [
        ("bitwise", "passed"),
        ("whole run", "passed"),
        ("exception", "passed"),
    ]
    assert (folder / "train.py").read_text() == PROGRAM
    assert [path.name for path in (folder / ".diagnose").iterdir()] == [".gitignore"]


def test_an_edit_that_changes_the_numbers_is_refused_with_the_first_difference(folder: Path) -> None:
    changing(folder, "scale", ".mean()", ".sum()")
    said = checked(folder, "scale", "train.py")
    assert said["gate"] == "refused"
    assert "step 1" in said["gates"][0]["detail"]


def test_an_edit_that_breaks_the_program_is_refused_with_its_words(folder: Path) -> None:
    changing(folder, "break", ".mean()", ".meen()")
    said = checked(folder, "break", "train.py")
    assert said["gate"] == "refused"
    assert "no attribute 'meen'" in said["gates"][0]["detail"]


def test_a_fixer_without_an_edit_says_so_and_is_unverified(folder: Path) -> None:
    said = checked(folder, "use-sdpa", "train.py")
    assert (said["edits"], said["diff"], said["gate"], said["gates"]) == (False, "", "unverified", [])
    assert said["detail"]


def test_a_program_that_fails_as_found_ends_with_3(folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit(7)\n")
    done = diagnose(folder, "check", "use-sdpa", "train.py")
    assert (done.returncode, done.stdout) == (3, "")
    assert "exit code 7" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "a fixer is missing"),
        (["use-sdpa"], "a training script is missing; for example `diagnose check use-sdpa train.py`"),
        (["use-sdp", "train.py"], "did you mean use-sdpa?"),
        (["use-sdpa", "nowhere.py"], "nowhere.py"),
        (["-m", "package"], "a fixer is missing"),
        (["--all"], "`diagnose check --all train.py`"),
        (["--setting", "workers", "use-sdpa", "train.py"], "is not NAME=VALUE"),
        (["--all", "--setting", "workers=2", "train.py"], "--setting needs one fixer"),
        (["--budget", "soon", "use-sdpa", "train.py"], "not a duration"),
        (["--frobnicate", "use-sdpa", "train.py"], "takes no option --frobnicate"),
        (["--format=html", "use-sdpa", "train.py"], "`diagnose report` writes other formats"),
    ],
)
def test_a_wrong_call_gets_one_line_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.chdir(folder)
    assert main(["check", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert says in err
    assert not (folder / ".diagnose").exists()


@pytest.mark.parametrize(
    ("words", "fixer", "found"),
    [
        ("use-sdpa train.py --json", "use-sdpa", Split([], ["train.py", "--json"])),
        ("--json use-sdpa --budget 2m train.py", "use-sdpa", Split(["--json", "--budget", "2m"], ["train.py"])),
        ("use-sdpa -m package.train x", "use-sdpa", Split([], ["package.train", "x"], module=True)),
        ("use-sdpa -- torchrun train.py", "use-sdpa", Split([], ["torchrun", "train.py"], launcher=True)),
        ("--all train.py one", None, Split(["--all"], ["train.py", "one"])),
        ("--all -- torchrun train.py", None, Split(["--all"], ["torchrun", "train.py"], launcher=True)),
    ],
)
def test_the_fixer_stands_before_the_program(words: str, fixer: str | None, found: Split) -> None:
    assert split_named(words.split(), "--all") == (fixer, found)


PASSED = GateCheck("bitwise", GateAnswer.PASSED, "25 tensors are equal")
REFUSED = GateCheck("whole run", GateAnswer.REFUSED, "line 3 of the output differs")
UNSEEN = GateCheck("ways out", GateAnswer.UNVERIFIED, "it never ends")


@pytest.mark.parametrize(
    ("gates", "together"),
    [
        ((PASSED,), GateAnswer.PASSED),
        ((PASSED, UNSEEN), GateAnswer.UNVERIFIED),
        ((UNSEEN, REFUSED, PASSED), GateAnswer.REFUSED),
        ((), GateAnswer.UNVERIFIED),
    ],
)
def test_one_gate_that_refuses_is_enough_and_all_have_to_pass(
    gates: tuple[GateCheck, ...], together: GateAnswer
) -> None:
    assert EditCheck("use-sdpa", "one kernel", "-a\n+b\n", gates).gate is together


def test_all_is_one_object_with_a_list_and_one_fixer_is_the_object_itself() -> None:
    one = EditCheck("use-sdpa", "one kernel", "-a\n+b\n", (PASSED,))
    alone = json.loads(as_json([one], whole=False))
    assert json.loads(as_json([one], whole=True)) == {"checks": [alone]}
    assert {"fixer", "edits", "diff", "gate", "gates"} <= set(alone)


def test_the_text_shows_the_diff_each_gate_and_other_settings() -> None:
    settings = ({"num_workers": 1}, {"num_workers": 2})
    one = EditCheck("loader-workers", "load in 1 worker", "-a\n+b\n", (PASSED, REFUSED), settings[0], settings)
    text = as_text([one, EditCheck("use-sdpa", "nothing to change")], 100, colour=False)
    assert "loader-workers   refused" in text
    assert "\n-a\n+b\n" in text
    assert "bitwise: passed. 25 tensors are equal" in text
    assert "whole run: refused. line 3 of the output differs" in text
    assert "--setting checks another: num_workers=2" in text
    assert "use-sdpa: nothing to change" in text


def test_an_interrupted_check_prints_what_was_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Iterator[EditCheck]:
        yield EditCheck("use-sdpa", "one kernel", "-a\n+b\n", (PASSED,))
        raise Cancelled

    monkeypatch.chdir(folder)
    monkeypatch.setattr(check, "_checked", interrupted)
    assert main(["check", "--all", "--json", "train.py"]) == 130
    assert [one["fixer"] for one in json.loads(capsys.readouterr().out)["checks"]] == ["use-sdpa"]


def test_all_asks_every_fixer_and_what_the_budget_has_no_time_for_is_unverified(folder: Path) -> None:
    changing(folder, "square", ".square()", ".pow(2)")
    done = diagnose(folder, "check", "--json", "--all", "--budget", "1ms", "--fixers", "mine", "train.py")
    assert done.returncode == 0, done.stderr
    found = {one["fixer"]: one for one in json.loads(done.stdout)["checks"]}
    assert set(found) == {*load().fixers, "square"}
    assert (found["square"]["edits"], found["square"]["gate"]) == (True, "unverified")
    assert found["zero-grad-none"]["edits"], "of the built-in ones, though no finding names it"
    assert "budget" in found["square"]["gates"][0]["detail"]
    assert all(one["detail"] for one in found.values())
