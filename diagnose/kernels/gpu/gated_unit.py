"""SwiGLU element by element: two reads and one write forward, three reads and two writes backward."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, load, on_device_of, row_start, store, warps
from diagnose.kernels.tuning import Config, bucket, choose

CANDIDATES = tuple(
    Config(block=block, threads=threads)
    for block, threads in ((1024, 128), (2048, 128), (2048, 256), (4096, 256), (4096, 512), (8192, 512))
)
"""From 8 elements a thread, which are one load of 16 bytes in bfloat16, to 16, on wavefronts of 32 and of 64."""


@triton.jit
def forward_kernel(
    gate, up, out, gate_stride, up_stride, out_stride, columns, blocks, DTYPE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) // blocks
    # In 64 bits: contiguous inputs come as a single row, which may have more than 2³¹ elements.
    first = row_start(tl.program_id(0) % blocks, BLOCK)
    gate += row_start(row, gate_stride) + first
    up += row_start(row, up_stride) + first
    out += row_start(row, out_stride) + first
    # Whole blocks without a mask: with one, an odd number of columns makes loads of single elements of them all.
    if first + BLOCK <= columns:
        _activate(gate, up, out, BLOCK, False, DTYPE, BLOCK)
    else:
        _activate(gate, up, out, (columns - first).to(tl.int32), True, DTYPE, BLOCK)


@triton.jit
def _activate(gate, up, out, count, MASKED: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    g = load(gate, count, MASKED, BLOCK).to(DTYPE)
    u = load(up, count, MASKED, BLOCK).to(DTYPE)
    store(out, g / (1.0 + tl.exp(-g)) * u, count, MASKED, BLOCK)


@triton.jit
def backward_kernel(
    by_out, gate, up, by_gate, by_up, by_out_stride, gate_stride, up_stride, gradient_stride,
    columns, blocks, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks
    first = row_start(tl.program_id(0) % blocks, BLOCK)
    by_out += row_start(row, by_out_stride) + first
    gate += row_start(row, gate_stride) + first
    up += row_start(row, up_stride) + first
    by_gate += row_start(row, gradient_stride) + first
    by_up += row_start(row, gradient_stride) + first
    if first + BLOCK <= columns:
        _differentiate(by_out, gate, up, by_gate, by_up, BLOCK, False, DTYPE, BLOCK)
    else:
        _differentiate(by_out, gate, up, by_gate, by_up, (columns - first).to(tl.int32), True, DTYPE, BLOCK)


@triton.jit
def _differentiate(
    by_out, gate, up, by_gate, by_up, count, MASKED: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr
):
    given = load(by_out, count, MASKED, BLOCK).to(DTYPE)
    g = load(gate, count, MASKED, BLOCK).to(DTYPE)
    u = load(up, count, MASKED, BLOCK).to(DTYPE)
    share = 1.0 / (1.0 + tl.exp(-g))
    store(by_gate, given * u * share * (1.0 + g * (1.0 - share)), count, MASKED, BLOCK)
    store(by_up, given * g * share, count, MASKED, BLOCK)


def activate(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, dtype: torch.dtype) -> None:
    """Write silu(gate) · up of rows (rows, columns), whose last strides are 1."""
    rows, columns = gate.shape

    def launch(config: Config) -> None:
        blocks = triton.cdiv(columns, config.block)
        forward_kernel[(rows * blocks,)](
            gate, up, out, *_strides(rows, gate, up), columns, blocks, COMPUTE[dtype], config.block,
            num_warps=warps(config.threads, gate.device),
        )  # fmt: skip

    with on_device_of(gate):
        launch(choose("swiglu", _size(rows, columns), gate, CANDIDATES, launch))


def gradients(
    by_out: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    by_gate: torch.Tensor,
    by_up: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Write the gradients by gate and up."""
    rows, columns = gate.shape

    def launch(config: Config) -> None:
        blocks = triton.cdiv(columns, config.block)
        backward_kernel[(rows * blocks,)](
            by_out, gate, up, by_gate, by_up, *_strides(rows, by_out, gate, up), columns, blocks,
            COMPUTE[dtype], config.block, num_warps=warps(config.threads, gate.device),
        )  # fmt: skip

    with on_device_of(gate):
        launch(choose("swiglu backward", _size(rows, columns), gate, CANDIDATES, launch))


def _strides(rows: int, *inputs: torch.Tensor) -> list[int]:
    """Of the rows of inputs and of an output; zeros for a single row, which Triton knows to keep addresses aligned."""
    return [tensor.stride(0) if rows > 1 else 0 for tensor in inputs] + [inputs[0].shape[1] if rows > 1 else 0]


def _size(rows: int, columns: int) -> tuple[int, int]:
    """What the choice depends on: of a single row, which is all there is, only about how long it is."""
    return (rows, bucket(columns)) if rows == 1 else (bucket(rows), columns)
