"""Chooses how a kernel is launched: by measuring the candidates once for a shape, dtype, device and versions.

    config = choose("swiglu.forward", (bucket(rows), columns), gate, CANDIDATES, launch)

What was measured is kept for the process and in a file (`tuning_file`). Nothing is measured while a graph is captured
or traced, where there is no device, where deterministic algorithms are asked for, or with `DIAGNOSE_TUNING=stored`
(only what is stored counts) or `off` (nothing does): there the first candidate is taken, always the same one. A stored
choice that is none of the candidates counts for nothing.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch

from diagnose import __version__
from diagnose.kernels import tuning_file
from diagnose.kernels.tuning_file import Choice, Config, Key

__all__ = ["Config", "bucket", "choose", "fused_pays"]

SWITCH = "DIAGNOSE_TUNING"
"""Environment variable: `on` (the default), `stored` or `off`."""

ROUNDS = 5
"""Turns that each candidate has, one after the other so that a drift of clocks meets them all alike."""

ROUND_NS = 300_000
"""About how long a turn of a candidate lasts: long against the resolution of a device's events."""

TURNS = 10
"""Forward and backward passes in a round, where two ways to a gradient are compared."""

WORTH = 0.03
"""The default is left only for what takes this share less: less is noise."""

NATIVE = Config(native=True)
FUSED = Config()

LARGEST_TRIED_BYTES = 1 << 28
"""Inputs of more are not copied to find out whether fusing pays: there it does."""

LARGEST_NATIVE_BYTES = 1 << 22
"""Inputs up to which, where nothing is measured, torch's own operators are taken to be as fast: their passes over so
little memory take less time than a launch out of Python."""

_chosen: dict[tuple[Any, ...], Config] = {}


def bucket(size: int) -> int:
    """The next power of two: sizes that vary from step to step are tuned once for each of these."""
    return 1 << max(0, size - 1).bit_length()


def choose(
    kernel: str,
    shape: tuple[int, ...],
    like: torch.Tensor,
    candidates: Sequence[Config],
    launch: Callable[[Config], object],
) -> Config:
    """The fastest candidate. `launch` may be called many times over: it writes outputs alone, and the same each time.

    The first candidate is the default.
    """
    place = (kernel, shape, like.dtype, like.device)
    known = _chosen.get(place)
    if known is not None and not torch.are_deterministic_algorithms_enabled():
        return known
    if len(candidates) == 1 or not _may_use_measurements(like):
        return candidates[0]
    key = _key(kernel, shape, like)
    stored = _stored(key)
    if stored is not None and stored.config in candidates:
        config = stored.config
    elif _may_measure():
        times = device_times_ns([lambda config=config: launch(config) for config in candidates])  # type: ignore[misc]
        config = _settle(key, candidates, times)
    else:
        return candidates[0]
    _chosen[place] = config
    return config


def fused_pays(
    kernel: str,
    shape: tuple[int, ...],
    inputs: Sequence[torch.Tensor | None],
    fused: Callable[..., Any],
    native: Callable[..., Any],
) -> bool:
    """Whether the fused operator is faster than torch's own, forward and backward, the host's part included.

    Both are tried on fresh inputs of the same shapes. Where that is not possible: by the size of the inputs alone.
    """
    if torch.compiler.is_compiling():
        return True
    given = [tensor for tensor in inputs if tensor is not None]
    largest = given[0]
    size = sum(tensor.numel() * tensor.element_size() for tensor in given)
    if size > LARGEST_TRIED_BYTES:
        return True
    wants = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in given)
    kernel = kernel if any(wants) else f"{kernel}, forward alone"
    place = (kernel, shape, largest.dtype, largest.device)
    known = _chosen.get(place)
    if known is None or torch.are_deterministic_algorithms_enabled():
        if not _may_use_measurements(largest):
            return size > LARGEST_NATIVE_BYTES
        key = _key(kernel, shape, largest)
        stored = _stored(key)
        if stored is not None and stored.config in (FUSED, NATIVE):
            known = stored.config
        elif _may_measure():
            times = _in_a_thread(lambda: _both_ways_ns(inputs, wants, (native, fused)), largest.device)
            if times is None:
                return size > LARGEST_NATIVE_BYTES
            known = _settle(key, (NATIVE, FUSED), times)
        else:
            return size > LARGEST_NATIVE_BYTES
        _chosen[place] = known
    return not known.native


def forget() -> None:
    """Forget what this process knows; the file stays."""
    _chosen.clear()
    _read.cache_clear()


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


def _may_use_measurements(like: torch.Tensor) -> bool:
    """Whether what was measured, now or earlier, may decide: not where runs of two machines must agree."""
    return like.device.type == "cuda" and _switch() != "off" and not torch.are_deterministic_algorithms_enabled()


def _may_measure() -> bool:
    """Whether launches may be repeated and waited for here."""
    return _switch() == "on" and not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


def _switch() -> str:
    chosen = os.environ.get(SWITCH, "") or "on"
    if chosen not in ("on", "stored", "off"):
        raise ValueError(f"{SWITCH}={chosen}: only `on`, `stored` and `off` are known")
    return chosen


def _settle(key: Key, candidates: Sequence[Config], times_ns: Sequence[float]) -> Config:
    """The fastest of the candidates, written down; the first unless another is worth leaving it for."""
    fastest = min(range(len(candidates)), key=lambda place: times_ns[place])
    if times_ns[fastest] == float("inf"):
        return candidates[0]
    if times_ns[fastest] > times_ns[0] * (1.0 - WORTH):
        fastest = 0
    default_ns = 0 if times_ns[0] == float("inf") else round(times_ns[0])
    _keep(key, Choice(candidates[fastest], round(times_ns[fastest]), default_ns))
    return candidates[fastest]


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


def _both_ways_ns(
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


def _in_a_thread(measure: Callable[[], list[float]], device: torch.device) -> list[float] | None:
    """What `measure` finds, or None where it fails. In a thread of its own: autocast, hooks and modes, checkpointing's
    above all, belong to the thread that asked, and must not see what is tried."""
    found: list[list[float]] = []
    problems: list[Exception] = []

    def work() -> None:
        try:
            with torch.cuda.device(device):
                found.append(measure())
        except Exception as problem:  # noqa: BLE001 the program goes on without; out of memory is the likely one
            problems.append(problem)

    thread = threading.Thread(target=work, name="diagnose-tuning")
    thread.start()
    thread.join()
    for problem in problems:
        warnings.warn(f"a kernel could not be measured ({type(problem).__name__}): its size decides", stacklevel=3)
    return found[0] if found else None


def _key(kernel: str, shape: tuple[int, ...], like: torch.Tensor) -> Key:
    return Key(kernel, shape, str(like.dtype).removeprefix("torch."), _device_name(like.device), _versions())


@cache
def _device_name(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    architecture = (
        getattr(properties, "gcnArchName", "") if torch.version.hip else f"{properties.major}.{properties.minor}"
    )
    return f"{properties.name} ({architecture.split(':')[0]})"


@cache
def _versions() -> str:
    return f"torch {torch.__version__}, triton {_triton_version()}, diagnose {__version__}"


def _triton_version() -> str:
    for name in ("triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


@cache
def _read(path: Any) -> tuning_file.Choices:
    """The file's entries, read once by each process; what cannot be read is said and tunes anew."""
    try:
        return tuning_file.read_or_put_aside(path)
    except OSError as problem:
        warnings.warn(f"{path}: {problem.strerror}; what was tuned before is not used", stacklevel=2)
        return {}


def _stored(key: Key) -> Choice | None:
    path = tuning_file.place()
    return None if path is None else _read(path).get(key)


def _keep(key: Key, choice: Choice) -> None:
    path = tuning_file.place()
    if path is None:
        return
    try:
        tuning_file.merge(path, {key: choice}, replace=True)
    except OSError as problem:
        warnings.warn(f"{path}: {problem.strerror}; what was tuned is kept for this process alone", stacklevel=2)
