"""Installs the package beside other versions of Python, of torch and of what it depends on, and tries it there.

    python benchmarks/matrix.py build/matrix                       # what COMBINATIONS names, one after the other
    python benchmarks/matrix.py build/matrix --only 3.11-2.6.0-lowest

Each combination is an environment of its own (some GB, removed afterwards) in which all modules are imported, a
recording is analysed, the edits of the demo's program are told, and programs run watched. A Python that is not here
is left out, and said so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMBINATIONS = (
    "3.11-2.6.0-lowest",
    "3.12-2.6.0-lowest",
    "3.12-2.11.0-highest",
    "3.13-2.6.0-highest",
    "3.13-2.13.0-highest",
)
"""Python, torch, and which dependencies. Most lowest ones have no wheels for a Python that is newer than they are."""
TESTS = (
    "tests/live/collect/test_collect_unseen.py",
    "tests/live/collect/test_collect_habits.py",
    "tests/unit/collect",
    "tests/unit/trace/test_readers_torch_profiler.py",
)
FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis", "jsonschema")
IMPORT_ALL = """
import importlib, pkgutil, re, diagnose
for found in pkgutil.walk_packages(diagnose.__path__, "diagnose."):
    if not re.search("kernels.gpu|callbacks.|cluster|__main__|sitecustomize", found.name):  # optional, or no module
        importlib.import_module(found.name)
from diagnose.plugins import load
assert not load().problems, load().problems
"""


def main() -> None:
    """Try the combinations; the exit code is 1 where one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where environments are made")
    parser.add_argument("--only", nargs="+", default=COMBINATIONS, metavar="PYTHON-TORCH-DEPENDENCIES")
    parser.add_argument("--keep", action="store_true", help="leave the environments")
    options = parser.parse_args()
    failed = False
    for name in options.only:
        python, torch, which = name.split("-")
        interpreter = interpreter_of(python)
        if interpreter is None:
            print(f"{name}: left out, no Python {python} is here", flush=True)
            continue
        environment = options.folder.resolve() / name
        try:
            what = tried(environment, interpreter, torch, which)
        finally:
            if not options.keep:
                shutil.rmtree(environment, ignore_errors=True)
        failed |= what is not None
        print(f"{name}: {'all is well' if what is None else f'failed at {what}'}", flush=True)
    sys.exit(failed)


def interpreter_of(version: str) -> str | None:
    """A Python of this version on the PATH, or else among pyenv's."""
    below = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return shutil.which(f"python{version}") or (str(below[-1]) if below else None)


def tried(environment: Path, interpreter: str, torch: str, which: str) -> str | None:
    """The first step that fails, or None."""
    if subprocess.run([interpreter, "-m", "venv", "--clear", environment], check=False).returncode:
        return "making the environment"
    bound = lowest() if which == "lowest" else []
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"torch=={torch}", *bound, *FOR_TESTS, "-e", str(ROOT)]
    if subprocess.run([*pip, *wanted], check=False).returncode:
        return "installing " + " ".join(wanted)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "diagnose" / "cli" / "programs" / "demo_program" / "train.py", folder)
        for command in commands(environment / "bin"):
            where = ROOT if "pytest" in command else folder
            ended = subprocess.run(command, cwd=where, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
            if ended.returncode:
                return " ".join(map(str, command[1:]))
    return None


def commands(bin_folder: Path) -> Iterator[Sequence[str]]:
    """Yield the commands of one environment, each of which must end with exit code 0."""
    python, diagnose = str(bin_folder / "python"), str(bin_folder / "diagnose")
    yield python, "-c", IMPORT_ALL
    yield diagnose, "doctor"
    yield diagnose, "analyze", str(ROOT / "sample_traces" / "h200_naive_gpt")
    yield diagnose, "fix", "--dry-run", "--plain", "train.py"
    yield python, "-m", "pytest", "-x", "-p", "no:cacheprovider", *TESTS


def lowest() -> list[str]:
    """Each dependency at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = (re.match(r"([\w.-]+)>=([\d.]+)", one) for one in project["dependencies"])
    return [f"{found[1]}=={found[2]}" for found in bounds if found is not None]


if __name__ == "__main__":
    main()
