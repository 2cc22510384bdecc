"""Rotary embedding: a program rotates some heads of one token, whose angles it reads once."""

from functools import cache

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, next_power_of_2, on_device_of, row_start, start
from diagnose.kernels.launch.tuning import Config, bucket, choose

CANDIDATES = tuple(
    Config(block=block, threads=threads)
    for block, threads in ((4096, 256), (2048, 128), (4096, 128), (8192, 256), (1024, 128), (1024, 64))
)
"""`block`: elements that a program holds, of whole heads that are filled up to powers of two."""


@triton.jit
def rotate_heads(
    x, out, head, heads, stride, out_stride, cos, sin, cos_stride, sin_stride, half,
    INTERLEAVED: tl.constexpr, WIDE: tl.constexpr, BACK: tl.constexpr, DTYPE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, HALF)[None, :]
    known = pair < half
    if INTERLEAVED:
        place_1, place_2 = 2 * pair, 2 * pair + 1
    else:
        place_1, place_2 = pair, pair + half
    if WIDE:
        cos_1 = tl.load(cos + place_1 * cos_stride, mask=known, other=0.0).to(DTYPE)
        cos_2 = tl.load(cos + place_2 * cos_stride, mask=known, other=0.0).to(DTYPE)
        sin_1 = tl.load(sin + place_1 * sin_stride, mask=known, other=0.0).to(DTYPE)
        sin_2 = tl.load(sin + place_2 * sin_stride, mask=known, other=0.0).to(DTYPE)
    else:
        cos_1 = tl.load(cos + pair * cos_stride, mask=known, other=0.0).to(DTYPE)
        sin_1 = tl.load(sin + pair * sin_stride, mask=known, other=0.0).to(DTYPE)
        cos_2 = cos_1
        sin_2 = sin_1
    here = (head < heads)[:, None]
    rows = row_start(head, stride)[:, None]
    new_rows = row_start(head, out_stride)[:, None]
    if INTERLEAVED:
        # Neighbours are read together and parted in registers.
        column = tl.arange(0, 2 * HALF)[None, :]
        inside = here & (column < 2 * half)
        both = tl.load(x + rows + column, mask=inside, other=0.0).to(DTYPE)
        x_1, x_2 = tl.split(tl.reshape(both, (both.shape[0], HALF, 2)))
    else:
        x_1 = tl.load(x + rows + place_1, mask=here & known, other=0.0).to(DTYPE)
        x_2 = tl.load(x + rows + place_2, mask=here & known, other=0.0).to(DTYPE)
    if BACK:
        y_1 = x_1 * cos_1 + x_2 * sin_2
        y_2 = x_2 * cos_2 - x_1 * sin_1
    else:
        y_1 = x_1 * cos_1 - x_2 * sin_1
        y_2 = x_2 * cos_2 + x_1 * sin_2
    if INTERLEAVED:
        turned = tl.reshape(tl.join(y_1, y_2), (both.shape[0], 2 * HALF))
        tl.store(out + new_rows + column, turned.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(out + new_rows + place_1, y_1.to(out.dtype.element_ty), mask=here & known)
        tl.store(out + new_rows + place_2, y_2.to(out.dtype.element_ty), mask=here & known)


@triton.jit(do_not_specialize=["tokens"])
def rotary_kernel(
    q, k, cos, sin, new_q, new_k, tokens,
    q_stride_0, q_stride_1, q_stride_2, k_stride_0, k_stride_1, k_stride_2,
    new_q_stride_0, new_q_stride_1, new_q_stride_2, new_k_stride_0, new_k_stride_1, new_k_stride_2,
    cos_stride_0, cos_stride_1, cos_stride_2, sin_stride_0, sin_stride_1, sin_stride_2,
    q_heads, k_heads, q_groups, groups, half,
    INTERLEAVED: tl.constexpr, WIDE: tl.constexpr, BACK: tl.constexpr, DTYPE: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) // groups
    group = tl.program_id(0) % groups
    one, other = place // tokens, place % tokens
    cos += row_start(one, cos_stride_0) + row_start(other, cos_stride_1)
    sin += row_start(one, sin_stride_0) + row_start(other, sin_stride_1)
    if group < q_groups:
        rotate_heads(
            q + row_start(one, q_stride_0) + row_start(other, q_stride_1),
            new_q + row_start(one, new_q_stride_0) + row_start(other, new_q_stride_1),
            group * HEADS + tl.arange(0, HEADS), q_heads, q_stride_2, new_q_stride_2,
            cos, sin, cos_stride_2, sin_stride_2, half, INTERLEAVED, WIDE, BACK, DTYPE, HALF,
        )  # fmt: skip
    else:
        rotate_heads(
            k + row_start(one, k_stride_0) + row_start(other, k_stride_1),
            new_k + row_start(one, new_k_stride_0) + row_start(other, new_k_stride_1),
            (group - q_groups) * HEADS + tl.arange(0, HEADS), k_heads, k_stride_2, new_k_stride_2,
            cos, sin, cos_stride_2, sin_stride_2, half, INTERLEAVED, WIDE, BACK, DTYPE, HALF,
        )  # fmt: skip


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    new_q: torch.Tensor,
    new_k: torch.Tensor,
    dtype: torch.dtype,
    axis: int,
    interleaved: bool,
    back: bool,
) -> None:
    """Write the rotated q and k, whose last strides are 1; all have four dimensions.

    Heads are along `axis`, 1 or 2; along it cos and sin have one, along the others as many as q or one.
    """
    first, tokens, q_heads, width = q.shape[0], q.shape[3 - axis], q.shape[axis], q.shape[3]
    k_heads = k.shape[axis]
    whole = cos.shape[3] == width
    strides = [stride for part in (q, k, new_q, new_k) for stride in _strides(part, axis)]
    strides += [stride for part in (cos, sin) for stride in _strides_of_angles(part, axis)]
    half = next_power_of_2(width // 2)

    def launch(config: Config) -> None:
        heads = config.block // (2 * half)
        q_groups = cdiv(q_heads, heads)
        groups = q_groups + cdiv(k_heads, heads)
        start(
            rotary_kernel, (first * tokens * groups,), config.threads,
            (q, k, cos, sin, new_q, new_k), tokens,
            *strides, q_heads, k_heads, q_groups, groups, width // 2,
            interleaved, whole, back, COMPUTE[dtype], heads, half,
        )  # fmt: skip

    candidates = candidates_of_heads(max(q_heads, k_heads), half)
    with on_device_of(q):
        launch(choose("rotary", (bucket(first * tokens), q_heads, k_heads, width), q, candidates, launch))


def _strides(x: torch.Tensor, axis: int) -> tuple[int, int, int]:
    """Strides of the sequence, token and head dimensions."""
    return x.stride(0), x.stride(3 - axis), x.stride(axis)


def _strides_of_angles(x: torch.Tensor, axis: int) -> tuple[int, int, int]:
    """Strides of the sequence, token and angle dimensions; 0 for a dimension that is broadcast."""
    sequences, tokens = x.shape[0], x.shape[3 - axis]
    return x.stride(0) if sequences > 1 else 0, x.stride(3 - axis) if tokens > 1 else 0, x.stride(3)


@cache
def candidates_of_heads(heads: int, half: int) -> tuple[Config, ...]:
    """Return the launch candidates without repetition: a program holds at least one head, and at most all."""
    least = 2 * half
    most = least * next_power_of_2(heads)
    blocks = ((max(least, min(most, config.block)), config.threads) for config in CANDIDATES)
    return tuple(dict.fromkeys(Config(block=block, threads=threads) for block, threads in blocks))
