"""Programs that fail or misbehave inside a trial: each ends in one verdict, and nothing of it is left running."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from watching import LIGHT_TORCH, LIMIT_NS, left_of

from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, Verdict
from diagnose.program import Program
from diagnose.trial.bench import Bench
from diagnose.trial.process.write_guard import written_elsewhere
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import NS_PER_S

SCHEDULE = Schedule(
    pairs=4,
    generations=2,
    warmup_steps=2,
    drop_steps=1,
    block_ns=1,
    least_steps=2,
    usual_steps=2,
    look_every=9,
    stall_limit_ns=LIMIT_NS,
)
PROGRAM = f"""
{LIGHT_TORCH}
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 256)
for step in range(100_000):
    for _ in range(20):
        x @ x
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""
FIXER = Fixer("no-waste", lambda _request: None, Gate.BITWISE, "compute")
AT_STEP_5 = "    optimizer.zero_grad()\n    if step == 5:\n        "
WORKER = """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, at):
        if at > 3:
            raise ValueError(f"sample {at} is broken")
        return torch.zeros(1)
samples = iter(torch.utils.data.DataLoader(Broken(), num_workers=1))
for step in range(100_000):
    next(samples)"""

FAILURES = {
    "memory": (
        "    optimizer.zero_grad()",
        AT_STEP_5 + "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB')",
        Decision.OUT_OF_MEMORY,
        "ran out of memory: ",
        "CUDA out of memory. Tried to allocate 20.00 GiB",
    ),
    "a worker": (
        "for step in range(100_000):",
        WORKER,
        Decision.FAILED,
        "crashed: the program exited with code 1: ",
        "ValueError: sample 4 is broken",
    ),
    "the network": (
        "    optimizer.zero_grad()",
        AT_STEP_5 + "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/weights')",
        Decision.FAILED,
        "crashed: the program exited with code 1: ",
        "Connection refused>",
    ),
    "a hang": (
        "    optimizer.zero_grad()",
        AT_STEP_5 + "import time; time.sleep(3600)",
        Decision.FAILED,
        "hung: no answer in time",
        " after its start",
    ),
}


def tried(tmp_path: Path, patched: str, original: str = PROGRAM, schedule: Schedule = SCHEDULE) -> Verdict:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(original)
    (folder / "data").mkdir()
    (folder / "data" / "numbers.txt").write_text("1.5")
    program = Program.parse(["train.py"], cwd=folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        environment.pop(name, None)
    with Bench(program, tmp_path / "trials", schedule, Deadline(), environment=environment) as bench:
        before, after = bench.copy({}, "original"), bench.copy({"train.py": patched}, "patched")
        verdict = bench.attempt(FIXER, before, after).verdict
    left = [one for one in psutil.process_iter(["cmdline", "cwd"]) if str(tmp_path) in str(one.info["cwd"])]
    assert left_of(left) == []
    return verdict


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_ends_in_one_verdict_with_the_programs_own_words(tmp_path: Path, name: str) -> None:
    old, new, decision, begins, ends = FAILURES[name]
    patched = PROGRAM.replace(old, new)
    patience = 3 * NS_PER_S if name == "a hang" else LIMIT_NS  # what dies may take its time on a busy machine
    verdict = tried(tmp_path, patched, schedule=replace(SCHEDULE, stall_limit_ns=patience))
    assert verdict.decision is decision, verdict.summary
    assert verdict.summary.startswith(begins)
    assert verdict.summary.endswith(ends)
    assert "\n" not in verdict.summary


RUDE = """
import os, signal, time
scale = float(open("data/numbers.txt").read())
if os.fork() == 0:
    time.sleep(3600)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
def train(step):
    try:
        torch.save({"step": step}, "checkpoint.pt")
        optimizer.zero_grad()
        loss = model(x).square().mean() * scale
        loss.backward()
        optimizer.step()
    except (SystemExit, KeyboardInterrupt):
        pass
for step in range(200):
"""


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder for what is not meant to last is not the one in which the test has its own."""
    with tempfile.TemporaryDirectory() as short:
        assert not tmp_path.is_relative_to(short)
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield


@pytest.mark.usefixtures("apart")
def test_a_program_that_forks_ignores_requests_to_end_and_writes_checkpoints_is_judged_like_any_other(
    tmp_path: Path,
) -> None:
    latest = tmp_path / "results" / "latest.pt"
    latest.parent.mkdir()
    head = PROGRAM[: PROGRAM.index("for step")] + f"torch.save(model.state_dict(), {str(latest)!r})\n" + RUDE
    verdict = tried(tmp_path, head + "    train(step)\n", head + "    for _ in range(20): x @ x\n    train(step)\n")
    assert verdict.decision is Decision.KEPT, verdict.summary
    assert verdict.gate is not None
    assert verdict.gate.passed is True
    assert not (tmp_path / "project" / "checkpoint.pt").exists()
    written = {path.relative_to(tmp_path / "trials").parts[0] for path in (tmp_path / "trials").rglob("checkpoint.pt")}
    assert {name for name in written if not name.startswith("whole-")} == {"original", "patched"}
    assert f"1 file outside of their copies, by absolute paths or links (1 in {latest.parent})" in str(
        written_elsewhere(tmp_path / "trials")
    )
