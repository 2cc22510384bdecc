"""What every launch needs: the warps that make up some threads, offsets that do not overflow, dtypes."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import triton
import triton.language as tl

COMPUTE = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit
def row_start(row, stride):
    """Where a row begins, in elements. A product of two int32 would wrap beyond 2^31 elements."""
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
