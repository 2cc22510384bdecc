"""Trials of programs with several ranks, under a real torchrun with gloo."""

from __future__ import annotations

import json
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from watching import LIGHT_TORCH, LIMIT_NS, LIMIT_S

from diagnose.collect.inside.process.rendezvous import Place
from diagnose.collect.inside.process.source_digest import digest_of
from diagnose.fixer import Fixer, Gate
from diagnose.model import Decision
from diagnose.program import Program
from diagnose.trial.bench import Bench
from diagnose.trial.process.arm import Arm, ArmFailed, Trouble, Workplace
from diagnose.trial.process.loader_drain import LoaderDrain
from diagnose.trial.process.process_group import Groups
from diagnose.trial.process.stderr_tail import code_of_rank, of_the_program
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import NS_PER_S

TORCHRUN = str(Path(sysconfig.get_path("scripts")) / "torchrun")

TRAIN = f"""
import os, sys
{LIGHT_TORCH}
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
rank = dist.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(100_000):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def environment() -> dict[str, str]:
    here = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}


def ranks(folder: Path, text: str = TRAIN, *words: str, script: bool = False) -> Program:
    """A program of two ranks under torchrun, or one that starts its ranks itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(text)
    if script:
        return Program.parse(["train.py"], cwd=folder)
    return Program.parse([TORCHRUN, "--nproc-per-node", "2", *words, "train.py"], launcher=True, cwd=folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with Groups() as groups:
        yield Workplace(groups, tmp_path / "arms", sys.executable, lambda _: environment())


def two_arms(place: Workplace, program: Program) -> tuple[Arm, Arm]:
    return Arm(place, program, "original", 4), Arm(place, program, "patched", 4)


def resting(arm: Arm) -> dict[str, bool]:
    """Whether the launcher, and each of its ranks, is stopped."""
    launcher = psutil.Process(arm._group.pid)
    trainers = [child for child in launcher.children(recursive=True) if "train.py" in " ".join(child.cmdline())]
    deadline = time.monotonic() + LIMIT_S
    while any(each.status() != psutil.STATUS_STOPPED for each in trainers) and time.monotonic() < deadline:
        os.sched_yield()
    assert len(trainers) == 2
    return {
        "launcher": launcher.status() == psutil.STATUS_STOPPED,
        "ranks": all(each.status() == psutil.STATUS_STOPPED for each in trainers),
    }


ELASTIC = ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=head.cluster:29400", "--rdzv-id=7")


@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(("--standalone",), marks=pytest.mark.nightly),
        pytest.param(("--master-port=29571",), marks=pytest.mark.nightly),
        ELASTIC,
    ],
)
def test_two_arms_of_two_ranks_take_turns(place: Workplace, tmp_path: Path, words: tuple[str, ...]) -> None:
    one, other = two_arms(place, ranks(tmp_path / "project", TRAIN, *words))
    with one, other:
        for arm in (one, other):
            assert arm.ready(LIMIT_NS).step_ns > 0
        for arm in (one, other, other, one):
            assert resting(arm) == {"launcher": False, "ranks": True}
            assert arm.run(5, 1, LIMIT_NS).total_ns > 0


HASTY = TRAIN.replace('("gloo")', '("gloo", timeout=__import__("datetime").timedelta(seconds=1))')
IN_FLIGHT = HASTY.replace(
    "    optimizer.step()",
    """
    sent = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(sent, async_op=True)
    optimizer.step()
    if rank == 1:
        work = dist.all_reduce(sent, async_op=True)
    work.wait()
""",
)


def test_a_collective_may_be_in_flight_while_the_ranks_rest(place: Workplace, tmp_path: Path) -> None:
    with Arm(place, ranks(tmp_path / "project", IN_FLIGHT), "original", 4) as arm:
        arm.ready(LIMIT_NS)
        time.sleep(1.5)  # not for anything to happen: the group of this program would give up after one second
        assert arm.run(5, 1, LIMIT_NS).steps == 5


ON_DEVICES = HASTY.replace('"gloo"', '"nccl"').replace("seconds=1", "seconds=5")
ON_DEVICES = ON_DEVICES.replace("torch.set_num_threads(1)", "torch.set_default_device(f'cuda:{dist.get_rank()}')")


def devices(count: int) -> Any:
    """So many ranks, where NCCL has a device for each."""
    return pytest.param(count, marks=pytest.mark.skipif(torch.cuda.device_count() < count, reason="too few devices"))


@pytest.mark.parametrize("count", [devices(2), devices(4)])
def test_the_watchdog_of_nccl_lets_ranks_rest(place: Workplace, tmp_path: Path, count: int) -> None:
    one, other = two_arms(place, ranks(tmp_path / "project", ON_DEVICES, f"--nproc-per-node={count}"))
    with one, other:
        for arm in (one, other):
            arm.ready(LIMIT_NS)
        for arm in (one, other):
            time.sleep(8)  # the groups of this program would give up after five seconds, the watchdogs too
            assert arm.run(5, 1, LIMIT_NS).steps == 5


SPAWNS = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def work(rank, world):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(100_000):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""


def test_a_program_that_names_its_port_lives_twice(place: Workplace, tmp_path: Path) -> None:
    one, other = two_arms(place, ranks(tmp_path / "project", SPAWNS, script=True))
    with one, other:
        for arm in (one, other):
            arm.ready(LIMIT_NS)
        assert [arm.run(3, 1, LIMIT_NS).steps for arm in (other, one)] == [3, 3]


def test_a_block_takes_as_long_as_on_the_slowest_rank_and_waits_as_the_one_that_waits_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [
        {"total_ns": 50, "steps_ns": [5] * 10, "input_ns": 7, "memory": {"peak_bytes": 3}},
        {"total_ns": 90, "steps_ns": [9] * 10, "input_ns": 1, "memory": {"peak_bytes": 2}},
    ]
    monkeypatch.setattr(Arm, "_turn", lambda *_arguments: (10, answers))
    arm = Arm.__new__(Arm)
    arm._stock = LoaderDrain(())
    block = arm.run(10, 2, LIMIT_NS)
    assert (block.mean_ns, block.input_ns, block.memory.peak_bytes) == (9.0, 7, 3)
    assert block.steps_ns == [9] * 10


def test_ranks_must_run_the_same_edited_files(tmp_path: Path) -> None:
    program = ranks(tmp_path / "project", "open('note.txt', 'w').write('of another host')\n" + TRAIN)
    (program.root / "note.txt").write_text("as it was tried")
    with Groups() as groups:
        edited = {program.root: [str(program.root / "note.txt")]}
        place = Workplace(groups, tmp_path / "arms", sys.executable, lambda _: environment(), {}, edited)
        with Arm(place, program, "patched", 4) as arm, pytest.raises(ArmFailed, match="its files differ") as caught:
            arm.ready(LIMIT_NS)
    assert caught.value.trouble is Trouble.CRASHED


def test_the_digest_tells_files_apart_and_notices_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    digests = [digest_of(map(str, paths)) for paths in ([], [tmp_path / "a"], [tmp_path / "b"], [tmp_path / "c"])]
    assert len(set(digests)) == 4


def fixer(gate: Gate = Gate.BITWISE) -> Fixer:
    return Fixer("candidate", lambda _request: None, gate, "exposed_comm")


def attempt(tmp_path: Path, edited: str, patience_ns: int = LIMIT_NS) -> tuple[Decision, str]:
    """How a trial of two ranks ends; `patience_ns`: how long a block may say nothing."""
    program = ranks(tmp_path / "project")
    schedule = replace(Schedule.quick(), pairs=4, block_ns=20_000_000, stall_limit_ns=patience_ns)
    with Bench(program, tmp_path / "bench", schedule, Deadline(), environment=environment()) as bench:
        original = bench.copy({}, "original")
        patched = bench.copy({str(program.root / "train.py"): edited}, "patched")
        verdict = bench.attempt(fixer(), original, patched).verdict
        return verdict.decision, verdict.summary


def test_a_rank_that_waits_for_the_others_forever_is_ended_and_reported(tmp_path: Path) -> None:
    stuck = TRAIN.replace(
        "    optimizer.step()", "    if step == 6 and rank: dist.recv(torch.zeros(1), 0)\n    optimizer.step()"
    )
    decision, summary = attempt(tmp_path, stuck, patience_ns=6 * NS_PER_S)
    assert decision is Decision.FAILED
    assert summary.startswith("hung")


def test_the_error_of_a_rank_is_reported_not_that_of_its_launcher(tmp_path: Path) -> None:
    broken = TRAIN.replace(
        "    optimizer.step()", "    if step == 6 and rank: raise ValueError('no such bucket')\n    optimizer.step()"
    )
    decision, summary = attempt(tmp_path, broken)
    assert decision is Decision.FAILED
    assert "ValueError: no such bucket" in summary


def test_words_and_exit_code_of_the_rank_that_failed() -> None:
    text = (
        "W1121 18:13:03.959 1 torch/distributed/run.py:874] Setting OMP_NUM_THREADS\n"
        "[rank1]: RuntimeError: CUDA out of memory\n"
        "W1121 18:13:07.885 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 5 SIGTERM\n"
        "E1121 18:13:07.898 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) rank: 1\n"
        "Traceback (most recent call last):\nChildFailedError:\n"
    )
    assert of_the_program(text) == "RuntimeError: CUDA out of memory\n"
    assert code_of_rank(text) == -signal.SIGKILL
    assert of_the_program("ValueError: x\n") == "ValueError: x\n"
    of_two = "[rank0]: RuntimeError: Connection closed by peer\n[rank1]: ValueError: y\n[rank1]: ValueError: x\n"
    assert of_the_program(of_two) == "ValueError: y\nValueError: x\n"
    assert code_of_rank("ValueError: x\n") is None


def test_each_port_that_a_program_names_becomes_one_of_the_copys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    place = Place([7, 9])
    assert [place.own(port) for port in (29500, 29501, 29500, 0, 9)] == [7, 9, 7, 0, 9]
    assert place.own(29502) == 29502, "more than the copy holds"
    monkeypatch.setenv("MASTER_PORT", "7")
    assert [Place([7, 9]).own(port) for port in (7, 29501)] == [7, 9], "the ranks meet at the first already"
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert place.own(29500) == 29500, "a launcher gave it"


def test_recipes_are_json(tmp_path: Path) -> None:
    with Groups() as groups:
        place = Workplace(groups, tmp_path, sys.executable, lambda _: environment())
        program = ranks(tmp_path / "project", "import os\nprint(os.environ['DIAGNOSE_RECIPE'])\n", script=True)
        group = place.start(program, {"mode": "capture", "steps": 1}, tmp_path / "one", {"A": "1"}, {"B": "2"})
        assert group.wait(LIMIT_NS) == 0
        recipe = json.loads((tmp_path / "one" / "program.out").read_text())
        assert len(set(recipe["ports"])) == len(recipe["ports"]) > 1
