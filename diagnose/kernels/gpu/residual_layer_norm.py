"""Residual add and LayerNorm of rows: a row is held in registers, read once and written once."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, next_power_of_2, on_device_of, row_start, start
from diagnose.kernels.gpu.parts import candidates_of_parts, candidates_of_row, sums_of_parts
from diagnose.kernels.gpu.residual_norm import load_row
from diagnose.kernels.launch.tuning import Config, bucket, choose


@triton.jit
def forward_kernel(
    x, residual, weight, bias, normed, summed, means, scales, x_stride, residual_stride, columns, eps: tl.float64,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.load(x + row_start(row, x_stride) + column, mask=inside, other=0.0).to(DTYPE)
    total += tl.load(residual + row_start(row, residual_stride) + column, mask=inside, other=0.0).to(DTYPE)
    # What is normalised is the sum as it is stored: the backward pass knows no other.
    rounded = total.to(summed.dtype.element_ty)
    tl.store(summed + row_start(row, columns) + column, rounded, mask=inside)
    total = rounded.to(DTYPE)
    mean = tl.sum(total, axis=0) / columns
    centred = tl.where(inside, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + tl.full((), eps, DTYPE))
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    value = centred * scale
    if WEIGHTED:
        value *= tl.load(weight + column, mask=inside, other=0.0).to(DTYPE)
    if BIASED:
        value += tl.load(bias + column, mask=inside, other=0.0).to(DTYPE)
    tl.store(normed + row_start(row, columns) + column, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "parts"])
def backward_kernel(
    by_normed, by_summed, summed, weight, means, scales, by_inputs, sums, rows, columns, parts,
    WEIGHTED: tl.constexpr, SUMS_WANTED: tl.constexpr, SUM_USED: tl.constexpr, ROWS_OF_PART: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    by_weight = tl.zeros((BLOCK,), DTYPE)
    by_bias = tl.zeros((BLOCK,), DTYPE)
    if WEIGHTED:
        factor = tl.load(weight + column, mask=inside, other=0.0).to(DTYPE)
    first = part * ROWS_OF_PART
    end = tl.minimum(first + ROWS_OF_PART, rows)
    total_next, given_next, direct_next = load_row(summed, by_normed, by_summed, first, end, columns, SUM_USED, BLOCK)
    for turn in range(ROWS_OF_PART):
        row = first + turn
        here = inside & (row < end)
        total, given, direct = total_next.to(DTYPE), given_next.to(DTYPE), direct_next
        # The next row is on its way while this one is summed: memory is not left waiting for the sum.
        total_next, given_next, direct_next = load_row(
            summed, by_normed, by_summed, row + 1, end, columns, SUM_USED, BLOCK
        )
        mean = tl.load(means + row, mask=row < end, other=0.0)
        scale = tl.load(scales + row, mask=row < end, other=0.0)
        value = tl.where(here, (total - mean) * scale, 0.0)
        if SUMS_WANTED:
            by_weight += given * value
            by_bias += given
        if WEIGHTED:
            given = given * factor
        along = tl.sum(given * value, axis=0) / columns
        gradient = scale * (given - tl.sum(given, axis=0) / columns - value * along)
        if SUM_USED:
            gradient += direct.to(DTYPE)
        place = by_inputs + row_start(row, columns) + column
        tl.store(place, gradient.to(by_inputs.dtype.element_ty), mask=here)
    if SUMS_WANTED:
        tl.store(sums + row_start(part, columns) + column, by_weight, mask=inside)
        tl.store(sums + row_start(parts + part, columns) + column, by_bias, mask=inside)


def add_and_normalise(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    normed: torch.Tensor,
    summed: torch.Tensor,
    means: torch.Tensor,
    scales: torch.Tensor,
    eps: float,
) -> None:
    """Write sum, normalised sum, mean and 1 / deviation of rows (rows, columns), whose last strides are 1."""
    rows, columns = x.shape
    block = next_power_of_2(columns)

    def launch(config: Config) -> None:
        start(
            forward_kernel, (rows,), config.threads,
            (x, residual, weight, bias, normed, summed, means, scales), x.stride(0), residual.stride(0), columns, eps,
            weight is not None, bias is not None, COMPUTE[scales.dtype], block,
        )  # fmt: skip

    candidates = candidates_of_row(block)
    with on_device_of(x):
        launch(choose("add_layer_norm", (bucket(rows), columns), x, candidates, launch))


def gradients(
    by_normed: torch.Tensor,
    by_summed: torch.Tensor | None,
    summed: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    means: torch.Tensor,
    scales: torch.Tensor,
    by_inputs: torch.Tensor,
) -> list[torch.Tensor | None]:
    """Write the gradient by either addend; return those by weight and bias."""
    rows, columns = summed.shape
    block = next_power_of_2(columns)
    wanted = [None if part is None else part.dtype for part in (weight, bias)]

    def launch(config: Config) -> list[torch.Tensor | None]:
        parts = cdiv(rows, config.rows)
        sums = torch.empty(2, parts if any(wanted) else 0, columns, dtype=scales.dtype, device=summed.device)
        start(
            backward_kernel, (parts,), config.threads,
            (by_normed, by_summed, summed, weight, means, scales, by_inputs, sums), rows, columns, parts,
            weight is not None, any(wanted), by_summed is not None, config.rows, COMPUTE[scales.dtype], block,
        )  # fmt: skip
        return sums_of_parts(sums, wanted)

    candidates = candidates_of_parts(rows, block)
    with on_device_of(summed):
        return launch(choose("add_layer_norm backward", (bucket(rows), columns), summed, candidates, launch))
