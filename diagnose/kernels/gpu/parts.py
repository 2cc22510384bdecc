"""Gradients by weights: sums over rows, in parts that programs sum up each for itself, and the sum of the parts."""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, next_power_of_2, on_device_of, row_start, start
from diagnose.kernels.launch.tuning import Config, bucket

PARTS = (512, 256)
"""Programs of a backward pass, about: each sums over rows of its own. Few have fewer such sums to write and read, many
fill the device. The first is the default: the same on every device, so that the order of the sum, and with it the
rounding, does not depend on the device unless it is tuned."""

PARTS_AT_ONCE = 64
BLOCK = 32
THREADS = 256


@triton.jit(do_not_specialize=["count"])
def sum_kernel(
    parts, out, second_out, count, columns,
    DTYPE: tl.constexpr, TURNS: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr,
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
    if which == 0:
        tl.store(out + column, value.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(second_out + column, value.to(second_out.dtype.element_ty), mask=inside)


def sums_of_parts(parts: torch.Tensor, dtypes: Sequence[torch.dtype | None]) -> list[torch.Tensor | None]:
    """Add up the parts of one or two kinds of sums (kinds, parts, columns; contiguous), and round each total once.

    A kind has the dtype of its place, or is left out where that is None.
    """
    _, count, columns = parts.shape
    outs = [None if dtype is None else torch.empty(columns, dtype=dtype, device=parts.device) for dtype in dtypes]
    written = [out for out in outs if out is not None]
    if written and columns > 0:
        # Of a power of two, so that numbers of rows that vary do not compile it again and again.
        turns = cdiv(next_power_of_2(count), PARTS_AT_ONCE) if count else 0
        with on_device_of(parts):
            start(
                sum_kernel, (cdiv(columns, BLOCK), len(written)), THREADS,
                (parts if outs[0] is not None else parts[1], written[0], written[-1]), count, columns,
                COMPUTE[parts.dtype], turns, PARTS_AT_ONCE, BLOCK,
            )  # fmt: skip
    return outs


def threads_for_row(block: int) -> list[int]:
    """Sizes of a program that holds a row of a block: 16 elements a thread, then 8, then 32."""
    return list(dict.fromkeys(min(1024, max(128, block // held)) for held in (16, 8, 32)))


@cache
def candidates_of_row(block: int) -> tuple[Config, ...]:
    """Sizes of a program that holds a row, each with nothing else to choose."""
    return tuple(Config(threads=threads) for threads in threads_for_row(block))


def candidates_of_parts(rows: int, block: int) -> tuple[Config, ...]:
    """Return the launch candidates for partial sums (rows per program, block size), the likely first.

    Numbers of rows are powers of two, the same for all rows of a bucket, as a choice holds for all of them.
    """
    return _candidates_of_parts(bucket(rows), block)


@cache
def _candidates_of_parts(rows: int, block: int) -> tuple[Config, ...]:
    threads_tried = threads_for_row(block)
    return tuple(Config(threads=threads, rows=max(1, rows // parts)) for parts in PARTS for threads in threads_tried)
