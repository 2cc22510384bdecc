"""Softmax over rows: a row that fits is held in registers; one that does not is read twice, a block at a time."""

from functools import cache

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, next_power_of_2, on_device_of, row_start, start
from diagnose.kernels.launch.tuning import Config, bucket, choose

WIDEST = 16384
"""Columns that one program holds; beyond, registers spill."""

BLOCK_OF_WIDER = 8192
TILES = (2048, 4096)
"""Elements that a program holds, where a row has fewer: so many rows at a time."""


@triton.jit
def columns_of(row, tokens, columns, CAUSAL: tl.constexpr):
    """The columns that take part in a row, and those that are read: a multiple of 16, for loads of whole vectors."""
    if CAUSAL:
        part = (row % tokens + 1)[:, None]
        read = ((row % tokens // 16 + 1) * 16)[:, None]
    else:
        part = columns
        read = columns
    return part, read


@triton.jit
def scaled(
    scores, mask, mask_stride, column, here, part, read, columns, scale,
    MASKED: tl.constexpr, ADDED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    inside = here & (column < columns) & (column < read)
    value = tl.load(scores + column, mask=inside, other=0.0).to(DTYPE) * scale
    kept = inside & (column < part)
    if MASKED:
        if ADDED:
            value += tl.load(mask + row_start(column, mask_stride), mask=inside, other=0.0).to(DTYPE)
        else:
            kept = kept & (tl.load(mask + row_start(column, mask_stride), mask=inside, other=0) != 0)
    return tl.where(kept, value, float("-inf"))


@triton.jit(do_not_specialize=["rows", "tokens"])
def forward_kernel(
    scores, mask, shares, scale: tl.float64, rows, heads, tokens, columns, stride_0, stride_1, stride_2,
    mask_stride_0, mask_stride_1, mask_stride_2, mask_stride_3,
    MASKED: tl.constexpr, ADDED: tl.constexpr, CAUSAL: tl.constexpr, TURNS: tl.constexpr, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.full((), scale, DTYPE)
    # In 64 bits: rows may be more than 2³¹.
    row = row_start(tl.program_id(0), ROWS) + tl.arange(0, ROWS)
    here = (row < rows)[:, None]
    token, head, batch = row % tokens, row // tokens % heads, row // tokens // heads
    scores += (batch * stride_0 + head * stride_1 + token * stride_2)[:, None]
    if MASKED:
        mask += (batch * mask_stride_0 + head * mask_stride_1 + token * mask_stride_2)[:, None]
    shares += (row * columns)[:, None]
    part, read = columns_of(row, tokens, columns, CAUSAL)
    column = tl.arange(0, BLOCK)[None, :]
    if TURNS == 1:
        x = scaled(
            scores, mask, mask_stride_3, column, here, part, read, columns, scale, MASKED, ADDED, DTYPE
        )  # fmt: skip
        top = tl.max(x, axis=1)[:, None]
        # Where nothing is left of a row, subtracting its maximum would make it nan.
        x = tl.exp(x - tl.where(top == float("-inf"), 0.0, top))
        total = tl.sum(x, axis=1)[:, None]
        share = x / tl.where(total == 0.0, 1.0, total)
        tl.store(shares + column, share.to(shares.dtype.element_ty), mask=here & (column < columns))
    else:
        top = tl.full((ROWS, 1), float("-inf"), DTYPE)
        total = tl.zeros((ROWS, 1), DTYPE)
        for turn in range(TURNS):
            first = turn * BLOCK
            x = scaled(
                scores, mask, mask_stride_3, first + column, here, part, read, columns, scale, MASKED, ADDED, DTYPE
            )  # fmt: skip
            top_before = top
            top = tl.maximum(top, tl.max(x, axis=1)[:, None])
            shift = tl.where(top == float("-inf"), 0.0, top)
            total = total * tl.exp(top_before - shift) + tl.sum(tl.exp(x - shift), axis=1)[:, None]
        shift = tl.where(top == float("-inf"), 0.0, top)
        total = tl.where(total == 0.0, 1.0, total)
        for turn in range(TURNS):
            first = turn * BLOCK
            x = scaled(
                scores, mask, mask_stride_3, first + column, here, part, read, columns, scale, MASKED, ADDED, DTYPE
            )  # fmt: skip
            share = tl.exp(x - shift) / total
            inside = here & (first + column < columns)
            tl.store(shares + first + column, share.to(shares.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "tokens"])
def backward_kernel(
    by_shares, shares, by_scores, scale: tl.float64, rows, tokens, columns,
    CAUSAL: tl.constexpr, TURNS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.full((), scale, DTYPE)
    row = row_start(tl.program_id(0), ROWS) + tl.arange(0, ROWS)
    here = (row < rows)[:, None]
    start = (row * columns)[:, None]
    part, read = columns_of(row, tokens, columns, CAUSAL)
    column = tl.arange(0, BLOCK)[None, :]
    if TURNS == 1:
        inside = here & (column < columns)
        share = tl.load(shares + start + column, mask=inside & (column < read), other=0.0).to(DTYPE)
        given = tl.load(by_shares + start + column, mask=inside & (column < read), other=0.0).to(DTYPE)
        given = tl.where(column < part, given, 0.0)
        gradient = share * (given - tl.sum(share * given, axis=1)[:, None]) * scale
        tl.store(by_scores + start + column, gradient.to(by_scores.dtype.element_ty), mask=inside)
    else:
        along = tl.zeros((ROWS, 1), DTYPE)
        for turn in range(TURNS):
            first = turn * BLOCK
            inside = here & (first + column < columns) & (first + column < read)
            share = tl.load(shares + start + first + column, mask=inside, other=0.0).to(DTYPE)
            given = tl.load(by_shares + start + first + column, mask=inside, other=0.0).to(DTYPE)
            along += tl.sum(share * tl.where(first + column < part, given, 0.0), axis=1)[:, None]
        for turn in range(TURNS):
            first = turn * BLOCK
            inside = here & (first + column < columns)
            seen = inside & (first + column < read)
            share = tl.load(shares + start + first + column, mask=seen, other=0.0).to(DTYPE)
            given = tl.load(by_shares + start + first + column, mask=seen, other=0.0).to(DTYPE)
            gradient = share * (tl.where(first + column < part, given, 0.0) - along) * scale
            tl.store(by_scores + start + first + column, gradient.to(by_scores.dtype.element_ty), mask=inside)


def normalise(
    scores: torch.Tensor,
    mask: torch.Tensor | None,
    shares: torch.Tensor,
    scale: float,
    causal: bool,
    dtype: torch.dtype,
) -> None:
    """Write the shares of scores (A, B, T, S), whose last stride is 1; the mask has their shape, at any strides."""
    batch, heads, tokens, columns = scores.shape
    rows, (block, turns) = batch * heads * tokens, _blocks(columns)
    added = mask is not None and mask.dtype != torch.bool
    if mask is not None and not added:
        mask = mask.view(torch.uint8)

    def launch(config: Config) -> None:
        start(
            forward_kernel, (cdiv(rows, config.rows),), config.threads,
            (scores, mask, shares), scale, rows, heads, tokens, columns,
            *scores.stride()[:3], *((0, 0, 0, 0) if mask is None else mask.stride()),
            mask is not None, added, causal, turns, COMPUTE[dtype], config.rows, block,
        )  # fmt: skip

    name = f"softmax{' causal' if causal else ''}{'' if mask is None else ' masked'}"
    with on_device_of(scores):
        launch(choose(name, (bucket(rows), bucket(columns)), scores, candidates_of_rows(block), launch))


def gradients(
    by_shares: torch.Tensor,
    shares: torch.Tensor,
    by_scores: torch.Tensor,
    scale: float,
    causal: bool,
    dtype: torch.dtype,
) -> None:
    """Write the gradient by scores (A, B, T, S); all three are contiguous."""
    tokens, columns = shares.shape[2:]
    rows, (block, turns) = shares.numel() // columns, _blocks(columns)

    def launch(config: Config) -> None:
        start(
            backward_kernel, (cdiv(rows, config.rows),), config.threads,
            (by_shares, shares, by_scores), scale, rows, tokens, columns,
            causal, turns, COMPUTE[dtype], config.rows, block,
        )  # fmt: skip

    name = f"softmax{' causal' if causal else ''} backward"
    with on_device_of(shares):
        launch(choose(name, (bucket(rows), bucket(columns)), shares, candidates_of_rows(block), launch))


def _blocks(columns: int) -> tuple[int, int]:
    """The columns that a program handles at a time, and how often."""
    block = next_power_of_2(columns)
    return (block, 1) if block <= WIDEST else (BLOCK_OF_WIDER, cdiv(columns, BLOCK_OF_WIDER))


@cache
def candidates_of_rows(block: int) -> tuple[Config, ...]:
    """16 elements a thread, then 8, then 32."""
    return tuple(
        dict.fromkeys(
            Config(rows=max(1, tile // block), threads=min(1024, max(128, max(tile, block) // held)))
            for tile in TILES
            for held in (16, 8, 32)
        )
    )
