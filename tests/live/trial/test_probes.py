"""Probes at work: real programs whose steps have parts of known length, with and without each part."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from watching import LIGHT_TORCH

from diagnose.collect.experiments import load_probes
from diagnose.model import ProbeResult
from diagnose.probing.trial import result_of
from diagnose.program import Program
from diagnose.trial.bench import Bench
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram

SCHEDULE = Schedule(
    pairs=4, generations=1, warmup_steps=2, drop_steps=1, block_ns=1, least_steps=2, usual_steps=2, look_every=9
)
HEAD = f"""
import sys
{LIGHT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 256)
def work(times):
    for _ in range(times):
        x @ x
class Samples(Dataset):
    def __len__(self): return 12
    def __getitem__(self, index):
        work(READ)
        return {{"x": torch.full((256,), float(index)), "name": str(index)}}
class Wasteful(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        work(UPDATE)
        return super().step(closure)
class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y): return y.clone()
    @staticmethod
    def backward(ctx, grad):
        work(BACKWARD)
        return grad
model = nn.Linear(256, 1)
optimizer = Wasteful(model.parameters(), lr=1e-6)
"""
LOOP = """
for epoch in range(100_000):
    seen = 0
    for batch in DataLoader(Samples(), batch_size=4, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = Backward.apply(model(batch.pop("x"))).square().mean()
        loss.backward()
        optimizer.step()
        seen += 1
    assert seen == 3, seen
"""
LONG = 100
"""Products of 256 by 256: far longer than a turn of the scheduler on a busy machine, so that none can hide them."""


def probed(
    tmp_path: Path,
    name: str,
    loop: str = LOOP,
    *,
    read: int = 0,
    update: int = 0,
    backward: int = 0,
    workers: int = 0,
    setting: Mapping[str, float | str] | None = None,
    step_ns: int = 0,
) -> ProbeResult:
    project = tmp_path / "project"
    project.mkdir()
    known = f"READ, UPDATE, BACKWARD, WORKERS = {read}, {update}, {backward}, {workers}\n"
    (project / "train.py").write_text(known + HEAD + loop)
    program = Program.parse(["train.py"], cwd=project)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    watched = WatchedProgram(step_ns=step_ns)
    with Bench(program, tmp_path / "trials", SCHEDULE, Deadline(), watched, environment=environment) as bench:
        copy = bench.probed_copy(name, setting or {})
        return result_of(name, setting or {}, bench.probe(bench.copy({}, "original"), copy, name), bench.resolution)


def saves_most(result: ProbeResult) -> bool:
    assert not result.refused, result.refused
    assert result.step_ns is not None
    assert result.probed_ns is not None
    assert result.saved_ns is not None
    return result.probed_ns < 0.5 * result.step_ns and result.saved_ns[0] > 0


@pytest.mark.parametrize("workers", [0, 1])
def test_cached_input_takes_the_loader_away_and_epochs_end_as_ever(tmp_path: Path, workers: int) -> None:
    assert saves_most(probed(tmp_path, "cached-input", read=LONG, workers=workers))


def test_cached_input_refuses_a_program_without_a_loader(tmp_path: Path) -> None:
    loop = """
for step in range(100_000):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
    assert "no batch came from a torch.utils.data.DataLoader" in probed(tmp_path, "cached-input", loop).refused


def test_cached_input_refuses_a_program_that_writes_into_its_batches(tmp_path: Path) -> None:
    loop = LOOP.replace('batch.pop("x")', 'batch["x"].add_(1)')
    assert "writes into its batches" in probed(tmp_path, "cached-input", loop).refused


def test_no_optimizer_takes_updates_away(tmp_path: Path) -> None:
    assert saves_most(probed(tmp_path, "no-optimizer", update=LONG))


def test_no_optimizer_runs_the_closure_that_computes_the_gradients(tmp_path: Path) -> None:
    loop = """
def closure():
    work(UPDATE)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for step in range(100_000):
    assert optimizer.step(closure).item() > 0
"""
    found = probed(tmp_path, "no-optimizer", loop, update=LONG)
    assert not found.refused, found.refused
    assert found.step_ns is not None
    assert found.probed_ns is not None
    assert 0.25 < found.probed_ns / found.step_ns < 0.75  # the closure's half of the waste stays


def test_forward_only_takes_backward_passes_and_updates_away(tmp_path: Path) -> None:
    assert saves_most(probed(tmp_path, "forward-only", backward=LONG // 2, update=LONG // 2))


def test_forward_only_of_a_program_that_reads_gradients_tells_its_error(tmp_path: Path) -> None:
    loop = LOOP.replace("optimizer.step()", "model.weight.grad.norm()\n        optimizer.step()")
    found = probed(tmp_path, "forward-only", loop)
    assert "the program with the probe crashed" in found.refused
    assert "'NoneType' object has no attribute 'norm'" in found.refused


def test_no_sync_refuses_a_program_that_reads_nothing_of_a_device(tmp_path: Path) -> None:
    assert "reads nothing of a device" in probed(tmp_path, "no-sync").refused


def test_no_communication_takes_the_exchange_of_gradients_away(tmp_path: Path) -> None:
    train = f"""
import sys
{LIGHT_TORCH}
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Linear(2048, 2048), bucket_cap_mb=4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(1, 2048)
for step in range(100_000):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    norm = model.module.bias.grad.norm()
    dist.all_reduce(norm)
    optimizer.step()
"""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(train)
    torchrun = str(Path(sysconfig.get_path("scripts")) / "torchrun")
    program = Program.parse([torchrun, "--nproc-per-node", "2", "train.py"], launcher=True, cwd=project)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    watched = WatchedProgram(ranks=2)
    with Bench(program, tmp_path / "trials", SCHEDULE, Deadline(), watched, environment=environment) as bench:
        copy = bench.probed_copy("no-communication", {})
        found = result_of("", {}, bench.probe(bench.copy({}, "original"), copy, "probe"), bench.resolution)
    assert not found.refused, found.refused
    assert found.saved_ns is not None
    assert found.saved_ns[0] > 0


def test_no_communication_refuses_a_program_of_one_rank(tmp_path: Path) -> None:
    assert "there is one rank only" in probed(tmp_path, "no-communication").refused


def test_each_probe_says_what_it_takes_away_and_when_it_refuses() -> None:
    for probe in load_probes().values():
        assert "What it takes away\n" in probe.doc, probe.name
        assert "When it refuses\n" in probe.doc, probe.name
        assert not set(probe.measures) & set(probe.bounds), probe.name


@pytest.mark.parametrize(("factor", "slower"), [(0.5, False), (4, True)])
def test_batch_sweep_gives_the_step_with_another_batch(tmp_path: Path, factor: float, slower: bool) -> None:
    loop = LOOP.replace('batch.pop("x")', 'batch["x"]').replace("optimizer.zero_grad()", "work(len(batch['x']) * 10)")
    found = probed(tmp_path, "batch-sweep", loop, setting={"factor": factor})
    assert not found.refused, found.refused
    assert found.saved_ns is not None
    assert found.saved_ns[1] < 0 if slower else found.saved_ns[0] > 0


def test_sequence_sweep_gives_the_step_with_shorter_sequences(tmp_path: Path) -> None:
    loop = LOOP.replace('batch.pop("x")', 'batch["x"][:, :1].float().expand(-1, 256)')
    loop = loop.replace("optimizer.zero_grad()", "work(batch['x'].shape[1] // 8)")
    loop = 'Samples.__getitem__ = lambda self, index: {"x": torch.full((256,), index)}\n' + loop
    found = probed(tmp_path, "sequence-sweep", loop, setting={"length": 0.25})
    assert not found.refused, found.refused
    assert found.saved_ns is not None
    assert found.saved_ns[0] > 0


def test_a_delay_of_the_host_shows_in_a_program_that_computes_there(tmp_path: Path) -> None:
    found = probed(tmp_path, "delay", update=LONG, setting={"delayed": "host", "share": 1.0}, step_ns=100_000_000)
    assert found.saved_ns is not None
    assert found.saved_ns[1] < 0


def test_a_delay_of_the_device_is_refused_where_there_is_none(tmp_path: Path) -> None:
    found = probed(tmp_path, "delay", setting={"delayed": "device", "share": 0.1})
    assert "uses no device of CUDA or ROCm" in found.refused
