"""Trains in a way that meets most hooks of the watcher, and prints all that a failing one could have changed."""

import gc
import hashlib
import io
import os
import random
import signal
import sys
import warnings

import light  # noqa: F401 - before torch
import torch
from torch import nn

STEPS = 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(batch)) + batch


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index)) + torch.randn(8) + random.random()


def bits(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def train() -> None:
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 8), *[Block() for _ in range(3)], nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True)
    for number, batch in enumerate(loader, 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch).float().square().mean()
        scaler.scale(loss / 2).backward()
        if number % 2:
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number % 8 == 0:
            torch.save(model.state_dict(), io.BytesIO())
            gc.collect()
            print(number, loss.item(), bits(batch))
    print("parameters", bits(*model.parameters()))
    print("random", bits(torch.get_rng_state()), random.random())


def what_is_left() -> None:
    """What a watcher that failed halfway might leave switched on."""
    from torch.autograd import profiler

    print("profiled", profiler._is_profiler_enabled, torch._C._autograd._profiler_enabled())
    print(
        "followed",
        sys.gettrace(),
        sys.getprofile(),
        [sys.monitoring.get_tool(number) for number in range(6)] if hasattr(sys, "monitoring") else [],
    )
    print("signals", [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ)])
    print("modes", torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack())
    print("warned", len(warnings.filters), os.environ.get("KINETO_LOG_LEVEL"))


def forked() -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print("child")
        sys.exit(3)
    print("child ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


train()
forked()
what_is_left()
