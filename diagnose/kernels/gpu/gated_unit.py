"""SwiGLU element by element: two reads and one write forward, three reads and two writes backward."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, on_device_of, row_start, warps

BLOCK = 1024
THREADS = 128


@triton.jit
def forward_kernel(
    gate, up, out, gate_stride, up_stride, columns, blocks, DTYPE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) // blocks
    # In 64 bits: contiguous inputs come as a single row, which may have more than 2³¹ elements.
    column = row_start(tl.program_id(0) % blocks, BLOCK) + tl.arange(0, BLOCK)
    inside = column < columns
    g = tl.load(gate + row_start(row, gate_stride) + column, mask=inside, other=0.0).to(DTYPE)
    u = tl.load(up + row_start(row, up_stride) + column, mask=inside, other=0.0).to(DTYPE)
    value = g / (1.0 + tl.exp(-g)) * u
    tl.store(out + row_start(row, columns) + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    by_out, gate, up, by_gate, by_up, by_out_stride, gate_stride, up_stride, columns, blocks,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks
    column = row_start(tl.program_id(0) % blocks, BLOCK) + tl.arange(0, BLOCK)
    inside = column < columns
    given = tl.load(by_out + row_start(row, by_out_stride) + column, mask=inside, other=0.0).to(DTYPE)
    g = tl.load(gate + row_start(row, gate_stride) + column, mask=inside, other=0.0).to(DTYPE)
    u = tl.load(up + row_start(row, up_stride) + column, mask=inside, other=0.0).to(DTYPE)
    share = 1.0 / (1.0 + tl.exp(-g))
    place = row_start(row, columns) + column
    gradient = given * u * share * (1.0 + g * (1.0 - share))
    tl.store(by_gate + place, gradient.to(by_gate.dtype.element_ty), mask=inside)
    tl.store(by_up + place, (given * g * share).to(by_up.dtype.element_ty), mask=inside)


def activate(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, dtype: torch.dtype) -> None:
    """Write silu(gate) · up of rows (rows, columns), whose last strides are 1."""
    rows, columns = gate.shape
    blocks = triton.cdiv(columns, BLOCK)
    with on_device_of(gate):
        forward_kernel[(rows * blocks,)](
            gate, up, out, gate.stride(0), up.stride(0), columns, blocks, COMPUTE[dtype], BLOCK,
            num_warps=warps(THREADS, gate.device),
        )  # fmt: skip


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
    blocks = triton.cdiv(columns, BLOCK)
    with on_device_of(gate):
        backward_kernel[(rows * blocks,)](
            by_out, gate, up, by_gate, by_up, by_out.stride(0), gate.stride(0), up.stride(0), columns, blocks,
            COMPUTE[dtype], BLOCK, num_warps=warps(THREADS, gate.device),
        )  # fmt: skip
