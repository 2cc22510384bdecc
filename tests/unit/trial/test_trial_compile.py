"""Programs that compile, in trials: their warm-up, their cache, and the gates on their numbers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.collect.inside.modes import ab_worker
from diagnose.model import Gate
from diagnose.program import Program
from diagnose.trial import schedule
from diagnose.trial.bench import Bench
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.schedule import Deadline, Schedule

PROGRAM = """
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(32, 8)
for step in range(40):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""
COMPILED = PROGRAM.replace("optimizer = torch", 'model.compile(backend="aot_eager")\noptimizer = torch')
WRONG = COMPILED.replace(".mean()", ".mean() * 1.001")


def project(folder: Path) -> Program:
    (folder / "project").mkdir()
    (folder / "project" / "train.py").write_text(PROGRAM)
    return Program.parse(["train.py"], cwd=folder / "project")


def bench(folder: Path) -> Bench:
    return Bench(project(folder), folder / "trials", Schedule(), Deadline(), environment=dict(os.environ))


@pytest.mark.slow
def test_compiled_code_with_dropout_and_statistics_passes_the_gate_and_a_wrong_scale_does_not(tmp_path: Path) -> None:
    with bench(tmp_path) as trials:
        original = trials.copy({}, "original")
        right, wrong = trials.copy({"train.py": COMPILED}, "right"), trials.copy({"train.py": WRONG}, "wrong")
        passed = trials.gate(Gate.ROUNDING, original, right)
        failed = trials.gate(Gate.ROUNDING, right, wrong)  # the reference of a compiled program is not compiled
    assert passed.passed is True, passed.detail
    assert failed.passed is False, failed.detail


def test_copies_share_a_cache_of_compiled_code_that_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "users"))
    copies = Workspace(project(tmp_path), tmp_path / "trials", os.environ)
    made = [copies.make({}, "one"), copies.make({"train.py": COMPILED}, "two")]
    caches = {copies.environment_of(copy)["TORCHINDUCTOR_CACHE_DIR"] for copy in made}
    assert caches == {str(tmp_path / "trials" / "compiled")}


SWITCHED_OFF = PROGRAM.replace("for step", "if False:\n    model = torch.compile(model)\nfor step")


@pytest.mark.parametrize(
    ("found", "compiles", "changed", "expected"),
    [
        (PROGRAM, False, {}, False),
        (PROGRAM, False, {"train.py": COMPILED}, True),
        (SWITCHED_OFF, False, {"train.py": SWITCHED_OFF.replace("1e-3", "2e-3")}, False),
        (SWITCHED_OFF, False, {"train.py": SWITCHED_OFF.replace("if False", "model.compile()\nif False")}, True),
        (COMPILED, True, {}, True),
        (PROGRAM, False, {"train.py": PROGRAM, "new.py": "net.compile()"}, True),
        (PROGRAM, False, {"train.py": PROGRAM + "pattern = re.compile('x')\n"}, False),
    ],
    ids=["as found", "a fix", "its own, switched off", "a fix beside it", "its own, seen", "a new file", "a pattern"],
)
def test_a_copy_compiles_where_the_run_was_seen_to_or_where_a_fix_wrote_it(
    found: str, compiles: bool, changed: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    program = project(tmp_path)
    (program.root / "train.py").write_text(found)
    copies = Workspace(program, tmp_path / "trials", os.environ, compiles)
    assert (copies.make(changed, "one").root in copies.compiling) is expected


def test_what_records_a_graph_waits_for_no_compiler(tmp_path: Path) -> None:
    copies = Workspace(project(tmp_path), tmp_path / "trials", os.environ)
    graphed = PROGRAM.replace(
        "optimizer = torch", "model = torch.cuda.make_graphed_callables(model, (x,))\noptimizer = torch"
    )
    recording = copies.make({"train.py": graphed}, "one").root
    assert recording in copies.compiling  # what runs is nobody's code, and shows late
    assert recording not in copies.slow
    compiled = copies.make({"train.py": COMPILED}, "two").root
    assert compiled in copies.compiling & copies.slow


class FakeHub:
    """As much of a hub as a warm-up needs."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.steps = SimpleNamespace(hook_again=lambda: None, loader=None)

    def on_torch(self, _callback: object) -> None:
        """No torch."""

    def synchronize(self) -> None:
        """No device."""


def steps_until_ready(monkeypatch: pytest.MonkeyPatch, compiling: set[int], warmup: int = 5, step_ns: int = 1) -> int:
    """How many steps the warm-up takes where something is compiled in each of `compiling`."""
    hub: Any = FakeHub()
    taken = ab_worker._Turns("nowhere", warmup, hub)
    ready: list[int] = []
    monkeypatch.setattr(taken, "_connect", lambda: None)
    monkeypatch.setattr(taken, "_send", lambda _message: ready.append(taken._steps))
    monkeypatch.setattr(taken, "_wait", lambda: None)
    for step in range(1, 1000):
        taken._compiling.times += step in compiling
        taken._after_step(step * step_ns)
        if ready:
            return step
    raise AssertionError("never ready")


def test_a_warm_up_lasts_until_nothing_has_been_compiled_for_three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_until_ready(monkeypatch, set()) == 5
    assert steps_until_ready(monkeypatch, {1, 2}) == 5
    assert steps_until_ready(monkeypatch, {1, 2, 4}) == 4 + ab_worker.QUIET_STEPS
    assert steps_until_ready(monkeypatch, {1, 4, 6, 7}) == 7 + ab_worker.QUIET_STEPS


def test_of_long_steps_three_are_enough_and_what_is_compiled_late_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ab_worker.LONG_STEP_NS, ab_worker.LONG_WARM_UP_STEPS) == (
        schedule.LONG_STEP_NS,
        schedule.LONG_WARM_UP_STEPS,
    )
    assert steps_until_ready(monkeypatch, set(), step_ns=ab_worker.LONG_STEP_NS) == ab_worker.LONG_WARM_UP_STEPS
    assert steps_until_ready(monkeypatch, set(), step_ns=ab_worker.LONG_STEP_NS - 1) == 5
    assert steps_until_ready(monkeypatch, {3}, step_ns=ab_worker.LONG_STEP_NS) == 3 + ab_worker.QUIET_STEPS
    assert steps_until_ready(monkeypatch, set(), warmup=2, step_ns=ab_worker.LONG_STEP_NS) == 2


def test_a_program_that_never_stops_compiling_becomes_ready_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_until_ready(monkeypatch, set(range(1000))) < ab_worker.MOST_WARM_UP_STEPS + ab_worker.QUIET_STEPS
