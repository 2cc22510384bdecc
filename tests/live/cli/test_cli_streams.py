"""What is said to nobody: both streams lead into a pipe whose reader went away (`2>&1 | head`)."""

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
