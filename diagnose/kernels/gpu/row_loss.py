"""Cross entropy of rows of logits: one pass for the loss, one for the gradient.

The first pass reads each logit once and keeps the maximum and the sum of exponentials as it goes; the second reads it
once more and writes its gradient. Nothing in between is stored but one number a row.
"""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, next_power_of_2, on_device_of, row_start, start
from diagnose.kernels.launch.tuning import Config, bucket, choose

LOSS_CANDIDATES = tuple(
    Config(block=block, threads=threads)
    for block, threads in ((4096, 256), (4096, 512), (8192, 512), (8192, 1024), (16384, 1024), (2048, 128))
)
GRADIENT_CANDIDATES = tuple(
    Config(block=block, threads=threads)
    for block, threads in ((4096, 256), (2048, 128), (2048, 256), (4096, 512), (8192, 512), (1024, 128))
)
MANY_ROWS = 1024

TRIED_BYTES = 1 << 26
"""Gradients that are written to find out how: where they are to take the place of their logits, it is done in memory
of its own, and logits that were written over could not be read again."""


@triton.jit
def loss_kernel(
    logits, target, losses, logsumexps, row_stride, columns, ignore_index, SMOOTHING: tl.constexpr,
    Z_LOSS: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
    END: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start, before = _window(row, row_stride, ALIGNED)
    label = tl.load(target + row)
    kept = label != ignore_index
    lanes = tl.arange(0, BLOCK)
    # An ignored row is not read.
    column = lanes - before
    inside = (column >= 0) & (column < columns) & kept
    x = tl.load(logits + start + lanes, mask=inside, other=float("-inf")).to(DTYPE)
    top = tl.max(x, axis=0)
    sums = tl.exp(x - tl.where(top == float("-inf"), 0.0, top))
    totals = tl.where(inside, x, 0.0)
    if kept:
        # Whole blocks have no mask, which would make loads of single elements of them.
        for first in range(BLOCK, WHOLE, BLOCK):
            x = tl.load(logits + start + first + lanes).to(DTYPE)
            top, sums, totals = _take_in(x, x, top, sums, totals, SMOOTHING)
        for first in range(WHOLE, END, BLOCK):
            inside = first + lanes < columns + before
            x = tl.load(logits + start + first + lanes, mask=inside, other=float("-inf")).to(DTYPE)
            top, sums, totals = _take_in(x, tl.where(inside, x, 0.0), top, sums, totals, SMOOTHING)
    logsumexp = tl.where(top == float("-inf"), 0.0, top) + tl.log(tl.where(kept, tl.sum(sums, axis=0), 1.0))
    known = kept & (label >= 0) & (label < columns)
    # A label outside the vocabulary shows as nan; nothing outside the row is read.
    picked = tl.load(logits + start + before + label, mask=known, other=float("nan")).to(DTYPE)
    loss = logsumexp - (1.0 - SMOOTHING) * picked
    if SMOOTHING > 0:
        loss -= SMOOTHING * (tl.sum(totals, axis=0) / columns)
    if Z_LOSS > 0:
        loss += Z_LOSS * logsumexp * logsumexp
    tl.store(losses + row, tl.where(kept, loss, 0.0))
    tl.store(logsumexps + row, tl.where(kept, logsumexp, 0.0))


@triton.jit
def _window(row, stride, ALIGNED: tl.constexpr):
    """The aligned offset at or before a row's first element, and the number of elements between the two."""
    start = row_start(row, stride)
    aligned = start // ALIGNED * ALIGNED
    return aligned, (start - aligned).to(tl.int32)


@triton.jit
def _take_in(x, counted, top, sums, totals, SMOOTHING: tl.constexpr):
    """The maximum, the sums of exponentials below it, and the sums of logits, with a block more."""
    top_before = top
    top = tl.maximum(top, tl.max(x, axis=0))
    # While all logits are -inf, subtracting their maximum would make them nan.
    shift = tl.where(top == float("-inf"), 0.0, top)
    sums = sums * tl.exp(top_before - shift) + tl.exp(x - shift)
    if SMOOTHING > 0:
        totals += counted
    return top, sums, totals


@triton.jit
def gradient_kernel(
    logits, target, logsumexps, scales, gradients, row_stride, gradient_stride, columns, first_column, vocabulary,
    ignore_index, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    ALIKE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start, before = _window(row, row_stride, ALIGNED)
    # Memory that is laid out alike is written where the logits were read, and known to be aligned there.
    place = start if ALIKE else row_start(row, gradient_stride) - before
    first = tl.program_id(1) * BLOCK
    lanes = tl.arange(0, BLOCK)
    column = first + lanes - before
    label = tl.load(target + row)
    logsumexp = tl.load(logsumexps + row)
    scale = tl.load(scales + row)
    kept = label != ignore_index
    scale = tl.where((label >= 0) & (label < vocabulary), scale, float("nan"))
    factor = 1.0 + 2.0 * Z_LOSS * logsumexp
    share = SMOOTHING / (vocabulary + tl.zeros((), DTYPE))
    here = column + first_column == label
    if kept & (first >= before) & (first + BLOCK <= columns + before):
        x = tl.load(logits + start + first + lanes).to(DTYPE)
        gradient = _differentiate(x, here, logsumexp, scale, factor, share, SMOOTHING, Z_LOSS)
        tl.store(gradients + place + first + lanes, gradient.to(gradients.dtype.element_ty))
    else:
        inside = (column >= 0) & (column < columns)
        # An ignored row is not read: it may hold anything.
        x = tl.load(logits + start + first + lanes, mask=inside & kept, other=0.0).to(DTYPE)
        gradient = _differentiate(x, here, logsumexp, scale, factor, share, SMOOTHING, Z_LOSS)
        gradient = tl.where(kept, gradient, 0.0)
        tl.store(gradients + place + first + lanes, gradient.to(gradients.dtype.element_ty), mask=inside)


@triton.jit
def _differentiate(x, here, logsumexp, scale, factor, share, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr):
    gradient = tl.exp(x - logsumexp)
    if Z_LOSS > 0:
        gradient *= factor
    if SMOOTHING > 0:
        gradient -= share
    return tl.where(here, gradient - (1.0 - SMOOTHING), gradient) * scale


def losses_of_rows(
    logits: torch.Tensor,
    target: torch.Tensor,
    losses: torch.Tensor,
    logsumexps: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> None:
    """Write the loss and the log-sum-exp of each row of logits (rows, vocabulary), whose last stride is 1."""
    rows, columns = logits.shape

    def launch(config: Config) -> None:
        # In whole blocks: rows whose lengths vary from step to step compile no loop of their own.
        whole = max(1, columns // config.block) * config.block
        end = cdiv(columns + _aligned(logits) - 1, config.block) * config.block
        start(
            loss_kernel, (rows,), config.threads,
            (logits, target, losses, logsumexps), logits.stride(0), columns, ignore_index,
            label_smoothing, z_loss, COMPUTE[losses.dtype], _aligned(logits), config.block, whole, end,
        )  # fmt: skip

    with on_device_of(logits):
        launch(choose("cross_entropy", _size(rows, columns), logits, _fitting(LOSS_CANDIDATES, columns), launch))


def gradients_of_rows(
    logits: torch.Tensor,
    target: torch.Tensor,
    logsumexps: torch.Tensor,
    scales: torch.Tensor,
    gradients: torch.Tensor,
    first_column: int,
    vocabulary: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> None:
    """Write the gradient of columns of logits, times a factor a row; `gradients` may be `logits` itself."""
    rows, columns = logits.shape

    def launch(config: Config, rows: int = rows, gradients: torch.Tensor = gradients) -> None:
        aligned = _aligned(logits)
        alike = gradients.stride(0) == logits.stride(0) and gradients.dtype == logits.dtype
        start(
            gradient_kernel, (rows, cdiv(columns + aligned - 1, config.block)), config.threads,
            (logits, target, logsumexps, scales, gradients), logits.stride(0), gradients.stride(0), columns,
            first_column, vocabulary, ignore_index, label_smoothing, z_loss, COMPUTE[logsumexps.dtype], aligned, alike,
            config.block,
        )  # fmt: skip

    def try_out(config: Config) -> None:
        some = max(1, min(rows, TRIED_BYTES // (columns * gradients.element_size())))
        launch(config, some, torch.empty(some, columns, dtype=gradients.dtype, device=gradients.device))

    candidates = _fitting(GRADIENT_CANDIDATES, columns)
    with on_device_of(logits):
        launch(choose("cross_entropy backward", _size(rows, columns), logits, candidates, try_out))


def _size(rows: int, columns: int) -> tuple[int, int]:
    """Return the size that a tuned choice holds for: the length of rows, and their number until they fill a device."""
    return min(bucket(rows), MANY_ROWS), bucket(columns)


def _aligned(logits: torch.Tensor) -> int:
    """Elements of the 16 bytes that a thread loads at once."""
    return 16 // logits.element_size()


def _fitting(candidates: tuple[Config, ...], columns: int) -> tuple[Config, ...]:
    """Keep the candidates whose block is no longer than a row; for short rows, one block that holds the row."""
    widest = max(16, next_power_of_2(columns))
    fitting = tuple(config for config in candidates if config.block <= widest)
    return fitting or (Config(block=widest, threads=128),)
