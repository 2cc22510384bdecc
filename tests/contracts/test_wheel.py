"""The wheel, as `pip install .` builds it: unpacked somewhere else, it is the whole program."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from watching import LIMIT_S

pytest.importorskip("setuptools", minversion="77", reason="the backend of the build, which `.[dev]` brings along")

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("diagnose", "rules", "fixers")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this checkout holds."""
    source, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("installed")
    for name in TOPS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(target)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert built.returncode == 0, built.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(unpacked: Path, code: str) -> str:
    """What the unpacked program says where neither the checkout nor its folder is on the path."""
    code = f"import sys; sys.path.insert(0, {str(unpacked)!r})\n{code}"
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_file_of_the_program_is_in_it(unpacked: Path) -> None:
    for top in TOPS:
        home = unpacked / "diagnose" if top == "diagnose" else unpacked / "diagnose" / top
        files = [path for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert files
        missing = [path for path in files if not (home / path.relative_to(ROOT / top)).is_file()]
        assert missing == []


def test_it_knows_all_rules_and_fixers(unpacked: Path) -> None:
    code = (
        "from diagnose.plugins import load; found = load(); print(len(found.rules), len(found.fixers), found.problems)"
    )
    rules, fixers = (len(list((ROOT / top).glob("[!_]*.py"))) for top in ("rules", "fixers"))
    assert run(unpacked, code) == f"{rules} {fixers} ()"


def test_its_entry_points_lead_to_the_command_and_to_the_backend_of_torch_compile(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    points = {point.group: point for point in PathDistribution(info).entry_points}
    assert {group: point.name for group, point in points.items()} == {
        "console_scripts": "diagnose",
        "torch_dynamo_backends": "diagnose",
    }
    for point in points.values():
        code = f"import {point.module} as home; print(callable(home.{point.attr}), home.__file__)"
        assert run(unpacked, code).startswith(f"True {unpacked}")
    version = f"from {points['console_scripts'].module} import main; sys.exit(main(['--version']))"
    assert PathDistribution(info).version in run(unpacked, version)
