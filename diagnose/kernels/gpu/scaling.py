"""A tensor times a number on the device. In place and times one, it is not even read: the loss of a training step."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, on_device_of, row_start, start

BLOCK = 4096
THREADS = 256


@triton.jit
def scale_kernel(values, factor, out, count, IN_PLACE: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    by = tl.load(factor)
    if (not IN_PLACE) or (by != 1.0):
        place = row_start(tl.program_id(0), BLOCK) + tl.arange(0, BLOCK)
        inside = place < count
        value = tl.load(values + place, mask=inside, other=0.0).to(DTYPE) * by
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


def scale(values: torch.Tensor, factor: torch.Tensor, out: torch.Tensor) -> None:
    """Write the contiguous values times the factor (a number of the dtype to multiply in); `out` may be `values`."""
    count = values.numel()
    with on_device_of(values):
        start(
            scale_kernel, (cdiv(count, BLOCK),), THREADS,
            (values, factor, out), count, values.data_ptr() == out.data_ptr(), COMPUTE[factor.dtype], BLOCK,
        )  # fmt: skip
