"""GeGLU element by element: two reads and one write forward, three reads and two writes backward."""

import torch
import triton
import triton.language as tl

from diagnose.kernels.gpu.launch import COMPUTE, on_device_of, row_start, warps

BLOCK = 1024
THREADS = 128


@triton.jit
def normal_share(x, BY_TANH: tl.constexpr):
    """Φ(x), by which gelu multiplies x: 0.5·(1 + tanh(y)) is the logistic function of 2y."""
    if BY_TANH:
        share = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return share


@triton.jit
def slope_of_share(x, share, BY_TANH: tl.constexpr):
    """The derivative of `normal_share`."""
    if BY_TANH:
        slope = share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    else:
        slope = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return slope


@triton.jit
def forward_kernel(
    gate, up, out, gate_stride, up_stride, columns, blocks,
    BY_TANH: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks
    # In 64 bits: contiguous inputs come as a single row, which may have more than 2³¹ elements.
    column = row_start(tl.program_id(0) % blocks, BLOCK) + tl.arange(0, BLOCK)
    inside = column < columns
    g = tl.load(gate + row_start(row, gate_stride) + column, mask=inside, other=0.0).to(DTYPE)
    u = tl.load(up + row_start(row, up_stride) + column, mask=inside, other=0.0).to(DTYPE)
    value = g * normal_share(g, BY_TANH) * u
    tl.store(out + row_start(row, columns) + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    by_out, gate, up, by_gate, by_up, by_out_stride, gate_stride, up_stride, columns, blocks,
    BY_TANH: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks
    column = row_start(tl.program_id(0) % blocks, BLOCK) + tl.arange(0, BLOCK)
    inside = column < columns
    given = tl.load(by_out + row_start(row, by_out_stride) + column, mask=inside, other=0.0).to(DTYPE)
    g = tl.load(gate + row_start(row, gate_stride) + column, mask=inside, other=0.0).to(DTYPE)
    u = tl.load(up + row_start(row, up_stride) + column, mask=inside, other=0.0).to(DTYPE)
    share = normal_share(g, BY_TANH)
    slope = slope_of_share(g, share, BY_TANH)
    # Far out the slope is 0 and its factor may be inf.
    gradient = given * u * (share + tl.where(slope == 0.0, 0.0, g * slope))
    place = row_start(row, columns) + column
    tl.store(by_gate + place, gradient.to(by_gate.dtype.element_ty), mask=inside)
    tl.store(by_up + place, (given * g * share).to(by_up.dtype.element_ty), mask=inside)


def activate(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, dtype: torch.dtype, by_tanh: bool) -> None:
    """Write gelu(gate) · up of rows (rows, columns), whose last strides are 1."""
    rows, columns = gate.shape
    blocks = triton.cdiv(columns, BLOCK)
    with on_device_of(gate):
        forward_kernel[(rows * blocks,)](
            gate, up, out, gate.stride(0), up.stride(0), columns, blocks, by_tanh, COMPUTE[dtype], BLOCK,
            num_warps=warps(THREADS, gate.device),
        )  # fmt: skip


def gradients(
    by_out: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    by_gate: torch.Tensor,
    by_up: torch.Tensor,
    dtype: torch.dtype,
    by_tanh: bool,
) -> None:
    """Write the gradients by gate and up."""
    rows, columns = gate.shape
    blocks = triton.cdiv(columns, BLOCK)
    with on_device_of(gate):
        backward_kernel[(rows * blocks,)](
            by_out, gate, up, by_gate, by_up, by_out.stride(0), gate.stride(0), up.stride(0), columns, blocks,
            by_tanh, COMPUTE[dtype], BLOCK, num_warps=warps(THREADS, gate.device),
        )  # fmt: skip
