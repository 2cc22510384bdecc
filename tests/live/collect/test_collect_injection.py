"""A watched program starts as it would start without us."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from watching import run

from diagnose.collect import INJECTED, environment


def both(folder: Path, *words: str, stdin: str = "", extra: dict[str, str] | None = None) -> tuple[str, str]:
    """What a program prints watched, and as it is; its exit code and stderr must be equal."""
    watched = run(folder, *words, stdin=stdin, extra=extra)
    alone = run(folder, *words, watched=False, stdin=stdin, extra=extra)
    assert (watched.returncode, watched.stderr) == (alone.returncode, alone.stderr)
    return watched.stdout, alone.stdout


def test_a_script_sees_its_own_start(tmp_path: Path) -> None:
    watched, alone = (json.loads(text) for text in both(tmp_path, "mirror.py", "--lr", "1e-3", stdin="some input"))
    assert watched.pop("pythonpath_is_set") != alone.pop("pythonpath_is_set")
    assert watched == alone
    assert watched["stdin"] == "some input"


def test_a_module_sees_its_own_start(tmp_path: Path) -> None:
    watched, alone = (json.loads(text) for text in both(tmp_path, "-m", "trainpkg", "a", "b"))
    assert watched == alone
    assert (watched["name"], watched["argv"]) == ("__main__", ["a", "b"])


def test_pythonpath_of_the_users_stays_in_force(tmp_path: Path) -> None:
    extra = {"PYTHONPATH": str(tmp_path)}
    watched, alone = (json.loads(text) for text in both(tmp_path, "mirror.py", extra=extra))
    assert watched == alone
    assert str(tmp_path) in watched["path"]


def test_another_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.other_was_here = __file__")
    program = "import builtins, sys; print(builtins.other_was_here, sys.modules['sitecustomize'].__file__)"
    watched, alone = both(tmp_path, "-c", program, extra={"PYTHONPATH": str(tmp_path)})
    assert watched == alone


def test_another_sitecustomize_that_fails_is_reported_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')")
    watched = run(tmp_path, "-c", "print('on')", extra={"PYTHONPATH": str(tmp_path)})
    assert "RuntimeError: theirs" in watched.stderr
    assert watched.stdout == "on\n"


def test_a_program_without_torch_pays_for_no_import_of_ours_but_the_waiting(tmp_path: Path) -> None:
    program = "import sys; print(sorted(m for m in sys.modules if m.startswith('_diagnose')), 'json' in sys.modules)"
    assert (
        run(tmp_path, "-c", program)
        .stdout.strip()
        .endswith(
            "['_diagnose_collect', '_diagnose_collect.inside', '_diagnose_collect.inside.guard',"
            " '_diagnose_collect.inside.imports', '_diagnose_collect.records'] False"
        )
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", ["not json", "{}", '{"mode": "no such mode", "folder": "/nowhere"}'])
def test_a_recipe_that_cannot_be_carried_out_leaves_the_program_alone(tmp_path: Path, recipe: str) -> None:
    extra = {"PYTHONPATH": str(INJECTED), "DIAGNOSE_RECIPE": recipe}
    ran = run(tmp_path, "training.py", "--steps", "2", watched=False, extra=extra)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_module_of_the_programs_own_may_be_called_diagnose(tmp_path: Path) -> None:
    (tmp_path / "diagnose.py").write_text("mine = True")
    program = "import torch, diagnose; print(diagnose.mine, torch.optim.Optimizer.profile_hook_step.__module__)"
    ran = run(tmp_path / "run", "-c", program, extra={"PYTHONPATH": str(tmp_path)})
    assert ran.stdout == "True _diagnose_collect.inside.hooks.step_hooks\n"


def test_the_environment_names_the_injected_folder_once() -> None:
    once = environment({"mode": "watch", "folder": "/f"}, {"PYTHONPATH": "/mine", "HOME": "/h"})
    assert once["PYTHONPATH"] == os.pathsep.join([str(INJECTED), "/mine"])
    assert environment({}, {"PYTHONPATH": str(INJECTED)})["PYTHONPATH"] == str(INJECTED)
    assert once["HOME"] == "/h"
    assert json.loads(once["DIAGNOSE_RECIPE"])["mode"] == "watch"
