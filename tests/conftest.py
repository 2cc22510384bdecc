"""What holds for all tests, and what their whole run says at its end."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine draws examples is no property of ours; fixtures that examples share are written to allow it.
settings.register_profile(
    "house", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("house")

# The programs that tests start, hundreds of them, load what the first of them has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A thread for each core in each of several programs: they would spend as much again waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()  # until all is collected: nothing of it is garbage

# A test reads what it says that it reads, and leaves nothing in the home of whoever runs it.
os.environ["DIAGNOSE_CACHE"] = "off"
os.environ["DIAGNOSE_CALIBRATIONS"] = "off"

TALLY = "recording"
"""The property under which a test notes what became of a public recording: format, and `read` or why not."""


@pytest.fixture
def nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched arms of a composition leave no windows that could be read, unless a test says what is found there."""
    monkeypatch.setattr("diagnose.compose.proposals.candidates.open_traces", lambda _paths: [])


SLOW_FOLDERS = {"adversarial", "live", "recordings"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts programs is `slow`, and goes first: the last file should keep one worker alone briefly."""
    for item in items:
        if SLOW_FOLDERS & set(item.path.parts) or _starts_programs(item.path):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@cache
def _starts_programs(path: Path) -> bool:
    return re.search(r"^(import subprocess|from (watching|on_two_ranks) import)", path.read_text(), re.M) is not None


def pytest_collection_finish() -> None:
    """What the tests are made of stays until the end: no garbage collection need walk over it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a format: how many public recordings were read, how many refused and why."""
    found: Counter[tuple[str, str]] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                found.update(tuple(value.split("|", 1)) for name, value in report.user_properties if name == TALLY)
    if not found:
        return
    terminalreporter.section(f"{found.total()} public recordings")
    for form in sorted({form for form, _ in found}):
        outcomes = sorted(((count, what) for (of, what), count in found.items() if of == form), reverse=True)
        outcomes.sort(key=lambda outcome: outcome[1] != "read")
        terminalreporter.write_line(f"{form:<28} " + "; ".join(f"{count} {what}" for count, what in outcomes))
