"""The sum of what programs have summed up each for itself: the last step of a gradient by a weight."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, on_device_of, row_start, warps

PARTS_AT_ONCE = 64
BLOCK = 32
THREADS = 256


@triton.jit
def sum_kernel(
    parts, out, count, columns, DTYPE: tl.constexpr, TURNS: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    which = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros((AT_ONCE, BLOCK), DTYPE)
    for turn in range(TURNS):
        part = turn * AT_ONCE + tl.arange(0, AT_ONCE)
        place = row_start(which * count + part, columns)[:, None] + column[None, :]
        total += tl.load(parts + place, mask=(part < count)[:, None] & inside[None, :], other=0.0)
    value = tl.sum(total, axis=0)
    tl.store(out + row_start(which, columns) + column, value.to(out.dtype.element_ty), mask=inside)


def sum_of_parts(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of sums (…, parts, columns), contiguous: the sums (…, columns) over all parts, rounded once to a dtype."""
    *others, count, columns = parts.shape
    out = torch.empty(*others, columns, dtype=dtype, device=parts.device)
    if out.numel() > 0:
        # Of a power of two, so that numbers of rows that vary do not compile it again and again.
        turns = triton.cdiv(triton.next_power_of_2(count), PARTS_AT_ONCE) if count else 0
        with on_device_of(parts):
            sum_kernel[(triton.cdiv(columns, BLOCK), out.numel() // columns)](
                parts, out, count, columns, COMPUTE[parts.dtype], turns, PARTS_AT_ONCE, BLOCK,
                num_warps=warps(THREADS, parts.device),
            )  # fmt: skip
    return out
