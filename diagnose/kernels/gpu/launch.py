"""Helpers that every launch needs: warps for a number of threads, offsets that do not overflow, dtypes.

Triton compiles a kernel anew for a number that is 1, and for one that is a multiple of 16. Numbers that follow the
batch and help no load to be aligned are exempt (`do_not_specialize`): lengths that vary would compile for many steps.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel

COMPUTE = {torch.float32: tl.float32, torch.float64: tl.float64}

FIRST_READ = (3, 6)
"""Triton from which on a compiled kernel takes the arguments that the kernel takes, and what it is chosen by is known:
until 3.2 it was handed no constants. Read up to 3.9."""


def remembers(version: str, cuda: str | None) -> bool:
    """Whether launches may be remembered: with this Triton, and a torch for this CUDA.

    For AMD's devices Triton also looks at how much memory a tensor lies in; at what for Intel's is not known here.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return cuda is not None and found is not None and (int(found[1]), int(found[2])) >= FIRST_READ


REMEMBERS = remembers(triton.__version__, torch.version.cuda)
"""Elsewhere Triton is asked each time."""

MOST_KNOWN = 4096
"""Launches that are remembered."""

_known: dict[tuple[Any, ...] | None, Any] = {}
"""What Triton compiled, by all that it looks at when it chooses among what it has compiled."""


@triton.jit
def row_start(row, stride):
    """The offset of a row, in elements. A product of two int32 would wrap beyond 2^31 elements."""
    return (row + tl.zeros((), tl.int64)) * stride


@triton.jit
def load(start, count, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """A block of neighbours, of which `count` are there where it is masked; zeros for the others."""
    lanes = tl.arange(0, BLOCK)
    return tl.load(start + lanes, mask=lanes < count, other=0.0) if MASKED else tl.load(start + lanes)


@triton.jit
def store(start, value, count, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Write a block of neighbours in the dtype of the memory."""
    lanes = tl.arange(0, BLOCK)
    if MASKED:
        tl.store(start + lanes, value.to(start.dtype.element_ty), mask=lanes < count)
    else:
        tl.store(start + lanes, value.to(start.dtype.element_ty))


def start(kernel: Any, grid: tuple[int, ...], threads: int, tensors: Sequence[torch.Tensor | None], *rest: Any) -> None:
    """Launch a kernel, whose tensors come first, on a grid of up to two dimensions.

    Triton looks at each argument of each launch, which takes the host as long as an operator of torch's: what it found
    for a launch that differs in nothing that it looks at is launched again.
    """
    first = tensors[0]
    assert first is not None, "the first tensor says which device"
    asked_always = not REMEMBERS or getattr(kernel, "pre_run_hooks", None)
    key = None if asked_always else _seen((id(kernel), threads, first.get_device()), tensors, rest)
    compiled = _known.get(key)
    if compiled is not None:
        compiled[(*grid, 1, 1)](*tensors, *rest)
        return
    compiled = kernel[grid](*tensors, *rest, num_warps=warps(threads, first.device))
    if key is None or not isinstance(compiled, CompiledKernel):  # interpreted
        return
    if len(_known) >= MOST_KNOWN:  # of shapes that never come again
        _known.clear()
    _known[key] = compiled


def _seen(
    place: tuple[int, int, int], tensors: Sequence[torch.Tensor | None], rest: tuple[Any, ...]
) -> tuple[Any, ...]:
    """All that Triton chooses a binary by.

    It tells tensors apart by dtype and by whether they are aligned to 16 bytes, and of numbers less than their types
    and values: 1, 1.0 and True are equal, and yet it compiles for each.
    """
    modes = triton.knobs.runtime.debug, triton.knobs.compilation.instrumentation_mode
    told = [None if one is None else (one.dtype, one.data_ptr() % 16 == 0) for one in tensors]
    return (place, modes, rest, *map(type, rest), *told)


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Launches go to the current device, which need not be the tensor's."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def cdiv(count: int, size: int) -> int:
    """The quotient rounded up. Triton's own is one for its language too, and takes the host 3 µs."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The least power of two that is no less than a positive number."""
    return 1 << (count - 1).bit_length()


@cache
def warps(threads: int, device: torch.device) -> int:
    """Wavefronts that hold so many threads: they are 32 wide on some devices, 64 on others."""
    if device.type != "cuda":
        return 4
    return max(1, threads // torch.cuda.get_device_properties(device).warp_size)
