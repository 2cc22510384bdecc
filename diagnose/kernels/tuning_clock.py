"""Times launches on the device, and ways to a value and its gradients by the clock, without a trace in the program.

Nothing here draws from the program's random numbers, changes a tensor of its or is seen by its hooks and modes.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

ROUNDS = 5
"""Turns that each candidate has, one after the other so that a drift of clocks meets them all alike."""

ROUND_NS = 300_000
"""About how long a turn of a candidate lasts: long against the resolution of a device's events."""

TURNS = 10
"""Forward and backward passes in a round, where two ways to a gradient are compared."""


def device_times_ns(launches: Sequence[Callable[[], object]]) -> list[float]:
    """How long each launch keeps the device busy; infinity for one that cannot run."""
    turns = [_first_ns(launch) for launch in launches]
    counts = [0 if first == float("inf") else max(1, min(100, int(ROUND_NS / max(first, 1.0)))) for first in turns]
    spent: list[list[float]] = [[] for _ in launches]
    for _ in range(ROUNDS):
        for launch, count, seen in zip(launches, counts, spent, strict=True):
            if count:
                seen.append(_spent_ns(launch, count))
    return [median(seen) if seen else float("inf") for seen in spent]


def _first_ns(launch: Callable[[], object]) -> float:
    """Of one launch after one that compiles; infinity where the device has no room for it."""
    try:
        launch()
        return _spent_ns(launch, 1)
    except Exception:  # noqa: BLE001 what a compiler or a driver refuses is a candidate less, whatever they call it
        return float("inf")


def _spent_ns(launch: Callable[[], object], count: int) -> float:
    begin, end = _mark(), _mark()
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
) -> list[float]:
    """Forward and backward of each way by the clock, which counts the host where the device waits for it."""
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

    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(2):
        for way in ways:
            turn(way)  # compiles, and tunes what is within
    for _ in range(ROUNDS):
        for way, seen in zip(ways, spent, strict=True):
            torch.cuda.synchronize(like.device)
            begin = time.perf_counter_ns()
            for _ in range(TURNS):
                turn(way)
            torch.cuda.synchronize(like.device)
            seen.append((time.perf_counter_ns() - begin) / TURNS)
    return [median(seen) for seen in spent]


def in_a_thread(measure: Callable[[], list[float]], device: torch.device) -> list[float] | None:
    """What `measure` finds, or None where it fails. In a thread of its own: autocast, hooks and modes, checkpointing's
    above all, belong to the thread that asked, and must not see what is tried."""
    found: list[list[float]] = []
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
