"""What docs/across-ranks.md shows as commands works as shown."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_gather import host
from watching import LIMIT_S

from diagnose.cli import main

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "sample_traces"
DOC = (ROOT / "docs" / "across-ranks.md").read_text()
TESTED_ELSEWHERE = {
    "diagnose run -- torchrun --nproc-per-node 2 train.py": "tests/live/rules/test_rank_rules_live.py",
    "diagnose run --trace-ranks all -- torchrun --nproc-per-node 8 train.py": "tests/live/cli/test_gather.py",
}


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", DOC, re.DOTALL)
    lines = (line.split("#")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name; `job/` is there from the beginning for those that come before `gather`."""
    path = tmp_path_factory.mktemp("ranks")
    shutil.copytree(SAMPLES / "h200_straggler", path / "job")
    shutil.copytree(SAMPLES / "h200_straggler", path / "two")
    shutil.copytree(SAMPLES / "h200_expert_gpt", path / "one")
    (path / "host-a").mkdir()
    (path / "host-b").mkdir()
    for rank, name in enumerate(("host-a", "host-b")):
        run = host(path / name / "run", rank)
        shutil.copy(SAMPLES / "h200_straggler" / f"rank{rank}.json.gz", run / f"rank{rank}" / "trace.json.gz")
    return path


HERE = [line for line in commands() if line not in TESTED_ELSEWHERE]
MEASURES = "diagnose calibrate"


@pytest.mark.parametrize("line", [line for line in HERE if not line.startswith(MEASURES)])
def test_a_command_of_the_docs_does_its_work(
    folder: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if "gather" in line:
        shutil.rmtree("job")
    words = shlex.split(line)[1:]
    if "scaling one" in line:
        words.append("--weak")  # two programs that have nothing to do with each other
    code = main(words)
    said = capsys.readouterr()
    assert code == 0, said.err
    assert said.out


@pytest.mark.parametrize("line", [line for line in HERE if line.startswith(MEASURES)])
def test_a_command_of_the_docs_that_measures_does_its_work(tmp_path: Path, line: str) -> None:
    words = [sys.executable, "-m", *shlex.split(line)]
    own = {"PYTHONPATH": str(ROOT), "DIAGNOSE_CALIBRATIONS": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S, env={**os.environ, **own}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir())


def test_commands_that_are_tested_elsewhere_are_in_the_docs_and_the_tests_exist() -> None:
    assert set(TESTED_ELSEWHERE) <= set(commands())
    assert all((ROOT / path).exists() for path in TESTED_ELSEWHERE.values())


def test_the_folder_of_calibrations_is_where_the_docs_say() -> None:
    from diagnose.collect.calibrations import folder

    assert folder({}) == Path.home() / ".local" / "share" / "diagnose" / "calibrations"
    assert "`~/.local/share/diagnose/calibrations`" in DOC
