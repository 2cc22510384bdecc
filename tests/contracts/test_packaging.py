"""What is installed is what lies in the checkout, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import diagnose

ROOT = Path(__file__).resolve().parents[2]
SHIPPED_AS_DATA = {"demo_program"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_of_the_checkout_is_listed() -> None:
    """setuptools leaves an unlisted package out of the wheel without a word."""
    folders = {path.parent for top in ("diagnose", "rules", "fixers") for path in (ROOT / top).rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders if folder.name not in SHIPPED_AS_DATA}
    found = {f"diagnose.{name}" if name in ("rules", "fixers") else name for name in found}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found


def test_a_program_that_ships_as_data_is_listed_as_data() -> None:
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    assert {pattern.split("/")[0] for pattern in data["diagnose.cli.programs"]} == SHIPPED_AS_DATA


def test_the_archive_of_sources_holds_what_the_tests_read() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text().splitlines()
    told = {word for line in manifest if line.startswith(("graft ", "include ")) for word in line.split()[1:]}
    named = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r'ROOT / "([\w.]+)"', path.read_text())
    }
    read = {name for name in named if (ROOT / name).exists()}
    brought_by_setuptools = {"MANIFEST.in", "README.md", "LICENSE", "pyproject.toml", "diagnose"}
    assert {"benchmarks", "docs", "CONTRIBUTING.md"} <= read <= told | brought_by_setuptools


def test_the_version_is_stated_once() -> None:
    assert PYPROJECT["project"]["version"] == diagnose.__version__


def test_rules_and_fixers_are_flat() -> None:
    """One file an idea and no list to maintain: the loader reads one folder."""
    for top in ("rules", "fixers"):
        folders = [path.name for path in (ROOT / top).iterdir() if path.is_dir() and path.name != "__pycache__"]
        assert folders == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("diagnose", ("numpy", "torch", "msgspec", "textual", "rich", "typing")),
        ("diagnose.api.analysis", ("torch", "textual", "IPython")),
        ("diagnose.api.loop_watch", ("torch", "textual", "IPython")),
        ("diagnose.cli", ("numpy", "torch", "textual", "libcst", "rich")),
        ("diagnose.engine", ("torch", "textual", "rich")),
        ("diagnose.report.terminal.text", ("torch", "textual")),
        ("diagnose.trial", ("torch", "textual")),
        ("diagnose.compose", ("torch", "textual")),
        ("diagnose.tui.app", ("torch",)),
    ],
)
def test_a_module_does_not_pull_in_what_it_must_run_without(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_bare_checkout_finds_its_rules_and_fixers_beside_a_hostile_folder(tmp_path: Path) -> None:
    """A user's folder may hold a `rules.py` of his own; ours are never imported by that name."""
    (tmp_path / "rules.py").write_text("raise SystemExit('the wrong rules')\n")
    (tmp_path / "fixers").mkdir()
    (tmp_path / "fixers" / "__init__.py").write_text("raise SystemExit('the wrong fixers')\n")
    code = (
        "import sys; sys.path.append(sys.argv[1]); from diagnose.plugins import load; found = load(); "
        "print(len(found.rules) > 0, len(found.fixers) > 0, found.problems, 'rules' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(ROOT)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (answer.stdout.strip(), answer.stderr) == ("True True () False", "")
