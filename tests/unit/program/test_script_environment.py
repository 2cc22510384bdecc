"""The environment that a script makes for itself, as a process has it that loads torch before it runs the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.program import Program
from diagnose.program.environment import variables, with_script_environment
from diagnose.source.tree.syntax import Source


def declared(folder: Path, text: str, **environment: str) -> dict[str, str]:
    (folder / "train.py").write_text(text)
    return with_script_environment(Program.parse(["train.py"], cwd=folder), environment)


def test_variables_that_a_script_sets_are_found() -> None:
    source = Source(
        "import os\nos.environ['A'] = '1'\nos.environ.setdefault('B', '2')\nos.environ.update(C='3', D=str(4))\n"
        "os.environ.update({**defaults, 'E': '5'})\nenviron['F'] = '6'\nother['G'] = '7'\n"
    )
    found = {variable.name: (variable.literal, variable.only_if_absent) for variable in variables(source)}
    assert found == {"A": ("1", False), "B": ("2", True), "C": ("3", False), "D": (None, False), "E": ("5", False)}


def test_what_a_script_sets_before_its_imports_is_set_from_the_start(tmp_path: Path) -> None:
    text = (
        "import os\nos.environ['A'] = '1'\nos.environ.setdefault('B', '2')\nos.environ.setdefault('C', '3')\n"
        "import torch\nos.environ['D'] = '4'\n"
    )
    assert declared(tmp_path, text, B="shell") == {"A": "1", "B": "shell", "C": "3"}
    without_script = Program(("torchrun",), "launcher", None, tmp_path, tmp_path)
    assert with_script_environment(without_script, {"B": "x"}) == {"B": "x"}


def test_of_a_value_that_is_computed_nothing_is_known(tmp_path: Path) -> None:
    text = "import os\nos.environ['A'] = str(1 + 1)\nos.environ['B'] = '2'\nimport torch\n"
    assert declared(tmp_path, text) == {"B": "2"}


def test_a_value_that_is_set_replaces_that_of_the_shell(tmp_path: Path) -> None:
    assert declared(tmp_path, "import os\nos.environ['A'] = '1'\nimport torch\n", A="shell") == {"A": "1"}


@pytest.mark.parametrize(
    "first",
    ["import torch.nn", "from torch import nn", "from . import helper", "if True:\n    pass", "import json, numpy"],
)
def test_what_comes_after_an_import_of_a_library_or_a_branch_comes_too_late(tmp_path: Path, first: str) -> None:
    text = f"import os\nos.environ['A'] = '1'\n{first}\nos.environ['B'] = '2'\n"
    assert declared(tmp_path, text) == {"A": "1"}


def test_a_script_that_cannot_be_read_declares_nothing(tmp_path: Path) -> None:
    assert declared(tmp_path, "import os\nos.environ['A'] = \n", C="3") == {"C": "3"}
