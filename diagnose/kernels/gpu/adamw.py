"""AdamW over many tensors in one launch, whose addresses come in a table."""

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.gpu.launch import cdiv, load, on_device_of, store, warps

BLOCK = 2048
THREADS = 256
COLUMNS = 9
"""Of the table: the addresses of param, grad, both moments, largest moment, master and step; elements; first block."""

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

_captured: list[tuple[Tensor, ...]] = []
"""What replays of a captured graph will read again."""


@triton.jit
def adamw_kernel(
    table, tensor_of_block, lr, lr_on_device, rest1, log_beta1, beta2, rest2, log_beta2, weight_decay, eps,
    grad_scale, found_inf, PARAM: tl.constexpr, GRAD: tl.constexpr, MASTER: tl.constexpr, LARGEST: tl.constexpr,
    MAXIMIZE: tl.constexpr, ALIGNED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = table + tl.load(tensor_of_block + tl.program_id(0)) * COLUMNS
    # In 64 bits, as the table is.
    first = (tl.program_id(0) - tl.load(entry + 8)) * BLOCK
    count = tl.load(entry + 7) - first
    wanted = True
    if found_inf is not None:
        wanted = tl.load(found_inf) == 0.0
    if lr_on_device is not None:
        lr = tl.load(lr_on_device).to(tl.float32)
    scale = 1.0
    if grad_scale is not None:
        scale = 1.0 / tl.load(grad_scale)
    step = tl.load(tl.load(entry + 6).to(tl.pointer_type(tl.float32)))
    correction1 = share_reached(step * log_beta1)
    correction2 = tl.sqrt(share_reached(step * log_beta2))
    param = address(entry, PARAM, ALIGNED) + first
    grad = address(entry + 1, GRAD, ALIGNED) + first
    mean = address(entry + 2, tl.float32, ALIGNED) + first
    square = address(entry + 3, tl.float32, ALIGNED) + first
    largest = address(entry + 4, tl.float32, ALIGNED) + first
    master = address(entry + 5, tl.float32, ALIGNED) + first
    if wanted:
        # Whole blocks without a mask: the number of elements is not known to be a multiple of 16.
        if count >= BLOCK:
            update_block(
                param, grad, mean, square, largest, master, BLOCK, lr, rest1, correction1, beta2, rest2, correction2,
                weight_decay, eps, scale, MASTER, LARGEST, MAXIMIZE, False, BLOCK,
            )  # fmt: skip
        else:
            update_block(
                param, grad, mean, square, largest, master, count, lr, rest1, correction1, beta2, rest2, correction2,
                weight_decay, eps, scale, MASTER, LARGEST, MAXIMIZE, True, BLOCK,
            )  # fmt: skip


@triton.jit
def share_reached(x):
    """1 − exp(x) of x ≤ 0, by the series where a difference would lose the digits that matter: 1 − 0.999 above all."""
    series = 1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0 * (1.0 + x / 8.0)))
    series = -x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * series)))
    return tl.where(x > -0.5, series, 1.0 - tl.exp(x))


@triton.jit
def address(entry, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The tensor that an entry of the table points to, and at what multiple of bytes it begins."""
    return tl.multiple_of(tl.load(entry).to(tl.pointer_type(DTYPE)), ALIGNED)


@triton.jit
def update_block(
    param, grad, mean, square, largest, master, count, lr, rest1, correction1, beta2, rest2, correction2,
    weight_decay, eps, scale, MASTER: tl.constexpr, LARGEST: tl.constexpr, MAXIMIZE: tl.constexpr,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    g = load(grad, count, MASKED, BLOCK).to(tl.float32) * scale
    if MAXIMIZE:
        g = -g
    m = load(mean, count, MASKED, BLOCK)
    v = load(square, count, MASKED, BLOCK)
    w = load(master if MASTER else param, count, MASKED, BLOCK).to(tl.float32)
    m += rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    store(mean, m, count, MASKED, BLOCK)
    store(square, v, count, MASKED, BLOCK)
    if LARGEST:
        v = tl.maximum(v, load(largest, count, MASKED, BLOCK))
        store(largest, v, count, MASKED, BLOCK)
    w -= lr * weight_decay * w
    w -= lr / correction1 * m / (tl.sqrt(v) / correction2 + eps)
    if MASTER:
        store(master, w, count, MASKED, BLOCK)
    store(param, w, count, MASKED, BLOCK)


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    masters: list[Tensor],
    steps: list[Tensor],
    lr: float,
    lr_on_device: Tensor | None,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """Update parameters of one dtype on one device; moments, masters and steps are in float32."""
    lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs or exp_avgs, masters or exp_avgs, steps)
    rows, counts, first = [], [], 0
    for tensors in zip(*lists, strict=True):
        if count := tensors[0].numel():
            rows.append((*(tensor.data_ptr() for tensor in tensors), count, first))
            counts.append(cdiv(count, BLOCK))
            first += counts[-1]
    if not rows:
        return
    # Parts of a flat tensor may begin anywhere.
    aligned = all(place % 16 == 0 for row in rows for place in row[:6])
    device = params[0].device
    with on_device_of(params[0]):
        table, tensor_of_block = _table(tuple(rows), device), _tensor_of_block(tuple(counts), device)
        if _capturing(device):
            _captured.append((table, tensor_of_block))
        adamw_kernel[(first,)](
            table, tensor_of_block, lr, lr_on_device, 1.0 - beta1, math.log(beta1) if beta1 else -math.inf,
            beta2, 1.0 - beta2, math.log(beta2) if beta2 else -math.inf, weight_decay, eps, grad_scale, found_inf,
            DTYPES[params[0].dtype], DTYPES[grads[0].dtype], bool(masters), bool(max_exp_avg_sqs), maximize,
            16 if aligned else 2, COLUMNS, BLOCK, num_warps=warps(THREADS, device),
        )  # fmt: skip


def _table(rows: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    if device.type != "cuda":
        return torch.tensor(rows, device=device)
    if not _capturing(device):
        return _table_on_device(rows, device, torch.cuda.current_stream(device).cuda_stream)
    pinned = torch.tensor(rows).pin_memory()
    _captured.append((pinned,))
    return pinned.to(device, non_blocking=True)


@lru_cache(maxsize=64)
def _table_on_device(rows: tuple[tuple[int, ...], ...], device: torch.device, _: Any) -> Tensor:
    """Gradients mostly come to lie where they lay in the step before: then nothing is copied. Copies of a stream are
    for that stream alone."""
    return torch.tensor(rows).pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=64)
def _tensor_of_block(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the index of the tensor that each program works on; made once for all steps."""
    return torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), torch.tensor(counts)).to(device)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
