"""Kernels of what stands between the products of a transformer's block, beside what programs write instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from kernel_case import DEVICE, Case, Ways, liger, sizes, values
from torch import Tensor

from diagnose import kernels


def add_layer_norm(largest: int) -> Iterator[Case]:
    """The blocks of transformers, both outputs used."""
    for rows, width in sizes(largest, (8192, 4096), (8192, 8192), (8192, 1024), (8191, 4095), (512, 768)):
        inputs = values(rows, width), values(rows, width), values(width), values(width)

        def eager(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            summed = x + residual
            return F.layer_norm(summed, summed.shape[-1:], weight, bias), summed

        ways: Ways = {"ours": kernels.add_layer_norm, "eager": eager}
        if (norm := liger("layer_norm", "LigerLayerNormFunction")) is not None:

            def theirs(
                x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, norm: Any = norm
            ) -> tuple[Tensor, Tensor]:
                summed = x + residual
                return norm.apply(summed, weight, bias, 1e-5), summed

            ways["Liger's layer_norm"] = theirs
        # Forward two in and two out; backward two gradients and the sum in, one gradient out.
        yield Case(f"add + LayerNorm {rows}×{width}", inputs, ways, moved_bytes=8 * inputs[0].nbytes)


def geglu(largest: int) -> Iterator[Case]:
    """The activation of gated feed-forward blocks; Liger has the tanh formula alone."""
    for rows, width in sizes(largest, (8192, 4096), (8192, 14336), (8191, 4095), (512, 768)):
        inputs = values(rows, width), values(rows, width)

        def eager(gate: Tensor, up: Tensor) -> Tensor:
            return F.gelu(gate, approximate="tanh") * up

        ways: Ways = {
            "ours": lambda gate, up: kernels.geglu(gate, up, "tanh"),
            "ours, by erf": kernels.geglu,
            "eager": eager,
            "eager, by erf": lambda gate, up: F.gelu(gate) * up,
        }
        if (theirs := liger("geglu", "LigerGELUMulFunction")) is not None:
            ways["Liger"] = theirs.apply
        # Forward two in and one out; backward the gradient and both in, two gradients out.
        yield Case(f"GeGLU {rows}×{width}", inputs, ways, moved_bytes=8 * inputs[0].nbytes)


def rotary(largest: int) -> Iterator[Case]:
    """Queries and keys as projections leave them: tokens before heads in memory, heads before tokens in their shape."""
    for tokens, heads, key_heads, width in sizes(
        largest, (8192, 32, 32, 128), (8192, 32, 8, 128), (8191, 24, 24, 96), (512, 12, 12, 64)
    ):
        inputs = values(1, tokens, heads, width), values(1, tokens, key_heads, width)
        angles = torch.randn(1, tokens, width // 2, device=DEVICE).repeat(1, 1, 2)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()

        def eager(q: Tensor, k: Tensor, cos: Tensor = cos, sin: Tensor = sin) -> tuple[Tensor, Tensor]:
            return tuple(_rotated(x.transpose(1, 2), cos[:, None], sin[:, None]) for x in (q, k))  # type: ignore[return-value]

        def ours(q: Tensor, k: Tensor, cos: Tensor = cos, sin: Tensor = sin) -> tuple[Tensor, Tensor]:
            return kernels.rotary(q.transpose(1, 2), k.transpose(1, 2), cos[:, None], sin[:, None])

        ways: Ways = {"ours": ours, "eager": eager}
        if (theirs := liger("rope", "LigerRopeFunction")) is not None:
            # It turns queries and keys, and their gradients, where they lie: lengths stay, so turns can be timed.
            ways["Liger, in place"] = lambda q, k, cos=cos, sin=sin, theirs=theirs: theirs.apply(
                q.transpose(1, 2), k.transpose(1, 2), cos, sin
            )
        # Both in and out, forward and backward; cos and sin in, twice.
        moved = 4 * (inputs[0].nbytes + inputs[1].nbytes) + 4 * cos.nbytes
        yield Case(f"rotary {tokens}×({heads}+{key_heads})×{width}", inputs, ways, moved_bytes=moved)


def softmax(largest: int) -> Iterator[Case]:
    """Attention that is written out: scores scaled and masked by causality, or neither, as Liger's softmax has it."""
    for heads, tokens in sizes(largest, (32, 4096), (64, 1024), (31, 2047), (16, 256)):
        scores, scale = values(1, heads, tokens, tokens), 0.125
        earlier = torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE).tril()

        def eager(x: Tensor, earlier: Tensor = earlier, scale: float = scale) -> Tensor:
            return F.softmax((x * scale).masked_fill(~earlier, float("-inf")), dim=-1, dtype=torch.float32).to(x.dtype)

        def plain(x: Tensor, earlier: Tensor = earlier, scale: float = scale) -> Tensor:
            return F.softmax((x * scale).masked_fill(~earlier, float("-inf")), dim=-1)

        ways: Ways = {
            "ours": lambda x, earlier=earlier, scale=scale: kernels.softmax(x, earlier, scale),
            "ours, causal": lambda x, scale=scale: kernels.softmax(x, scale=scale, causal=True),
            "eager": eager,
            "eager, in bfloat16": plain,
        }
        # Scores and the gradient of shares in, shares in and out, the gradient of scores out; and the mask.
        moved = 5 * scores.nbytes + earlier.nbytes
        yield Case(f"softmax {heads}×{tokens}×{tokens}, masked", (scores,), ways, moved_bytes=moved)
        ways = {"ours": kernels.softmax, "eager": partial(F.softmax, dim=-1)}
        if (theirs := liger("softmax", "LigerSoftmaxFunction")) is not None:
            ways["Liger"] = theirs.apply
        yield Case(f"softmax {heads}×{tokens}×{tokens}", (scores,), ways, moved_bytes=5 * scores.nbytes)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
