"""Chooses how a kernel is launched: by measuring the candidates once for a shape, dtype, device and versions.

    config = choose("swiglu.forward", (bucket(rows), columns), gate, CANDIDATES, launch)

What was measured is kept for the process and in a file (`tuning_file`); of processes that measure side by side, as the
ranks of a job do, all go on with what the first wrote down there. Nothing is measured while a graph is captured
or traced, where there is no device, where deterministic algorithms are asked for, or with `DIAGNOSE_TUNING=stored`
(only what is stored counts) or `off` (nothing does): there the first candidate is taken, always the same one. A stored
choice that is none of the candidates counts for nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from diagnose import __version__
from diagnose.kernels.launch import tuning_file
from diagnose.kernels.launch.tuning_clock import device_times_ns, run_in_thread, ways_ns
from diagnose.kernels.launch.tuning_file import Choice, Config, Key

__all__ = ["Config", "bucket", "choose", "fused_pays"]

SWITCH = "DIAGNOSE_TUNING"
"""Environment variable: `on` (the default), `stored` or `off`."""

WORTH = 0.03
"""The default is left only for what takes this share less: less is noise."""

NATIVE = Config(native=True)
FUSED = Config()

LARGEST_TRIED_BYTES = 1 << 28
"""Inputs of more are not copied to find out whether fusing pays: there it does."""

LARGEST_NATIVE_BYTES = 1 << 25
"""Inputs up to which, where nothing is measured, torch's own operators are taken: an H200 has moved so little memory
sooner than its host has issued what moves it."""

HOST_BOUND_NS = 100_000.0
"""Time of torch's own operators on the device, forward and backward, below which the host's time counts: a Python
program issues a handful of operators in it."""

Place = tuple[str, tuple[int, ...], torch.dtype, torch.device]

MOST_SETTLED = 4096
"""Shapes for which an answer is kept as it is."""

_chosen: dict[Place, Config] = {}

_settled: dict[tuple[Any, ...], Config] = {}
"""What `fused_pays` found, by what it depends on as that is at hand: to derive a place takes as long as an operator."""


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
    config = _config_here(place, like)
    if config is None and len(candidates) > 1:
        config = _config_in_file(place, like, candidates)
        if config is None and _may_measure(like):
            times = device_times_ns([partial(launch, config) for config in candidates])
            config = _settle(place, candidates, times)
    return candidates[0] if config is None else config


def fused_pays(
    kernel: str,
    inputs: Sequence[torch.Tensor | None],
    fused: Callable[..., Any],
    native: Callable[..., Any],
) -> bool:
    """Whether the fused operator is faster than torch's own, forward and backward.

    What counts is the time on the device; of small inputs the clock, host included, since a program of many of these
    has a device that waits for its host. Both are tried on fresh inputs of these shapes, which are rows of the first
    one's last dimension. Where that is not possible, their size decides, and so in a backward pass, where reentrant
    checkpointing computes again; in compiled code, on the CPU and with `DIAGNOSE_TUNING=off` there is no choice.
    """
    like = inputs[0]
    assert like is not None, "rows have a first input"
    if torch.compiler.is_compiling() or like.device.type != "cuda":
        return True
    shapes = [one if one is None else (one.shape, one.requires_grad) for one in inputs]
    at_hand = (kernel, torch.is_grad_enabled(), like.dtype, like.device, *shapes)
    if _counts(like) and (settled := _settled.get(at_hand)) is not None:
        return not settled.native
    given = [tensor for tensor in inputs if tensor is not None]
    size = sum(tensor.numel() * tensor.element_size() for tensor in given)
    if not 0 < size <= LARGEST_TRIED_BYTES or _switch() == "off":
        return True
    columns = like.shape[-1]
    wants = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in given)
    kernel = f"{kernel} or torch's own" if any(wants) else f"{kernel} or torch's own, forward alone"
    place = (kernel, (bucket(like.numel() // columns), columns), like.dtype, like.device)
    config = _config_here(place, like) or _config_in_file(place, like, (NATIVE, FUSED))
    if config is None and _may_measure(like) and not _in_backward():
        found = run_in_thread(lambda: ways_ns(inputs, wants, (native, fused)), like.device)
        config = _faster_way(place, found, size)
    if config is None:
        return size > LARGEST_NATIVE_BYTES
    if len(_settled) >= MOST_SETTLED:  # of shapes that never come again
        _settled.clear()
    _settled[at_hand] = config
    return not config.native


def _faster_way(place: Place, found: Sequence[tuple[float, float]] | None, size_bytes: int) -> Config:
    """Choose for good by what both took, on the device and by the clock; what could not be tried is chosen by size."""
    if found is None:
        _chosen[place] = FUSED if size_bytes > LARGEST_NATIVE_BYTES else NATIVE
        return _chosen[place]
    on_device = found[0][0] >= HOST_BOUND_NS
    return _settle(place, (NATIVE, FUSED), [busy if on_device else by_clock for busy, by_clock in found])


def forget() -> None:
    """Forget what this process knows; the file stays."""
    _chosen.clear()
    _settled.clear()
    _read.cache_clear()


def _counts(like: torch.Tensor) -> bool:
    """Whether what was measured, now or earlier, may decide: not where runs of two machines must agree."""
    return (
        like.device.type == "cuda"
        and type(like) in (torch.Tensor, torch.nn.Parameter)  # what only stands for a tensor has no speed
        and not torch.are_deterministic_algorithms_enabled()
        and _switch() != "off"
    )


def _may_measure(like: torch.Tensor) -> bool:
    """Whether launches may be repeated and waited for here."""
    return (
        _counts(like)
        and _switch() == "on"
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
    )


def _in_backward() -> bool:
    """Whether this thread runs a backward pass: that of a trial would wait for it, the only thread of its device."""
    return bool(torch._C._current_graph_task_id() != -1)


def _switch() -> str:
    chosen = os.environ.get(SWITCH, "") or "on"
    if chosen not in ("on", "stored", "off"):
        raise ValueError(f"{SWITCH}={chosen}: only `on`, `stored` and `off` are known")
    return chosen


def _config_here(place: Place, like: torch.Tensor) -> Config | None:
    """Return the choice of this process for this place; None where there is none yet."""
    config = _chosen.get(place)
    return config if config is not None and _counts(like) else None


def _config_in_file(place: Place, like: torch.Tensor, candidates: Sequence[Config]) -> Config | None:
    """Return the choice in the tuning file, by an earlier process or another machine of this kind; None for none."""
    path = tuning_file.place()
    if path is None or not _counts(like):
        return None
    stored = _read(path).get(_key(place))
    if stored is None or stored.config not in candidates:
        return None
    _chosen[place] = stored.config
    return stored.config


def _settle(place: Place, candidates: Sequence[Config], times_ns: Sequence[float]) -> Config:
    """The fastest of the candidates, written down; the first unless another is worth leaving it for.

    A process that was first to write one down has chosen for all.
    """
    fastest = min(range(len(candidates)), key=lambda number: times_ns[number])
    if times_ns[fastest] > times_ns[0] * (1.0 - WORTH):
        fastest = 0
    config = candidates[fastest]
    if times_ns[fastest] < float("inf"):  # else none could run, and the launch to come will say why
        default_ns = 0 if times_ns[0] == float("inf") else round(times_ns[0])
        config = _agree(_key(place), Choice(config, round(times_ns[fastest]), default_ns), candidates).config
    _chosen[place] = config
    return config


def _key(place: Place) -> Key:
    kernel, shape, dtype, device = place
    return Key(kernel, shape, str(dtype).removeprefix("torch."), _device_name(device), _versions())


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


def _agree(key: Key, choice: Choice, candidates: Sequence[Config]) -> Choice:
    """Write a choice to the tuning file; returns what it holds: this choice, or that of a process that was first."""
    path = tuning_file.place()
    if path is None:
        return choice
    try:
        return tuning_file.agree(path, key, choice, candidates)
    except OSError as problem:
        warnings.warn(f"{path}: {problem.strerror}; what was tuned is kept for this process alone", stacklevel=2)
        return choice
