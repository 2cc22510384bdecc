"""Times launches on the device, and ways to a value and its gradients by the clock, without a trace in the program.

Nothing here draws from the program's random numbers, changes a tensor of its or is seen by its hooks and modes.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch

T = TypeVar("T")

ROUNDS = 5
"""Turns that each candidate has, one after the other so that a drift of clocks meets them all alike."""

ROUND_NS = 300_000
"""About how long a turn of a candidate lasts: long against the resolution of a device's events."""

TURNS = 5
"""Forward and backward passes in a round, where two ways to a gradient are compared."""

CYCLES_PER_NS = 2.0
"""The rate of a device's clock, about: for how long it is held while the host runs ahead."""

LONGEST_HELD_NS = 20_000_000
"""The longest time for which a device is held: a host that needs longer is part of what is measured."""


def device_times_ns(launches: Sequence[Callable[[], object]]) -> list[float]:
    """Return the device time of each launch in ns; infinity for one that cannot run."""
    first = [_first_ns(launch) for launch in launches]
    spent: list[list[float]] = [[] for _ in launches]
    for _ in range(ROUNDS):
        for launch, (busy_ns, host_ns), seen in zip(launches, first, spent, strict=True):
            if busy_ns < float("inf"):
                count = max(1, min(100, int(ROUND_NS / max(busy_ns, 1.0))))
                seen.append(_busy_ns(launch, count, host_ns))
    return [median(seen) if seen else float("inf") for seen in spent]


def _first_ns(launch: Callable[[], object]) -> tuple[float, float]:
    """Time one launch after one that compiles, on the device and on the host; infinity where the device has no room."""
    try:
        launch()
        begin = time.perf_counter_ns()
        launch()
        host_ns = float(time.perf_counter_ns() - begin)
        return _busy_ns(launch, 1, host_ns), host_ns
    except Exception:  # noqa: BLE001 what a compiler or a driver refuses is a candidate less, whatever they call it
        return float("inf"), 0.0


def _busy_ns(launch: Callable[[], object], count: int, host_ns: float) -> float:
    """A launch's time on the device. It is held until the host has issued them all: else a small kernel's time would
    be that of its launch."""
    begin, end = _mark(), _mark()
    held_ns = min(LONGEST_HELD_NS, 1.5 * host_ns * count)
    torch.cuda._sleep(int(held_ns * CYCLES_PER_NS))  # type: ignore[no-untyped-call]  # torch's
    begin.record()
    for _ in range(count):
        launch()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6 / count


def _mark() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's


def ways_ns(
    inputs: Sequence[torch.Tensor | None], wants: Sequence[bool], ways: Sequence[Callable[..., Any]]
) -> list[tuple[float, float]]:
    """Forward and backward of each way: on the device, and by the clock, where the device waits for its host."""
    like = next(tensor for tensor in inputs if tensor is not None)
    random = torch.Generator(like.device).manual_seed(0)  # one of its own: the program's numbers stay as they were
    wanted = iter(wants)
    fresh = [
        None
        if tensor is None
        else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        .normal_(generator=random)
        .requires_grad_(next(wanted))
        for tensor in inputs
    ]
    differentiated = [tensor for tensor in fresh if tensor is not None and tensor.requires_grad]

    def turn(way: Callable[..., Any]) -> None:
        found = way(*fresh)
        outputs = found if isinstance(found, tuple) else (found,)
        if differentiated:
            torch.autograd.grad(outputs, differentiated, outputs)

    for way in (*ways, *ways):
        turn(way)  # compiles, and tunes what is within
    busy: list[list[float]] = [[] for _ in ways]
    by_clock: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for place, way in enumerate(ways):
            torch.cuda.synchronize(like.device)
            begin = time.perf_counter_ns()
            for _ in range(TURNS):
                turn(way)
            torch.cuda.synchronize(like.device)
            by_clock[place].append((time.perf_counter_ns() - begin) / TURNS)
            busy[place].append(_busy_ns(partial(turn, way), TURNS, by_clock[place][-1]))
    return [(median(on_device), median(waiting)) for on_device, waiting in zip(busy, by_clock, strict=True)]


def run_in_thread(measure: Callable[[], T], device: torch.device) -> T | None:
    """Return what `measure` returns, or None where it fails. It runs in a thread of its own: autocast, hooks and modes,
    such as checkpointing's, belong to the calling thread and must not see the trial.
    """
    found: list[T] = []
    problems: list[Exception] = []

    def work() -> None:
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                found.append(measure())
        except Exception as problem:  # noqa: BLE001 the program goes on without; out of memory is the likely one
            problems.append(problem)

    thread = threading.Thread(target=work, name="diagnose-tuning")
    thread.start()
    thread.join()
    for problem in problems:
        warnings.warn(f"a kernel could not be measured ({type(problem).__name__}): its size decides", stacklevel=3)
    return found[0] if found else None
