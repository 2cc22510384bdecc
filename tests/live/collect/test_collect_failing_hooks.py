"""Whatever fails in the watcher: the program computes, prints and ends as it does alone, and the recording says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from failing_hooks import FAULT, ONE_OF_EACH
from watching import BARE, LIMIT_S, PROGRAMS

PROGRAM = PROGRAMS / "every_hook.py"
HARNESS = Path(__file__).parents[2] / "support" / "failing_hooks.py"
GUARDS = ("inside.guard.", "inside.transparency.Apart.", "inside.unlisted_thread.UnlistedThread._call")
"""What the others are caught by."""
UNTOLD = {
    "inside.modes.watch.Watch._end",
    "inside.modes.watch.Watch.exiting",
    "inside.process_hooks.ProcessHooks._exit",
    "inside.process_hooks.ProcessHooks._say_why_not",
    "inside.size_limit.unsignalled",
    "inside.writer.Writer.write_json",
}
"""Without these nothing is written at the end, so neither is that they failed."""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=BARE, cwd=PROGRAMS, timeout=LIMIT_S
    )


@pytest.fixture(scope="module")
def alone() -> subprocess.CompletedProcess[str]:
    """The program without a watcher."""
    return python(str(PROGRAM))


@pytest.fixture(
    scope="module", params=[(ONE_OF_EACH,), pytest.param((), marks=pytest.mark.nightly)], ids=["one", "all"]
)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The watched program, by the function that fails: one of each class and module, or all."""
    folder = tmp_path_factory.mktemp("failing")
    ran = python(str(HARNESS), str(folder), str(PROGRAM), *request.param)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, dict[str, Any]] = json.loads((folder / "outcomes.json").read_text())
    return {name: outcome for name, outcome in found.items() if not name.startswith(GUARDS)}


def test_most_functions_of_the_watcher_take_part(
    outcomes: dict[str, dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    assert len(outcomes) > (50 if "one" in request.node.name else 200)
    assert outcomes["none"]["traced"]
    assert outcomes["none"]["failures"] == []


def test_the_program_does_not_notice(
    outcomes: dict[str, dict[str, Any]], alone: subprocess.CompletedProcess[str]
) -> None:
    as_alone = (alone.returncode, alone.stdout, alone.stderr)
    seen = [
        name
        for name, outcome in outcomes.items()
        if (outcome["code"], outcome["printed"], outcome["complained"]) != as_alone
    ]
    assert seen == []


def test_the_recording_says_what_failed(outcomes: dict[str, dict[str, Any]]) -> None:
    untold = {name for name, outcome in outcomes.items() if not any(FAULT in said for said in outcome["failures"])}
    assert untold - {"none"} <= UNTOLD


@pytest.mark.parametrize(
    "function",
    [
        "inside.hooks.sites.Sites.install",
        "inside.hooks.step_hooks.StepHooks.install",
        "inside.hooks.step_hooks.hook_backward",
        "inside.hooks.step_hooks.hook_loader",
        "inside.hooks.step_hooks.hook_optimizers",
        "inside.hooks.step_hooks.hook_scaler",
        "inside.modes.watch.Watch.__init__",
        "inside.modes.watch.Watch.torch_arrived",
        "inside.modes.watch.start",
        "inside.process_hooks.ProcessHooks.__init__",
        "inside.transparency.arrived",
    ],
)
def test_a_program_starts_whatever_cannot_be_installed(
    tmp_path: Path, function: str, alone: subprocess.CompletedProcess[str]
) -> None:
    ran = python(str(HARNESS), str(tmp_path), str(PROGRAM), function)
    assert (ran.returncode, ran.stdout, ran.stderr) == (alone.returncode, alone.stdout, alone.stderr)
