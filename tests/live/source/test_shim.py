"""A fix may bring a file of its own: it is patched, stored, applied, taken back and copied like any other."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from watching import LIMIT_S

from diagnose.fixer import Advice, Edits, Facts, Site, example_request
from diagnose.plugins import load
from diagnose.program import Program, patch
from diagnose.program.copy import copy_program
from diagnose.source.rewrite.shim import add_to_shim, import_for_effect
from diagnose.source.tree.syntax import Source, splice

SCRIPT = '"""Trains."""\n\nfrom __future__ import annotations\n\nimport torch\n\nprint("trained")\n'
CODE = "def twice(value):\n    return 2 * value\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "user"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    return root


def edits(root: Path) -> dict[str, str]:
    source = Source(SCRIPT)
    shim = add_to_shim(str(root), {}, ["import os"], CODE)
    return {str(root / "train.py"): splice(SCRIPT, import_for_effect(source, "see there")), shim.path: shim.text}


def test_a_new_file_is_in_the_diff_as_git_writes_it(folder: Path) -> None:
    made = patch.make(edits(folder), folder)
    assert "new file mode 100644\n--- /dev/null\n+++ b/diagnose_fixes.py\n" in made.text
    (folder / "fix.diff").write_bytes(made.diff_bytes())
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, timeout=LIMIT_S)
    subprocess.run(["git", "apply", "fix.diff"], cwd=folder, check=True, timeout=LIMIT_S)
    assert (folder / "diagnose_fixes.py").read_text() == edits(folder)[str(folder / "diagnose_fixes.py")]


def test_it_is_applied_and_taken_back(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "run"
    patch.store(patch.make(edits(folder), folder), kept)
    loaded = patch.load(kept)
    patch.apply(loaded, kept)
    assert (folder / "diagnose_fixes.py").is_file()
    assert "import diagnose_fixes  # see there" in (folder / "train.py").read_text()
    patch.revert(loaded, kept)
    assert not (folder / "diagnose_fixes.py").exists()
    assert (folder / "train.py").read_text() == SCRIPT


def test_a_copy_gets_it_beside_the_script(folder: Path, tmp_path: Path) -> None:
    program = Program.parse(["train.py"], cwd=folder)
    copied = copy_program(program, tmp_path / "copy")
    patch.apply_edits(edits(folder), root=program.root, copy=copied.root)
    assert (copied.root / "diagnose_fixes.py").is_file()
    assert not (folder / "diagnose_fixes.py").exists()


def test_several_fixes_share_the_file() -> None:
    first = add_to_shim("", {}, ["import torch", "import os"], CODE)
    second = add_to_shim(
        "", {first.path: first.text}, ["import abc", "import os"], "def half(value):\n    return value / 2\n"
    )
    assert second.path == first.path
    head, _, body = second.text.partition("\n\n\n")
    assert head.endswith("import abc\nimport os\n\nimport torch")
    assert body == CODE + "\n\ndef half(value):\n    return value / 2\n"
    assert add_to_shim("", {second.path: second.text}, [], CODE).text == second.text


def test_an_import_for_its_effect_comes_before_all_others() -> None:
    text = splice(SCRIPT, import_for_effect(Source(SCRIPT), "see there"))
    assert "annotations\n\nimport diagnose_fixes  # see there\nimport torch\n" in text
    assert import_for_effect(Source(text), "see there") == []


@pytest.mark.parametrize(
    ("words", "options", "home"),
    [
        (["train.py"], {}, "."),
        (["tools/train.py"], {}, "tools"),
        (["tools.train"], {"module": True}, "."),
        (["python", "tools/train.py"], {"launcher": True}, "tools"),
        (["python", "-m", "tools.train"], {"launcher": True}, "."),
    ],
)
def test_the_folder_that_imports_come_from_first(
    folder: Path, words: list[str], options: dict[str, bool], home: str
) -> None:
    (folder / ".git").mkdir()
    (folder / "tools").mkdir()
    (folder / "tools" / "train.py").write_text(SCRIPT)
    assert Program.parse(words, cwd=folder, **options).home == folder / home


def test_no_file_is_put_where_no_patch_reaches(folder: Path) -> None:
    (folder / "tools").mkdir()
    (folder / "tools" / "train.py").write_text(SCRIPT)
    assert Program.parse(["tools.train"], cwd=folder, module=True).home is None


LIBRARY = """
import torch
def make(dataset):
    return torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=True)
def one(dataset):
    return torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=1)
"""
ENTRY = """\
import torch
import library

if __name__ == "__main__":
    torch.manual_seed(0)
    loader = library.make(torch.arange(8))
    print(loader.num_workers, library.one(torch.arange(2)).num_workers, [batch.tolist() for batch in loader])
"""


def test_a_loader_of_a_library_gets_workers_through_the_file(tmp_path: Path) -> None:
    site = Site("DataLoader", "/lib/library.py", 4, owned=False, arguments={"num_workers": 0, "iterable": False})
    request = replace(
        example_request("input-bound", ENTRY, sites=[site], setting={"num_workers": 2}), facts=Facts(cpu_count=2)
    )
    answer = load().fixers["loader-workers"].rewrite(request)
    assert isinstance(answer, Edits)
    assert set(answer.files) == {"train.py", "diagnose_fixes.py"}
    assert "diagnose_fixes.py" in answer.summary
    told = []
    for name, files in (("before", {"train.py": ENTRY}), ("after", answer.files)):
        for path, text in {**files, "library.py": LIBRARY}.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / path).write_text(text)
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path / name,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        told.append(done.stdout.split(" ", 2))
    before, after = told
    assert (before[0], before[1]) == ("0", "1")
    assert (after[0], after[1]) == ("2", "1")
    assert before[2] == after[2]


def test_a_library_that_chose_a_number_itself_is_left_alone() -> None:
    site = Site("DataLoader", "/lib/library.py", 4, owned=False, arguments={"num_workers": 1, "iterable": False})
    request = example_request("input-bound", ENTRY, sites=[site], setting={"num_workers": 2})
    assert isinstance(load().fixers["loader-workers"].rewrite(request), Advice)
