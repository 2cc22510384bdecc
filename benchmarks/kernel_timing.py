"""Times ways to compute the same thing on one device, forward and backward, in turns so that a drift meets them all.

Two times, for two programs. *device*: how long the device is busy from the first kernel to the last, where the host
runs ahead, as in a training step of large products. *alone*: by the clock, one turn after another, host included: what
a program sees whose device waits for its host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

FLUSHED_BYTES = 256 << 20
"""More than any device's cache holds: read before each turn, so that inputs come from memory. What is written instead
stays in the cache until the turn itself pushes it out: 50 MB at the expense of a kernel that moves ten times that."""

WARM_UP = 4
ROUNDS = 4
ROUND_S = 0.08
"""How long a way is timed in a round, about; two turns at least, twenty at most."""

CYCLES_PER_S = 2e9
"""Of a device's clock, about: how long it is kept busy while the host runs ahead."""


@dataclass
class Timed:
    """One way: what a turn takes, and what it holds beyond its inputs."""

    way: str
    device_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    problem: str = ""

    def device_ms(self) -> tuple[float, float, float]:
        """The median, and its 95 % interval by the ranks of what was seen."""
        seen = sorted(self.device_s)
        reach = 0.98 * math.sqrt(len(seen))
        low, high = int(len(seen) / 2 - reach), math.ceil(len(seen) / 2 + reach)
        return median(seen) * 1e3, seen[max(0, low)] * 1e3, seen[min(len(seen) - 1, high)] * 1e3

    def alone_ms(self) -> float:
        """The median round, by the clock."""
        return median(self.alone_s) * 1e3


def timed(ways: dict[str, Callable[..., Any]], inputs: Sequence[Tensor], device: torch.device) -> list[Timed]:
    """Time all ways on inputs of their own; one that cannot run says why and stops nothing else."""
    running = [(Timed(way), _Turn(call, inputs, device)) for way, call in ways.items()]
    for found, turn in running:
        try:
            turn.prepare()
            found.peak_bytes = turn.peak_bytes()
        except Exception as problem:  # noqa: BLE001 a way that fails, compiled ones above all, is a result too
            found.problem = type(problem).__name__
    for _ in range(ROUNDS):
        for found, turn in running:
            if not found.problem:
                found.device_s += turn.busy_s()
                found.alone_s.append(turn.alone_s())
    return [found for found, _ in running]


class _Turn:
    """Forward and backward of one way, on copies of the inputs: some ways write over theirs."""

    def __init__(self, call: Callable[..., Any], inputs: Sequence[Tensor], device: torch.device) -> None:
        self._call = call
        self._device = device
        self._inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
        self._wanted = [tensor for tensor in self._inputs if tensor.requires_grad]
        self._cotangents: list[Tensor] = []
        self._flushed = torch.zeros(FLUSHED_BYTES // 4 if device.type == "cuda" else 0, device=device)
        self._host_s = 0.0
        self._turns = 1

    def prepare(self) -> None:
        found = self._call(*self._inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        self._cotangents = [torch.ones_like(output) for output in outputs if self._wanted and output.requires_grad]
        del found, outputs
        for _ in range(WARM_UP):
            self()
        self._wait()
        begin = time.perf_counter()
        self()
        self._host_s = time.perf_counter() - begin
        self._wait()
        self._turns = min(20, max(2, int(ROUND_S / (time.perf_counter() - begin))))

    def __call__(self) -> None:
        found = self._call(*self._inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        if not self._wanted:  # an optimizer's step, say
            return
        outputs = tuple(output for output in outputs if output.requires_grad)
        torch.autograd.grad(outputs, self._wanted, self._cotangents)

    def peak_bytes(self) -> int | None:
        if self._device.type != "cuda":
            return None
        self._wait()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self()
        self._wait()
        return int(torch.cuda.max_memory_allocated() - before)

    def busy_s(self) -> list[float]:
        """A turn's time on the device, each after the cache is flushed and with the host ahead."""
        if self._device.type != "cuda":
            return [self.alone_s() for _ in range(2)]
        spent = []
        for _ in range(self._turns):
            self._flushed.sum()
            torch.cuda._sleep(int(min(0.05, 2.0 * self._host_s + 1e-4) * CYCLES_PER_S))  # type: ignore[no-untyped-call]
            begin, end = mark(), mark()
            begin.record()
            self()
            end.record()
            self._wait()
            spent.append(float(begin.elapsed_time(end)) / 1e3)
        return spent

    def alone_s(self) -> float:
        """A turn's time by the clock."""
        self._wait()
        begin = time.perf_counter()
        for _ in range(self._turns):
            self()
        self._wait()
        return (time.perf_counter() - begin) / self._turns

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def mark() -> Any:
    """An event of the device that knows when it happened."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's


def copied_bytes_per_s(device: torch.device, size: int) -> float:
    """Return the bandwidth of a copy within the device, reads and writes counted."""
    source = torch.ones(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _fastest_s(lambda: target.copy_(source), device)


def multiplied_per_s(device: torch.device, size: int) -> float:
    """Operations of a product of square bfloat16 matrices of random numbers; of zeros it would be faster."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return float(2 * size**3 / _fastest_s(lambda: left @ right, device))


def _fastest_s(call: Callable[[], object], device: torch.device) -> float:
    """The median of some rounds of calls, back to back."""
    spent = []
    call()
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - begin) / 10)
    return median(spent)
