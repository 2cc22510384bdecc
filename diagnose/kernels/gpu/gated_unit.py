"""SwiGLU and GeGLU, element by element: two reads and one write forward, three reads and two writes backward."""

from typing import Literal

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, cdiv, load, on_device_of, row_start, start, store
from diagnose.kernels.launch.tuning import Config, bucket, choose
from diagnose.kernels.layout import extent

Activation = Literal["silu", "gelu", "gelu_tanh"]

NAMES: dict[Activation, str] = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu by tanh"}

CANDIDATES = tuple(
    Config(block=block, threads=threads)
    for block, threads in ((1024, 128), (2048, 128), (2048, 256), (4096, 256), (4096, 512), (8192, 512))
)
"""The block sizes to try: from 8 elements a thread, which are one load of 16 bytes in bfloat16, to 16, on wavefronts
of 32 and of 64."""


@triton.jit
def share_of(x, ACTIVATION: tl.constexpr):
    """Return the factor that the activation multiplies x by: the logistic function, or the normal distribution's share
    below x.
    """
    if ACTIVATION == "silu":
        share = 1.0 / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu_tanh":
        # 0.5·(1 + tanh(y)) is the logistic function of 2y.
        share = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return share


@triton.jit
def slope_of_share(x, share, ACTIVATION: tl.constexpr):
    """The derivative of `share_of`."""
    if ACTIVATION == "silu":
        slope = share * (1.0 - share)
    elif ACTIVATION == "gelu_tanh":
        slope = share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    else:
        slope = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return slope


@triton.jit(do_not_specialize=["blocks"])
def forward_kernel(
    gate, up, out, gate_stride, up_stride, out_stride, columns, blocks,
    ACTIVATION: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks
    # In 64 bits: contiguous inputs come as a single row, which may have more than 2³¹ elements.
    first = row_start(tl.program_id(0) % blocks, BLOCK)
    gate += row_start(row, gate_stride) + first
    up += row_start(row, up_stride) + first
    out += row_start(row, out_stride) + first
    # Whole blocks without a mask: with one, an odd number of columns makes loads of single elements of them all.
    if first + BLOCK <= columns:
        _activate(gate, up, out, BLOCK, False, ACTIVATION, DTYPE, BLOCK)
    else:
        _activate(gate, up, out, (columns - first).to(tl.int32), True, ACTIVATION, DTYPE, BLOCK)


@triton.jit
def _activate(
    gate, up, out, count,
    MASKED: tl.constexpr, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    g = load(gate, count, MASKED, BLOCK).to(DTYPE)
    u = load(up, count, MASKED, BLOCK).to(DTYPE)
    store(out, g * share_of(g, ACTIVATION) * u, count, MASKED, BLOCK)


@triton.jit(do_not_specialize=["blocks"])
def backward_kernel(
    by_out, gate, up, by_gate, by_up, by_out_stride, gate_stride, up_stride, gradient_stride,
    columns, blocks, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks
    first = row_start(tl.program_id(0) % blocks, BLOCK)
    by_out += row_start(row, by_out_stride) + first
    gate += row_start(row, gate_stride) + first
    up += row_start(row, up_stride) + first
    by_gate += row_start(row, gradient_stride) + first
    by_up += row_start(row, gradient_stride) + first
    if first + BLOCK <= columns:
        _differentiate(by_out, gate, up, by_gate, by_up, BLOCK, False, ACTIVATION, DTYPE, BLOCK)
    else:
        count = (columns - first).to(tl.int32)
        _differentiate(by_out, gate, up, by_gate, by_up, count, True, ACTIVATION, DTYPE, BLOCK)


@triton.jit
def _differentiate(
    by_out, gate, up, by_gate, by_up, count,
    MASKED: tl.constexpr, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    given = load(by_out, count, MASKED, BLOCK).to(DTYPE)
    g = load(gate, count, MASKED, BLOCK).to(DTYPE)
    u = load(up, count, MASKED, BLOCK).to(DTYPE)
    share = share_of(g, ACTIVATION)
    slope = slope_of_share(g, share, ACTIVATION)
    # Far out the slope is 0 and what it multiplies may be inf.
    store(by_gate, given * u * (share + tl.where(slope == 0.0, 0.0, g * slope)), count, MASKED, BLOCK)
    store(by_up, given * g * share, count, MASKED, BLOCK)


def activate(
    gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, dtype: torch.dtype, activation: Activation = "silu"
) -> None:
    """Write activation(gate) · up of rows (rows, columns), whose last strides are 1, or of contiguous tensors."""
    rows, columns = extent(gate, up)

    def launch(config: Config) -> None:
        blocks = cdiv(columns, config.block)
        start(
            forward_kernel, (rows * blocks,), config.threads,
            (gate, up, out), *_strides(rows, columns, gate, up), columns, blocks,
            activation, COMPUTE[dtype], config.block,
        )  # fmt: skip

    with on_device_of(gate):
        launch(choose(NAMES[activation], _size(rows, columns), gate, CANDIDATES, launch))


def gradients(
    by_out: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    by_gate: torch.Tensor,
    by_up: torch.Tensor,
    dtype: torch.dtype,
    activation: Activation = "silu",
) -> None:
    """Write the gradients by gate and up."""
    rows, columns = extent(by_out, gate, up)

    def launch(config: Config) -> None:
        blocks = cdiv(columns, config.block)
        start(
            backward_kernel, (rows * blocks,), config.threads,
            (by_out, gate, up, by_gate, by_up), *_strides(rows, columns, by_out, gate, up), columns, blocks,
            activation, COMPUTE[dtype], config.block,
        )  # fmt: skip

    with on_device_of(gate):
        launch(choose(f"{NAMES[activation]} backward", _size(rows, columns), gate, CANDIDATES, launch))


def _strides(rows: int, columns: int, *inputs: torch.Tensor) -> list[int]:
    """Row strides of inputs and of an output; zeros for a single row, which Triton knows to keep addresses aligned."""
    return [tensor.stride(0) for tensor in inputs] + [columns] if rows > 1 else [0] * (len(inputs) + 1)


def _size(rows: int, columns: int) -> tuple[int, int]:
    """Return the size that a tuned choice holds for; of a single row, only its length matters."""
    return (rows, bucket(columns)) if rows == 1 else (bucket(rows), columns)
