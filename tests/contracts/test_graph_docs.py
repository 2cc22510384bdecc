"""The example in docs/graph.md prints what is shown there, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from watching import LIMIT_S

from diagnose.graph.options import OURS
from diagnose.graph.patterns import PATTERNS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "graph.md").read_text()


def test_the_example_prints_what_is_shown(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "example.py").write_text(program)
    answer = subprocess.run(
        [sys.executable, "example.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        timeout=LIMIT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == shown


def test_the_tables_name_every_option_and_every_pattern() -> None:
    first_cells = re.findall(r"^\| (`[^|]*`) \|", TEXT, re.MULTILINE)
    named = re.findall(r"`([a-z-]+)`", " ".join(first_cells))
    assert named == [*OURS, *(pattern.name for pattern in PATTERNS)]
