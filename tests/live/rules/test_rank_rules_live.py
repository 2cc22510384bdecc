"""Two gloo ranks on the processor, recorded by `diagnose run`: what is true of them whatever the clock says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_S

from diagnose import plugins
from diagnose.engine import DiagnosisWithClaims, examine
from diagnose.measure import Measures
from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.ddp.unused_parameters import used_map
from diagnose.trace.readers import open_traces

pytest.importorskip("torch")

PROGRAM = f"""
{LIGHT_TORCH}
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)


layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
model = DistributedDataParallel(layers, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2000):
    optimizer.zero_grad()
    for micro_step in range(3):
        model(torch.ones(8, 128)).square().mean().backward()
    optimizer.step()
del model  # it holds the group, whose threads would outlive it: see benchmarks/rank_ending.py
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gloo")
    (folder / "train.py").write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command = [
        sys.executable,
        "-m",
        "diagnose",
        "run",
        "--stop-after-trace",
        "--",
        *launcher,
        "--standalone",
        "train.py",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = (folder / ".diagnose" / "runs").iterdir()
    return found


@pytest.fixture(scope="module")
def examined(run: Path) -> DiagnosisWithClaims:
    return examine(open_traces([run]), plugins.load_rules())


def test_both_ranks_show_what_they_reduce_and_when(run: Path) -> None:
    for trace in open_traces([run]):
        measures = Measures(trace)
        comm, gradients = measures.communication, 4 * 6 * (128 * 128 + 128)
        assert len(measures.backward_passes) >= 3 * measures.step_count
        assert int(comm.size_bytes[comm.gradients].sum()) >= 3 * measures.step_count * gradients
        repeated = measures.exchange.waste == Waste.REPEATED
        assert set(comm.round[repeated].tolist()) == {1, 2}


def test_the_reducer_writes_and_reads_its_map_of_used_parameters_once_a_gradient(run: Path) -> None:
    for trace in open_traces([run]):
        measures = Measures(trace)
        found, gradients = used_map(measures), 2 * 6
        for entries in (found.writes, found.reads):
            within = (entries & measures.counted).total_ns
            assert within > 0 and len(entries) % gradients == 0 and len(entries) >= 3 * measures.step_count * gradients


def test_reducing_in_every_micro_step_and_searching_are_seen(examined: DiagnosisWithClaims) -> None:
    assert examined.claimed.get("syncing-every-microstep", 0) > 0
    assert examined.claimed.get("unused-parameter-search", 0) > 0
