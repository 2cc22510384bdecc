"""What the fixers of communication make of programs runs on two ranks, and trains as before.

All programs, before and after, run in one job of two ranks with gloo: each is executed with the group that is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from on_two_ranks import run_on_two_ranks

from diagnose import plugins
from diagnose.fixer import Advice, Edits, Fixer, Request, Scalar, example_request
from diagnose.model import Site

ROOT = Path(__file__).resolve().parents[3]
FIXERS: Mapping[str, Fixer] = plugins.load().fixers

HEAD = """import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
"""
FLAT = (
    HEAD
    + """
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
model = DistributedDataParallel(model{options})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
losses = []
for step in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
weights = [parameter.sum().item() for parameter in model.parameters()]
"""
)
IN_FUNCTIONS = (
    HEAD
    + """

def build():
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return DistributedDataParallel(
        net{options},
    )


def train(net, optimizer, losses, steps=6):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


losses = []
ddp = build()
torch.manual_seed(1 + dist.get_rank())
train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), losses)
weights = [parameter.sum().item() for parameter in ddp.parameters()]
"""
)
IN_A_CLASS = (
    HEAD
    + """

class Trainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model{options})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
torch.manual_seed(1 + dist.get_rank())
for _ in range(6):
    trainer.step(torch.randn(4, 8))
losses = trainer.losses
weights = [parameter.sum().item() for parameter in trainer.model.parameters()]
"""
)
COUNTED = (
    HEAD
    + """
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
losses = []
accumulate = 3
for step in range(4):
    optimizer.zero_grad()
    for {counter} in range(accumulate):
        loss = model(torch.randn(4, 8)).square().mean()
        (loss / accumulate).backward()
        losses.append(loss.item())
    optimizer.step()
weights = [parameter.sum().item() for parameter in model.parameters()]
"""
)
IN_A_METHOD = (
    HEAD
    + """

class Trainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses, self.every = [], 3

    def micro_step(self, x):
        loss = self.model(x).square().mean()
        (loss / self.every).backward()
        self.losses.append(loss.item())

    def train(self, count):
        for i in range(count):
            self.micro_step(torch.randn(4, 8))
            if (i + 1) % self.every == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()


trainer = Trainer(nn.Linear(8, 1))
torch.manual_seed(1 + dist.get_rank())
trainer.train(12)
losses = trainer.losses
weights = [parameter.sum().item() for parameter in trainer.model.parameters()]
"""
)
BY_CONDITION = (
    HEAD
    + """

def train(model, batches, optimizer, losses):
    optimizer.zero_grad()
    for i, x in enumerate(batches):
        output = model(x)
        loss = output.square().mean() / 2
        loss.backward()
        losses.append(loss.item())
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


wrapped = DistributedDataParallel(nn.Linear(8, 1))
torch.manual_seed(1 + dist.get_rank())
losses = []
train(wrapped, [torch.randn(4, 8) for _ in range(8)], torch.optim.SGD(wrapped.parameters(), lr=0.1), losses)
weights = [parameter.sum().item() for parameter in wrapped.parameters()]
"""
)
BY_HAND = (
    HEAD
    + """

def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    average_gradients(model)
    optimizer.step()
    losses.append(loss.item())
weights = [tensor.sum().item() for tensor in model.state_dict().values()]
"""
)
BY_HAND_IN_PLACE = BY_HAND.replace(BY_HAND[BY_HAND.index("def average") : BY_HAND.index("model = ")], "").replace(
    "    average_gradients(model)\n",
    "    for name, p in model.named_parameters():\n        if p.grad is not None:\n"
    "            dist.all_reduce(p.grad)\n            p.grad.div_(dist.get_world_size())\n",
)
BY_HAND_AMONG_MANY = (
    BY_HAND.replace("(model):\n    size = float(dist.get_world_size())", "(model, many):")
    .replace("/= size", "/= many")
    .replace("model = nn", "rank, world = dist.get_rank(), dist.get_world_size()\nmodel = nn")
    .replace("    average_gradients(model)", "    average_gradients(model, world)")
)
SENDS_WEIGHTS = FLAT.format(options="").replace(
    "    losses.append",
    "    for parameter in model.parameters():\n        dist.broadcast(parameter.data, src=0)\n    losses.append",
)
SHARDED = (
    HEAD
    + """from torch.distributed.fsdp import fully_shard

model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
for block in {blocks}:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
losses = []
for step in range(3):
    for micro_step in range(2):
        loss = model(torch.randn(4, 8)).square().mean() / 2
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
weights = [parameter.full_tensor().sum().item() for parameter in model.parameters()]
"""
)
WRAPPED = [program.format(options="") for program in (FLAT, IN_FUNCTIONS, IN_A_CLASS)]
BY_PARTS = COUNTED.replace("for {counter} in range(accumulate)", "for part in torch.randn(10, 8).chunk(3)").replace(
    "torch.randn(4, 8)", "part"
)
ACCUMULATED = [COUNTED.format(counter="micro_step"), COUNTED.format(counter="_"), BY_CONDITION, IN_A_METHOD, BY_PARTS]
SHARDS = [SHARDED.format(blocks=blocks) for blocks in ("model", "model.children()", "list(model)")]
KEPT: list[Mapping[str, Scalar]] = [{"kept": kept, "of": 4} for kept in ("2-3", "1", "0,3")]
IN_MORE_STEPS = [
    SHARDS[0].replace("range(2)", f"range({count})").replace("() / 2", f"() / {count}") for count in (4, 8)
]


def cases() -> list[tuple[str, str, Mapping[str, Scalar]]]:
    """Fixer, program, setting."""
    searching = [
        program.format(options=", find_unused_parameters=True") for program in (FLAT, IN_FUNCTIONS, IN_A_CLASS)
    ]
    return [
        *(("ddp-all-used", program, {}) for program in searching),
        *(("ddp-buckets", program, {"megabytes": 1}) for program in WRAPPED),
        *(("no-buffer-broadcast", program, {}) for program in WRAPPED),
        *(("no-sync", program, {}) for program in ACCUMULATED),
        *(("use-ddp", program, {}) for program in (BY_HAND, BY_HAND_IN_PLACE, BY_HAND_AMONG_MANY)),
        ("use-ddp", BY_HAND.replace("/= size", "= parameter.grad.data / size"), {}),
        ("drop-broadcast", SENDS_WEIGHTS, {}),
        *(("no-sync", program, {}) for program in (*SHARDS, *IN_MORE_STEPS)),
        *(("fsdp-keep", program, {"kept": "all"}) for program in SHARDS),
        *(("fsdp-keep", program, {"kept": "half"}) for program in SHARDS),
        *(("fsdp-keep", program, kept) for program in SHARDS for kept in KEPT),
        *(("powersgd-gradients", program, {"rank": 1}) for program in WRAPPED[:1]),
    ]


def request(program: str, setting: Mapping[str, Scalar]) -> Request:
    line = next((at for at, text in enumerate(program.splitlines(), 1) if "DistributedDataParallel(" in text), 0)
    # As over NCCL: with all gradients in one bucket, what is made for it runs over gloo as well.
    sites = [Site("DistributedDataParallel", "train.py", line, None, {"backend": "nccl"})] if line else []
    return example_request("exposed-communication", program, sites=sites, setting=setting)


def edited(name: str, program: str, setting: Mapping[str, Scalar]) -> str:
    answer = FIXERS[name].rewrite(request(program, setting))
    assert isinstance(answer, Edits), (name, answer)
    return answer.files["train.py"]


FOUND = ("losses", "weights")


def test_fixed_programs_train_as_before_on_every_rank(tmp_path: Path) -> None:
    pairs = [(name, before, edited(name, before, setting)) for name, before, setting in cases()]
    programs = list(dict.fromkeys(text for _, *texts in pairs for text in texts))
    for numbers in run_on_two_ranks(programs, tmp_path, FOUND):
        found = dict(zip(programs, numbers, strict=True))
        for name, before, after in pairs:
            (losses, weights), (new_losses, new_weights) = found[before], found[after]
            exact = {"rel": 0, "abs": 0} if FIXERS[name].gate.value == "bitwise" else {"rel": 1e-5, "abs": 1e-6}
            assert new_losses == pytest.approx(losses, **exact), name
            assert new_weights == pytest.approx(weights, **exact), name


def test_without_the_reduction_the_numbers_would_differ(tmp_path: Path) -> None:
    """That the comparison above can fail."""
    alone = BY_HAND.replace("    average_gradients(model)\n", "")
    ranks = run_on_two_ranks([BY_HAND, alone], tmp_path, FOUND)
    assert ranks[0][0][1] == ranks[1][0][1]
    assert ranks[0][1][1] != ranks[1][1][1]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("small_buckets", "ddp-buckets"),
        ("unused_parameter_search", "ddp-all-used"),
        ("syncing_every_microstep", "no-sync"),
        ("exposed_communication", "drop-broadcast"),
        ("regathering_parameters", "fsdp-keep"),
    ],
)
def test_a_sick_program_becomes_its_healthy_twin(name: str, folder: str) -> None:
    patient = ROOT / "benchmarks" / "sickbay" / name
    made = example_request("as-found", (patient / "train.py").read_text())
    answer = FIXERS[folder].rewrite(made)
    assert isinstance(answer, Edits)
    assert answer.files["train.py"] == (patient / "healthy.py").read_text()


def test_gradients_reduced_by_hand_are_left_to_the_wrapper() -> None:
    text = (ROOT / "benchmarks" / "sickbay" / "unoverlapped_gradients" / "train.py").read_text()
    answer = FIXERS["use-ddp"].rewrite(example_request("unoverlapped-gradients", text))
    assert isinstance(answer, Edits)
    assert "all_reduce" not in answer.files["train.py"]
    assert (
        "    model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)\n"
        in answer.files["train.py"]
    )


def test_nn_data_parallel_is_told_line_by_line_how_to_start_a_process_for_each_device() -> None:
    text = (ROOT / "benchmarks" / "sickbay" / "data_parallel_module" / "train.py").read_text()
    answer = FIXERS["use-ddp"].rewrite(example_request("data-parallel-module", text))
    assert isinstance(answer, Advice)
    for words in (
        "train.py:64",
        "torchrun --nproc-per-node 2 train.py",
        "DistributedSampler",
        "model.module.state_dict",
    ):
        assert words in answer.text


@pytest.mark.parametrize("name", [name for name in FIXERS if name.startswith(("ddp-", "fsdp-"))])
def test_programs_of_one_device_are_left_alone(name: str) -> None:
    text = (ROOT / "benchmarks" / "sickbay" / "naive_gpt" / "train.py").read_text()
    assert not isinstance(FIXERS[name].rewrite(example_request("as-found", text)), Edits)
