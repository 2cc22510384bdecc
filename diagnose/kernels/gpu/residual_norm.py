"""Residual add and RMSNorm of rows: a row is held in registers, read once and written once."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, next_power_of_2, on_device_of, row_start, start
from diagnose.kernels.gpu.parts import candidates_of_parts, candidates_of_row, sums_of_parts
from diagnose.kernels.launch.tuning import Config, bucket, choose


@triton.jit
def forward_kernel(
    x, residual, weight, normed, summed, scales, x_stride, residual_stride, columns,
    EPS: tl.constexpr, WEIGHTED: tl.constexpr, ROUND_FIRST: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.load(x + row_start(row, x_stride) + column, mask=inside, other=0.0).to(DTYPE)
    total += tl.load(residual + row_start(row, residual_stride) + column, mask=inside, other=0.0).to(DTYPE)
    if WEIGHTED:
        factor = tl.load(weight + column, mask=inside, other=0.0).to(DTYPE)
    # What is normalised is the sum as it is stored: the backward pass knows no other.
    rounded = total.to(summed.dtype.element_ty)
    tl.store(summed + row_start(row, columns) + column, rounded, mask=inside)
    total = rounded.to(DTYPE)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / columns + EPS)
    tl.store(scales + row, scale)
    value = total * scale
    if ROUND_FIRST:
        value = value.to(summed.dtype.element_ty).to(DTYPE)
    if WEIGHTED:
        value *= factor
    tl.store(normed + row_start(row, columns) + column, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def load_row(summed, by_normed, by_summed, row, end, columns, SUM_USED: tl.constexpr, BLOCK: tl.constexpr):
    """The sum, the gradient by its normalised value, and the one by itself where there is one."""
    column = tl.arange(0, BLOCK)
    here = (column < columns) & (row < end)
    offset = row_start(row, columns) + column
    total = tl.load(summed + offset, mask=here, other=0.0)
    given = tl.load(by_normed + offset, mask=here, other=0.0)
    direct = tl.load(by_summed + offset, mask=here, other=0.0) if SUM_USED else given
    return total, given, direct


@triton.jit(do_not_specialize=["rows"])
def backward_kernel(
    by_normed, by_summed, summed, weight, scales, by_inputs, by_weight_parts, rows, columns,
    WEIGHTED: tl.constexpr, ROUND_FIRST: tl.constexpr, SUM_USED: tl.constexpr, ROWS_OF_PART: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    by_weight = tl.zeros((BLOCK,), DTYPE)
    if WEIGHTED:
        factor = tl.load(weight + column, mask=inside, other=0.0).to(DTYPE)
    first = part * ROWS_OF_PART
    end = tl.minimum(first + ROWS_OF_PART, rows)
    total_next, given_next, direct_next = load_row(summed, by_normed, by_summed, first, end, columns, SUM_USED, BLOCK)
    for turn in range(ROWS_OF_PART):
        row = first + turn
        total, given, direct = total_next.to(DTYPE), given_next.to(DTYPE), direct_next
        # The next row is on its way while this one is summed: memory is not left waiting for the sum.
        total_next, given_next, direct_next = load_row(
            summed, by_normed, by_summed, row + 1, end, columns, SUM_USED, BLOCK
        )
        scale = tl.load(scales + row, mask=row < end, other=0.0)
        value = total * scale
        if WEIGHTED:
            if ROUND_FIRST:
                by_weight += given * value.to(summed.dtype.element_ty).to(DTYPE)
            else:
                by_weight += given * value
            given = given * factor
        gradient = scale * (given - value * (tl.sum(given * value, axis=0) / columns))
        if SUM_USED:
            gradient += direct.to(DTYPE)
        place = by_inputs + row_start(row, columns) + column
        tl.store(place, gradient.to(by_inputs.dtype.element_ty), mask=inside & (row < end))
    if WEIGHTED:
        tl.store(by_weight_parts + row_start(part, columns) + column, by_weight, mask=inside)


def add_and_normalise(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    normed: torch.Tensor,
    summed: torch.Tensor,
    scales: torch.Tensor,
    eps: float,
    round_first: bool,
) -> None:
    """Write sum, normalised sum and 1 / rms of rows (rows, columns), whose last strides are 1."""
    rows, columns = x.shape
    block = next_power_of_2(columns)

    def launch(config: Config) -> None:
        start(
            forward_kernel, (rows,), config.threads,
            (x, residual, weight, normed, summed, scales), x.stride(0), residual.stride(0), columns,
            eps, weight is not None, round_first, COMPUTE[scales.dtype], block,
        )  # fmt: skip

    candidates = candidates_of_row(block)
    with on_device_of(x):
        launch(choose("add_rms_norm", (bucket(rows), columns), x, candidates, launch))


def gradients(
    by_normed: torch.Tensor,
    by_summed: torch.Tensor | None,
    summed: torch.Tensor,
    weight: torch.Tensor | None,
    scales: torch.Tensor,
    by_inputs: torch.Tensor,
    round_first: bool,
) -> torch.Tensor | None:
    """Write the gradient by either addend; return that by the weight."""
    rows, columns = summed.shape
    block = next_power_of_2(columns)

    def launch(config: Config) -> torch.Tensor | None:
        parts = cdiv(rows, config.rows)
        sums = None if weight is None else torch.empty(1, parts, columns, dtype=scales.dtype, device=summed.device)
        start(
            backward_kernel, (parts,), config.threads,
            (by_normed, by_summed, summed, weight, scales, by_inputs, sums), rows, columns,
            weight is not None, round_first, by_summed is not None, config.rows, COMPUTE[scales.dtype], block,
        )  # fmt: skip
        return None if sums is None or weight is None else sums_of_parts(sums, [weight.dtype])[0]

    with on_device_of(summed):
        return launch(
            choose("add_rms_norm backward", (bucket(rows), columns), summed, candidates_of_parts(rows, block), launch)
        )
