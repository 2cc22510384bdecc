"""The page in a browser: its script runs under its own policy and complains of nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from diagnose import analyze, plugins
from diagnose.engine import diagnose
from diagnose.measure.profile.step_profile import slowest_profile
from diagnose.report.page.html import render
from diagnose.session import State
from diagnose.trace.drawn import drawn

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def opened(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The page as the browser has it after its script has run, and what the browser says."""
    assert BROWSER is not None
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
        *("--virtual-time-budget=2000", "--dump-dom", f"--user-data-dir={folder / 'profile'}", page.as_uri()),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("sample", ["h200_naive_gpt", "cpu_demo"])
def test_the_page_of_a_recording_complains_of_nothing(tmp_path: Path, sample: str) -> None:
    page = tmp_path / "report.html"
    analyze(SAMPLES / sample).save(page)
    assert page.stat().st_size < 6_000_000
    answer = opened(page, tmp_path)
    assert not re.findall(r"CONSOLE.*", answer.stderr)
    assert "<svg" in answer.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_script_of_the_page_runs_without_an_error(tmp_path: Path) -> None:
    trace = drawn(
        "load: ww\nhost:   ol ol\ngpu :    aa bb\nstep:          |", repeat=5, kernels={"a": "a_gemm", "b": "</script>"}
    )
    diagnosis = diagnose([trace], plugins.load_rules())
    page = tmp_path / "report.html"
    page.write_text(render(State(diagnosis=diagnosis, profile=slowest_profile([trace], diagnosis))))
    answer = opened(page, tmp_path)
    assert not re.findall(r"CONSOLE.*", answer.stderr)
    shown = re.search(r'<section id="timeline-section"([^>]*)>', answer.stdout)
    assert shown is not None and "hidden" not in shown[1]  # the script has shown it
    assert answer.stdout.count("<script") == 2
