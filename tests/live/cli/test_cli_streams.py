"""What is said to nobody: into a pipe whose reader went away (`2>&1 | head`), a full disk, a closed stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHONPATH = str(Path(__file__).parents[3])


@pytest.mark.parametrize(("words", "code"), [(["analyze", "nowhere.json"], 2), (["frobnicate"], 2), (["explain"], 0)])
def test_the_exit_code_stays_what_it_would_have_been(tmp_path: Path, words: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "diagnose", *words]
        environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
        ended = subprocess.run(
            command, cwd=tmp_path, stdout=writer, stderr=writer, env=environ, check=False, timeout=300
        )
    finally:
        os.close(writer)
    assert ended.returncode == code


TRAINS_ON = "import pathlib; pathlib.Path('done.txt').write_text('whole')"


@pytest.mark.parametrize("broken", ["2> /dev/full", "2>&-", "2>&1 >&-"])
def test_a_program_runs_to_its_end_where_nothing_can_be_said_of_it(tmp_path: Path, broken: str) -> None:
    (tmp_path / "train.py").write_text(TRAINS_ON)
    assert spoken_to_nobody(tmp_path, broken, "run", "--plain", "train.py") == 0
    assert (tmp_path / "done.txt").read_text() == "whole"


@pytest.mark.parametrize(("words", "code"), [(("explain",), 0), (("frobnicate",), 2), (("analyze", "nowhere.json"), 2)])
def test_streams_that_are_closed_change_no_exit_code(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    assert spoken_to_nobody(tmp_path, ">&- 2>&-", *words) == code


def spoken_to_nobody(folder: Path, redirections: str, *words: str) -> int:
    """The exit code of a command whose streams a shell has redirected."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "diagnose", *words]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=False, timeout=300
    ).returncode
