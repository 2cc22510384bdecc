"""What one fixer has written into a program keeps no other fixer from its own edit."""

from __future__ import annotations

from pathlib import Path

from diagnose.compose.proposals.candidates import candidates
from diagnose.compose.search.bundle import gather
from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.fixer import Facts, Site, lines_with
from diagnose.model import Confidence, Finding, Gate, Place, Severity
from diagnose.plugins import load
from diagnose.program import Program

PROGRAM = """import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

DUMMY = True


def main():
    device = torch.device("cuda")
    if DUMMY:
        images = datasets.FakeData(1281167, (3, 64, 64), 10, transforms.ToTensor())
    else:
        images = datasets.ImageFolder("train", transforms.Compose([transforms.RandomCrop(64), transforms.ToTensor()]))
    sampler = DistributedSampler(images) if dist.is_initialized() else None
    loader = DataLoader(images, 256, shuffle=sampler is None, num_workers=4, pin_memory=True, sampler=sampler)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(90):
        if sampler is not None:
            sampler.set_epoch(epoch)
        train(loader, model, optimizer, device)


def train(loader, model, optimizer, device):
    for step, (image, target) in enumerate(loader):
        image = image.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(loss.item())


if __name__ == "__main__":
    main()
"""
LOADING = ("loader-workers", "loader-prefetch", "persistent-workers")


def finding(rule: str, file: Path, line: int, *fixers: str) -> Finding:
    place = Place(str(file), line, function="train")
    return Finding(rule, Severity.HIGH, None, 10_000_000, 0.2, Confidence.MEASURED, "", where=(place,), fixers=fixers)


def test_workers_are_given_beside_all_that_other_fixers_write_for_a_loader(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    line = lines_with(PROGRAM, "DataLoader(images")[0]
    site = Site(
        "DataLoader",
        str(file),
        line,
        "main",
        {"num_workers": 4, "shuffle": True, "pin_memory": True, "dataset": "FakeData"},
    )
    program = Program.parse(["train.py"], cwd=tmp_path)
    facts = Facts(cpu_count=16, device_name="NVIDIA H200", torch_version="2.13.0")
    stack = Stack.of(program, RunContext({str(file): PROGRAM}, (site,), facts))
    found = [finding("input-bound", file, line, *LOADING)]
    bundle = gather(stack, list(candidates(program, found, load())), frozenset(Gate))
    assert bundle.trains, "what draws random numbers comes last, on top of all other edits"
    assert set(bundle.names) == {*LOADING}
    compile(bundle.stack.texts[str(file)], "train.py", "exec")
