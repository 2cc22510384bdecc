"""Which files of the user's a program reaches beyond those that its steps were seen in."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.collect.records import LOADED
from diagnose.compose.stack.run_context import knowledge
from diagnose.compose.stack.stack import Stack
from diagnose.model import Confidence, Diagnosis, Finding, Severity, Site
from diagnose.program import Program
from diagnose.program.reached_files import LARGEST_CONFIG_BYTES, read_reached
from diagnose.trace import Trace

FILES = {
    "train.py": (
        "import json\nimport torch\nimport model.net\nfrom config import WORKERS\nfrom .near import x\n"
        "exec(open('configurator.py').read())\nsettings = open('settings.yaml')\n"
        "@hydra.main(config_path='conf', config_name='base')\ndef main(cfg):\n    pass\n"
    ),
    "config.py": "from deeper import more\nWORKERS = 0\n",
    "near.py": "",
    "deeper/__init__.py": "from . import more\n",
    "deeper/more.py": "",
    "model/net.py": "",
    "configurator.py": "",
    "settings.yaml": "workers: 0\n",
    "conf/base.yaml": "workers: 1\n",
    "given.toml": "workers = 1\n",
    "config/small.py": "WORKERS = 1\n",
    "large.json": '{"x": "' + "x" * LARGEST_CONFIG_BYTES + '"}',
    "unused.py": "",
}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    words = ["train.py", "config/small.py", "--config=given.toml", "--data", "large.json"]
    return Program.parse(words, cwd=tmp_path)


def test_imports_executed_files_and_configs_are_reached(program: Program) -> None:
    found = read_reached(program, {str(program.entry): FILES["train.py"]})
    names = {str(Path(path).relative_to(program.root)) for path in found}
    assert names == set(FILES) - {"train.py", "unused.py", "large.json"}


@pytest.mark.parametrize(
    "line",
    [
        "import sys; sys.path.append('core')",
        "import sys\nsys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'core'))",
        "import sys\nsys.path.insert(0, str(Path(__file__).resolve().parent / 'core'))",
        "BASE = os.path.dirname(os.path.abspath(__file__))\nROOT = BASE\nsys.path.append(os.path.join(ROOT, 'core'))",
        "def add(path):\n    if path not in sys.path:\n        sys.path.insert(0, path)\n\n\nadd(join('core'))",
    ],
)
def test_folders_that_a_program_adds_to_its_path_are_looked_through(tmp_path: Path, line: str) -> None:
    files = {"train.py": f"{line}\nfrom raft import Raft\n", "core/raft.py": "import flow\n", "core/flow.py": ""}
    (tmp_path / "core").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "other.py").write_text("")
    found = read_reached(Program.parse(["train.py"], cwd=tmp_path), {str(tmp_path / "train.py"): files["train.py"]})
    assert {str(Path(path).relative_to(tmp_path)) for path in found} == {"core/raft.py", "core/flow.py"}


def test_what_imports_the_file_that_adds_a_folder_finds_modules_there(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "voc.py").write_text("")
    adds = (
        "def add(path):\n    sys.path.insert(0, path)\n\n\nhere = osp.dirname(__file__)\nadd(osp.join(here, 'lib'))\n"
    )
    (tmp_path / "_init_paths.py").write_text(adds)
    text = "import _init_paths\nfrom voc import Images\n"
    (tmp_path / "train.py").write_text(text)
    found = read_reached(Program.parse(["train.py"], cwd=tmp_path), {str(tmp_path / "train.py"): text})
    assert {Path(path).name for path in found} == {"_init_paths.py", "voc.py"}


def test_a_relative_folder_is_not_looked_for_in_folders_that_were_added(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(20)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"import sys\nsys.path.append('of_{name}')\nimport other\n")
    (tmp_path / "of_m0" / "of_m1").mkdir(parents=True)
    (tmp_path / "of_m0" / "of_m1" / "other.py").write_text("")
    text = "".join(f"import {name}\n" for name in names)
    (tmp_path / "train.py").write_text(text)
    found = read_reached(Program.parse(["train.py"], cwd=tmp_path), {str(tmp_path / "train.py"): text})
    assert {Path(path).stem for path in found} == set(names)


@pytest.mark.parametrize(
    "line",
    ["sys.path.append(folder)", "core = core\nsys.path.append(core)", "names.append('core')", "sys.path.append()"],
)
def test_other_folders_are_not(tmp_path: Path, line: str) -> None:
    text = f"{line}\nfrom raft import Raft\n"
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "raft.py").write_text("")
    assert not read_reached(Program.parse(["train.py"], cwd=tmp_path), {str(tmp_path / "train.py"): text})


def test_what_is_no_python_reaches_nothing_and_breaks_nothing(program: Program) -> None:
    assert "settings.yaml" not in "".join(read_reached(program, {str(program.entry): "def (:\n"}))


def test_a_fixer_sees_python_and_configs_apart(program: Program) -> None:
    diagnosis = Diagnosis.__new__(Diagnosis)
    object.__setattr__(diagnosis, "findings", ())
    finding = Finding("input-bound", Severity.HIGH, 0, 1, 0.5, Confidence.MEASURED, "")
    request = Stack.of(program, knowledge(program, diagnosis, [])).request(finding)
    assert {Path(path).suffix for path in request.sources} == {".py"}
    assert {Path(path).name for path in request.configs} == {"settings.yaml", "base.yaml", "given.toml"}
    assert tuple(request.words) == ("python", *program.words)


def test_files_that_were_loaded_by_computed_names_are_read(program: Program) -> None:
    diagnosis = Diagnosis.__new__(Diagnosis)
    object.__setattr__(diagnosis, "findings", ())
    unused = str(program.cwd / "unused.py")
    assert unused not in knowledge(program, diagnosis, [Trace("run")]).sources
    known = knowledge(program, diagnosis, [Trace("run", sites=(Site(LOADED, unused, 1),))])
    assert known.sources[unused] == FILES["unused.py"]
    assert not known.sites
