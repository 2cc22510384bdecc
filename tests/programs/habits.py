"""Trains with one habit of ordinary programs, and prints what a watcher could have changed: `habits.py HABIT`."""

import atexit
import gc
import hashlib
import io
import os
import random
import signal
import sys
import threading
import warnings
from contextlib import closing
from pathlib import Path

import light  # noqa: F401 - before torch
import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, IterableDataset

STEPS = 20


def bits(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)).hexdigest()[:12]


class Drawn(Dataset[torch.Tensor]):
    """Each sample draws from the generators of the process."""

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8) + random.random() + float(np.random.rand()) + index


class Streamed(IterableDataset[torch.Tensor]):
    def __iter__(self):
        yield from (torch.full((8,), float(number)) for number in range(2 * STEPS))


def train(loader=None, step=None, model=None, optimizer=None) -> None:
    """The plain loop; `step` does what belongs to one batch instead."""
    model = model or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, batch in enumerate(loader if loader is not None else DataLoader(Drawn(), batch_size=2, shuffle=True)):
        if step is not None:
            loss = step(model, optimizer, batch, number)
        else:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if number % 6 == 0:
            print(number, float(loss), bits(batch))
    print("parameters", bits(*model.parameters()))


def closure() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(model, optimizer, batch, _number):
        def evaluate():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        return optimizer.step(evaluate)

    train(step=step, model=model, optimizer=optimizer)


def mixed_precision() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    def step(model, optimizer, batch, _number):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    train(step=step)
    print("scale", scaler.get_scale())


def accumulates() -> None:
    def step(model, optimizer, batch, number):
        loss = model(batch).square().mean() / 4
        loss.backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    train(loader=DataLoader(Drawn(), batch_size=1), step=step)


def workers() -> None:
    loader = DataLoader(
        Drawn(), batch_size=2, num_workers=2, persistent_workers=True, generator=torch.Generator().manual_seed(3)
    )
    for _ in range(2):
        train(loader=loader)


def streams() -> None:
    train(loader=DataLoader(Streamed(), batch_size=2))


def generator() -> None:
    def batches():
        yield from DataLoader(Drawn(), batch_size=2)

    with closing(batches()) as source:
        train(loader=source)


def threads() -> None:
    lines: list[str] = []

    def beside() -> None:
        ones = torch.ones(4, requires_grad=True)
        ones.sum().backward()
        lines.append(str(ones.grad))

    def step(model, optimizer, batch, _number):
        loss = model(batch).square().mean()
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    train(step=step)
    print(len(lines), set(lines))


def signals() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))

    def step(model, optimizer, batch, _number):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    train(step=step)
    print(heard.count(signal.SIGUSR1), heard.count(signal.SIGTERM))


def forks() -> None:
    def step(model, optimizer, batch, number):
        if number % 5 == 0:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                print("child", number, float(model(batch).sum()))
                sys.exit(number)
            print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    train(step=step)


def closes_files() -> None:
    def step(model, optimizer, batch, number):
        if number < 3:
            os.closerange(3, 64)
        file = os.open(f"{number}.txt", os.O_CREAT | os.O_WRONLY)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        os.write(file, f"{float(loss)}\n".encode())
        return loss

    train(step=step)


def at_exit() -> None:
    atexit.register(lambda: print("first", bits(torch.ones(2))))
    train()
    atexit.register(lambda: print("second", gc.isenabled()))
    sys.stdout.write("no line end")
    sys.exit(5)


def warns() -> None:
    warnings.simplefilter("default")

    def step(model, optimizer, batch, _number):
        for level in (1, 2, 3):
            warnings.warn(f"level {level}", stacklevel=level)
        torch.tensor(batch)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    train(step=step, optimizer=None)
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()


def modes() -> None:
    class Counts(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Counts.seen += 1
            return function(*args, **(kwargs or {}))

    with Counts():
        train()
    print("operators", Counts.seen)


def profiles() -> None:
    from torch.profiler import ProfilerActivity, profile

    def step(model, optimizer, batch, number):
        with profile(activities=[ProfilerActivity.CPU]) if number == 9 else warnings.catch_warnings() as recorded:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if number == 9:
            print(sorted({event.key for event in recorded.key_averages() if event.key.startswith("aten::add")}))
        return loss

    train(step=step)


def saves() -> None:
    def step(model, optimizer, batch, number):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 8 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{number}.pt")
            Path("log.txt").open("a").write(f"{number} {float(loss)}\n")
        return loss

    train(step=step)
    buffer = io.BytesIO(Path("16.pt").read_bytes())
    print(sorted(torch.load(buffer, weights_only=True)))


def hooks() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        train(model=model, optimizer=optimizer)
    print(seen[:3], len(seen))


def raises() -> None:
    def step(model, _optimizer, batch, number):
        if number == 12:
            raise KeyError("the program's own")
        loss = model(batch).square().mean()
        loss.backward()
        _optimizer.step()
        return loss

    train(step=step)


torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
torch.set_num_threads(1)
{"plain": train, **{name: value for name, value in list(globals().items()) if callable(value)}}[sys.argv[1]]()
print("random", bits(torch.get_rng_state()), random.random(), np.random.rand())
