"""Input fixers on programs as people write them: the edit is where the value is kept, and the numbers stay."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Advice, Answer, Edits, Facts, Finding, Request, Site
from diagnose.model import Confidence, Place, Scalar, Severity
from diagnose.plugins import load

FIXERS = load().fixers

DIGITS = '''"""Learns digits; options by argparse, loader options in dictionaries."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 8)
        self.fc2 = nn.Linear(8, 10)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(epoch, batch_idx, loss.item())


def test(model, device, test_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            correct += (model(data).argmax(1) == target).sum().item()
    print(correct)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=8, metavar='N',
                        help='batch size (default: 8)')
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--no-accel', action='store_true')
    parser.add_argument('--log-interval', type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")

    train_kwargs = {'batch_size': args.batch_size}
    test_kwargs = {'batch_size': 32}
    if device.type == "cuda" or True:
        cuda_kwargs = {'num_workers': 1,
                       'shuffle': True}
        train_kwargs.update(cuda_kwargs)
        test_kwargs.update(cuda_kwargs)

    digits = TensorDataset(torch.randn(48, 16), torch.randint(10, (48,)))
    train_loader = DataLoader(digits, **train_kwargs)
    test_loader = DataLoader(digits, **test_kwargs)

    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)


if __name__ == '__main__':
    main()
'''

PICTURES = '''"""Learns pictures, or made-up ones; everything by argparse and a worker function."""
import argparse

import torch
import torch.nn as nn
import torch.utils.data

parser = argparse.ArgumentParser(description='training')
parser.add_argument('-j', '--workers', default=0, type=int, metavar='N',
                    help='number of data loading workers (default: 0)')
parser.add_argument('-b', '--batch-size', default=8, type=int)
parser.add_argument('--gpu', default=None, type=int)
parser.add_argument('--dummy', action='store_true', help='use fake data')


class FakePictures(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=generator), index % 4


def main():
    args = parser.parse_args()
    main_worker(args.gpu, args)


def main_worker(gpu, args):
    torch.manual_seed(0)
    device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train_dataset = FakePictures(32)
    val_dataset = FakePictures(16)
    train_sampler = None
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers)
    train(train_loader, model, criterion, optimizer, device)
    validate(val_loader, model, criterion, device)


def train(train_loader, model, criterion, optimizer, device):
    model.train()
    for i, (images, target) in enumerate(train_loader):
        # move data to the same device as model
        images = images.to(device)
        target = target.to(device)
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(i, loss.item())


def validate(val_loader, model, criterion, device):
    with torch.no_grad():
        for images, target in val_loader:
            print(criterion(model(images.to(device)), target.to(device)).item())


if __name__ == '__main__':
    main()
'''

TEXT = '''"""A small model of bytes; globals that a configurator may override."""
import numpy as np
import torch
import torch.nn as nn

batch_size = 4
block_size = 8
max_iters = 4
device = 'cpu' # 'cuda', 'cuda:0' etc.
config_keys = [k for k, v in globals().items() if not k.startswith('_') and isinstance(v, (int, str))]
exec(open('configurator.py').read()) # overrides from command line or config file

torch.manual_seed(1337)
device_type = 'cuda' if 'cuda' in device else 'cpu'
train_data = np.arange(4096, dtype=np.uint16) % 97

def get_batch(split):
    ix = torch.randint(len(train_data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((train_data[i:i+block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((train_data[i+1:i+1+block_size]).astype(np.int64)) for i in ix])
    x, y = x.to(device), y.to(device)
    return x, y

model = nn.Sequential(nn.Embedding(97, 16), nn.Linear(16, 97)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
X, Y = get_batch('train')
iter_num = 0
while True:
    loss = nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten())
    X, Y = get_batch('train')
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(iter_num, loss.item())
    iter_num += 1
    if iter_num > max_iters:
        break
'''
CONFIGURATOR = "import sys\nfor arg in sys.argv[1:]:\n    exec(open(arg).read())\n"


def asked(
    name: str, text: str, rule: str = "input-bound", *, more: Mapping[str, str] | None = None, **loader: Scalar
) -> Request:
    """The request after a run of the program on a CUDA machine, with the finding at every line that copies."""
    lines = text.splitlines()
    number = next((number for number, line in enumerate(lines, 1) if "loader = " in line and "DataLoader(" in line), 0)
    sites = [Site("DataLoader", name, number, arguments=loader)] if loader else []
    places = tuple(Place(name, n) for n, line in enumerate(lines, 1) if ".to(device), " in line)
    finding = Finding(rule, Severity.HIGH, 0, 10**7, 0.5, Confidence.MEASURED, "", where=places)
    facts = Facts(device_name="NVIDIA H200", cpu_count=8)
    return Request(finding, {name: text, **(more or {})}, sites, facts, {}, name)


def changed(text: str, answer: Answer, name: str = "train.py") -> list[str]:
    """The lines that a fixer takes away and puts in."""
    assert isinstance(answer, Edits), answer
    diff = difflib.ndiff(text.splitlines(), answer.files[name].splitlines())
    return [line for line in diff if line[0] in "+-"]


def with_setting(request: Request, **setting: Scalar) -> Request:
    return Request(
        request.finding,
        request.sources,
        request.sites,
        request.facts,
        setting,
        request.entry,
        request.configs,
        request.words,
    )


def test_workers_go_into_the_dictionary_that_the_loader_takes() -> None:
    request = with_setting(asked("train.py", DIGITS, num_workers=1, shuffle=True), num_workers=4)
    assert changed(DIGITS, FIXERS["loader-workers"].rewrite(request)) == [
        "-         cuda_kwargs = {'num_workers': 1,",
        "+         cuda_kwargs = {'num_workers': 4,",
        "-                        'shuffle': True}",
        "+                        'shuffle': True,",
        "+                        'pin_memory': True}",
    ]


def test_persistent_workers_and_prefetching_go_there_too() -> None:
    request = asked("train.py", DIGITS, num_workers=1, shuffle=True)
    assert "+                        'persistent_workers': True}" in changed(
        DIGITS, FIXERS["persistent-workers"].rewrite(request)
    )
    assert "+                        'prefetch_factor': 4}" in changed(
        DIGITS, FIXERS["loader-prefetch"].rewrite(request)
    )


EITHER = "kwargs = {'num_workers': 1, 'pin_memory': True} if use_cuda else {}\n"
ONE_OF_TWO = f"from torch.utils.data import DataLoader\n\n{EITHER}loader = DataLoader(digits, batch_size=8, **kwargs)\n"


@pytest.mark.parametrize(
    ("device", "workers", "expected"),
    [
        ("NVIDIA H200", 1, EITHER.replace("'num_workers': 1", "'num_workers': 4")),
        (None, 0, EITHER.replace("{}", "{'num_workers': 4}")),
    ],
    ids=["on a device", "on the CPU"],
)
def test_the_dictionary_is_changed_that_the_run_took(device: str | None, workers: int, expected: str) -> None:
    def after_a_run(text: str) -> Request:
        request = asked("train.py", text, num_workers=workers, pin_memory=device is not None, shuffle=False)
        return replace(request, facts=Facts(device_name=device, cpu_count=8))

    answer = FIXERS["loader-workers"].rewrite(with_setting(after_a_run(ONE_OF_TWO), num_workers=4))
    assert isinstance(answer, Edits), answer
    assert answer.files["train.py"] == ONE_OF_TWO.replace(EITHER, expected)
    kept = FIXERS["persistent-workers"].rewrite(after_a_run(answer.files["train.py"]))
    assert isinstance(kept, Edits), kept
    halves = kept.files["train.py"].split("use_cuda")
    assert ["persistent_workers" in half for half in halves] == [device is not None, device is None]


def test_a_dictionary_of_which_nothing_is_known_is_added_to() -> None:
    request = replace(
        asked("train.py", ONE_OF_TWO.replace("use_cuda", "quick")), facts=Facts(device_name="NVIDIA H200")
    )
    answer = FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))
    assert isinstance(answer, Edits), answer
    assert '**{**kwargs, "num_workers": 4, "pin_memory": True}' in answer.files["train.py"]


def test_on_a_device_the_dictionary_is_changed_that_the_device_takes() -> None:
    request = replace(asked("train.py", ONE_OF_TWO), facts=Facts(device_name="NVIDIA H200"))
    answer = FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))
    assert isinstance(answer, Edits), answer
    assert answer.files["train.py"] == ONE_OF_TWO.replace("'num_workers': 1", "'num_workers': 4")


def test_an_update_that_the_run_passed_by_is_not_edited() -> None:
    request = asked("train.py", DIGITS, num_workers=0, shuffle=False, pin_memory=False)
    assert changed(DIGITS, FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))) == [
        "-     train_kwargs = {'batch_size': args.batch_size}",
        "+     train_kwargs = {'batch_size': args.batch_size, 'num_workers': 4, 'pin_memory': True}",
    ]


@pytest.mark.parametrize(
    "chosen", ["Endless", "Endless if keep else DataLoader", None], ids=["a variable", "either", "by its name"]
)
def test_a_loader_of_the_programs_own_kind_is_found_where_it_is_built(chosen: str | None) -> None:
    text = "from torch.utils.data import DataLoader\n\n\nclass Endless(DataLoader):\n    pass\n\n\n"
    text += f"kind = {chosen}\nloader = kind(data, num_workers=0)\n" if chosen else "loader = Endless(data)\n"
    site = Site("DataLoader", "train.py", text.count("\n"), arguments={"name": "Endless", "num_workers": 0})
    request = replace(asked("train.py", text), sites=[site], facts=Facts(cpu_count=8))
    answer = FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))
    assert changed(text, answer)[1].endswith("(data, num_workers=4)")


def test_workers_go_into_the_default_of_the_option() -> None:
    request = with_setting(asked("train.py", PICTURES, num_workers=0, shuffle=True), num_workers=4)
    assert changed(PICTURES, FIXERS["loader-workers"].rewrite(request)) == [
        "- parser.add_argument('-j', '--workers', default=0, type=int, metavar='N',",
        "+ parser.add_argument('-j', '--workers', default=4, type=int, metavar='N',",
        "-         num_workers=args.workers, sampler=train_sampler)",
        "+         num_workers=args.workers, sampler=train_sampler, pin_memory=True)",
    ]


def test_an_option_that_was_given_stays_what_was_asked_for_at_least() -> None:
    request = with_setting(asked("train.py", PICTURES, num_workers=2, shuffle=True), num_workers=4)
    assert "+         num_workers=max(args.workers, 4), sampler=train_sampler, pin_memory=True)" in changed(
        PICTURES, FIXERS["loader-workers"].rewrite(request)
    )


@pytest.mark.parametrize(("text", "copies"), [(DIGITS, 1), (PICTURES, 2)])
def test_only_copies_of_training_are_not_waited_for(text: str, copies: int) -> None:
    request = asked("train.py", text, "pageable-copies", num_workers=1, shuffle=True, pin_memory=False)
    new = [line for line in changed(text, FIXERS["nonblocking-copies"].rewrite(request)) if line[0] == "+"]
    assert sum("non_blocking=True" in line for line in new) >= copies
    assert sum("pin_memory" in line for line in new) == 1


def test_batches_of_the_programs_own_are_pinned_where_the_device_needs_it() -> None:
    request = asked("train.py", TEXT, "pageable-copies", more={"configurator.py": CONFIGURATOR})
    assert changed(TEXT, FIXERS["nonblocking-copies"].rewrite(request)) == [
        "-     x, y = x.to(device), y.to(device)",
        "+     if 'cuda' in device:",
        "+         x, y = x.pin_memory(), y.pin_memory()",
        "+     x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)",
    ]


def run(folder: Path, files: Mapping[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*LIGHT_PYTHON, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env=environment,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("text", "rule", "fixers"),
    [
        (DIGITS, "pageable-copies", ["loader-workers", "loader-prefetch", "nonblocking-copies"]),
        (PICTURES, "pageable-copies", ["loader-workers", "loader-pin", "loader-prefetch", "nonblocking-copies"]),
        (TEXT, "pageable-copies", ["nonblocking-copies"]),
    ],
    ids=["digits", "pictures", "text"],
)
def test_the_patched_program_prints_the_same_numbers(text: str, rule: str, fixers: list[str], tmp_path: Path) -> None:
    more = {"configurator.py": CONFIGURATOR}
    before = run(tmp_path, {"train.py": text, **more})
    patched = text
    for name in fixers:
        workers = {"num_workers": 0 if text is PICTURES else 1, "shuffle": True, "pin_memory": False}
        request = asked("train.py", patched, rule, more=more, **({} if text is TEXT else workers))
        setting = FIXERS[name].settings(request)[0]
        answer = FIXERS[name].rewrite(with_setting(request, **setting))
        assert not isinstance(answer, Advice), answer.text
        patched = answer.files["train.py"] if answer is not None else patched
    assert patched != text
    assert len(before.splitlines()) > 4
    assert run(tmp_path, {"train.py": patched}) == before
