"""The page in a browser: its script runs under its own policy and complains of nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure.profile.step_profile import slowest_profile
from diagnose.report.page.html import render
from diagnose.session import State
from diagnose.trace.drawn import drawn

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_script_of_the_page_runs_without_an_error(tmp_path: Path) -> None:
    trace = drawn(
        "load: ww\nhost:   ol ol\ngpu :    aa bb\nstep:          |", repeat=5, kernels={"a": "a_gemm", "b": "</script>"}
    )
    diagnosis = diagnose([trace], plugins.load_rules())
    page = tmp_path / "report.html"
    page.write_text(render(State(diagnosis=diagnosis, profile=slowest_profile([trace], diagnosis))))
    assert BROWSER is not None
    command = [
        *(
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
        ),
        *("--dump-dom", f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not re.findall(r"CONSOLE.*", answer.stderr)
    shown = re.search(r'<section id="timeline-section"([^>]*)>', answer.stdout)
    assert shown is not None and "hidden" not in shown[1]  # the script has shown it
    assert answer.stdout.count("<script") == 2
