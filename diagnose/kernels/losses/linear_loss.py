"""Cross entropy of a linear layer's output, without ever holding all logits.

Of N rows, H features and V classes, eager code holds N × V logits several times over. Here a chunk of them exists at a
time. Two ways to the gradients, for the caller to choose between:

- with the loss (the default where the loss is a mean or a sum): rows in chunks, each of which leaves its part of the
  gradients behind; as many matrix products as eager code has (6·N·H·V operations). What is held is the gradients and
  the logits of one chunk, and the backward pass hands the gradients on without a copy. Each product is summed in
  float32; over a few chunks the weight's gradient is summed in its own dtype, over many in float32.
- again in the backward pass (`recompute=True`; always where each row's loss is wanted, and for float16, whose range
  needs the scale of the loss): the vocabulary in chunks, logits computed a second time (8·N·H·V). Least memory: nothing
  of the weight's size but its gradient, which is rounded once.

Sums are kept in float32 (float64 for float64); the loss is of that dtype. Logits have the dtype of the features, as
`torch.nn.functional.linear` gives them. Nothing waits for the device. Second derivatives are refused.
"""

from functools import cache
from typing import Any

import torch

from diagnose.kernels.backend import cast_for_autocast, compute_dtype, without_autocast
from diagnose.kernels.direct import no_second_derivatives, refuse_second_derivatives, refuse_tangents
from diagnose.kernels.fallbacks import is_distributed, left_to_torch
from diagnose.kernels.losses.gradient_reuse import graph_is_kept, scale_gradient
from diagnose.kernels.losses.row_loss import (
    LossTerms,
    Reduction,
    check_arguments,
    losses_in_torch,
    losses_of,
    reduce_losses,
    rows_kept,
    write_gradients,
)

FEWEST_ROWS = 1024
"""Rows of a chunk below which its matrix products starve a device: the weight's gradient is read and written for each
chunk, which takes a third of the time of its product at this number of rows and less at more."""

FILLING_ELEMENTS = 1 << 22
"""Elements of the features' gradient in a chunk that occupy a device of 132 processors, in tiles of 128 × 256."""

MOST_BYTES = 1 << 29
"""Logits of a chunk, unless its rows are the fewest."""

FEW_CHUNKS = 8
"""Parts of the weight's gradient that may be summed in its own dtype. In bfloat16 the rounding of 8 sums makes the
error 1.7 times that of a single product of rounded logits' gradients, the rounding of 16 sums 2.2 times."""

MULTIPLE = 128
"""Chunks are multiples of this, so that products are of sizes with fast kernels. So are the rows of logits in memory:
with a vocabulary of 50257 and none of that, the products of an H200 take 1.6 times as long."""

ALIGNED = 8
"""Classes that a vocabulary is a multiple of; where it is not, its rest is multiplied by itself. Of 50257 classes and
768 features an H200 computes 139 TFLOP/s at once, and 534 cut so."""

BLOCK_ELEMENTS = 1 << 26
"""Elements that are worked on at once where a whole is too much: 128 MiB in bfloat16."""

INSTEAD = "cross_entropy(linear(hidden, weight), target)"
"""What has second derivatives."""

SHARDED = (
    "the layer's weight is a DTensor and the features are not: a layer that `fully_shard` was given by itself has its "
    "weight whole only in its own forward; leave it to the `fully_shard` of the module around it"
)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Reduction = "mean",
    recompute: bool = False,
    chunk_rows: int | None = None,
) -> torch.Tensor:
    """`cross_entropy(linear(hidden, weight, bias), target)` of hidden (..., H), weight (V, H) and targets (...).

    `z_loss` adds `z_loss · logsumexp²` to each row's loss. The mean is over the rows that are not ignored.
    """
    check_arguments(hidden, target, label_smoothing, z_loss, reduction)
    if is_distributed(weight) and not is_distributed(hidden):
        raise TypeError(SHARDED)
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(f"weight {tuple(weight.shape)} does not multiply features {tuple(hidden.shape)}")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunks have at least one row, not {chunk_rows}")
    rows = cast_for_autocast(hidden).reshape(-1, hidden.shape[-1])
    weight = cast_for_autocast(weight)
    bias = None if bias is None else cast_for_autocast(bias)
    if weight.dtype != rows.dtype or (bias is not None and bias.dtype != rows.dtype):
        raise TypeError(f"features are {rows.dtype}, the layer is {weight.dtype}: they must be of one dtype")
    labels = target.reshape(-1)
    terms = (ignore_index, label_smoothing, z_loss)
    if left_to_torch(rows, weight, bias):
        logits = torch.nn.functional.linear(rows, weight, bias)
        losses, _ = losses_in_torch(logits.to(compute_dtype(rows.dtype)), labels, LossTerms(*terms))
        losses = losses.reshape(target.shape) if reduction == "none" else losses
        return reduce_losses(losses, labels, ignore_index, reduction)
    needs = [torch.is_grad_enabled() and part is not None and part.requires_grad for part in (rows, weight, bias)]
    if recompute or reduction == "none" or rows.dtype == torch.float16 or not any(needs):
        losses, _ = _losses(rows, weight, bias, labels, *terms, chunk_rows)
        losses = losses.reshape(target.shape) if reduction == "none" else losses
        return reduce_losses(losses, labels, ignore_index, reduction)
    loss: torch.Tensor = _loss_with_gradients(
        rows, weight, bias, labels, *terms, reduction == "mean", chunk_rows, *needs
    )[0]
    return loss


@torch.library.custom_op("diagnose::linear_cross_entropy_with_gradients", mutates_args=())
def _loss_with_gradients(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    mean: bool,
    chunk_rows: int | None,
    needs_hidden: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss and its gradients by hidden, weight and bias; those not needed are empty."""
    terms = LossTerms(ignore_index, label_smoothing, z_loss)
    rows, (vocabulary, width) = hidden.shape[0], weight.shape
    dtype = compute_dtype(hidden.dtype)
    with without_autocast(hidden):
        losses = torch.empty(rows, dtype=dtype, device=hidden.device)
        by_hidden = hidden.new_empty((rows, width) if needs_hidden else (0,))
        by_bias = torch.zeros(vocabulary if needs_bias else 0, dtype=dtype, device=hidden.device)
        scale = torch.ones((), dtype=dtype, device=hidden.device)
        if mean:
            scale = scale / rows_kept(target, ignore_index, dtype)
        chunks = _chunks(rows, chunk_rows or _rows_at_once(rows, weight))
        summed = weight.dtype if len(chunks) <= FEW_CHUNKS else dtype
        new_sum = torch.empty if chunks else torch.zeros
        by_weight = new_sum((vocabulary, width) if needs_weight else (0,), dtype=summed, device=hidden.device)
        memory = _memory_for_logits(chunks, hidden, weight)
        parts = _aligned_parts(vocabulary)
        for some in chunks:
            logits = _linear(hidden[some], weight, bias, memory)
            losses[some], logsumexps = losses_of(logits, target[some], terms)
            # The chunk's logits are this function's own: their gradient takes their place.
            write_gradients(logits, target[some], logsumexps, scale.expand(len(logits)), terms, logits)
            for part in parts:
                if needs_hidden:
                    _add_product(by_hidden[some], logits[:, part], weight[part], first=part is parts[0])
                if needs_weight:
                    _add_product(by_weight[part], logits[:, part].t(), hidden[some], first=some.start == 0)
            if needs_bias:
                by_bias += logits.sum(0, dtype=dtype)
        if chunks:
            del memory, logits  # before the sums are rounded, which takes memory too
        loss = reduce_losses(losses, target, ignore_index, "mean" if mean else "sum")
        return loss, by_hidden, by_weight.to(weight.dtype), by_bias.to(weight.dtype)


@_loss_with_gradients.register_fake
def _(
    hidden: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    loss = hidden.new_empty((), dtype=compute_dtype(hidden.dtype))
    return loss, *_shapes_of_gradients(hidden, weight, *rest[-3:])


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.needs = inputs[-3:]
    ctx.arguments = len(inputs)
    ctx.save_for_backward(*output[1:])


def _scale_gradients(ctx: Any, by_loss: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(no_second_derivatives(INSTEAD))
    given: list[torch.Tensor | None] = [None] * ctx.arguments
    if by_loss is not None:
        for place, (needed, gradient) in enumerate(zip(ctx.needs, ctx.saved_tensors, strict=True)):
            given[place] = scale_gradient(gradient, by_loss, overwrite=not graph_is_kept()) if needed else None
    return tuple(given)


_loss_with_gradients.register_autograd(_scale_gradients, setup_context=_keep_gradients)


@torch.library.custom_op("diagnose::linear_cross_entropy", mutates_args=())
def _losses(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    chunk_rows: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the log-sum-exp of each row."""
    terms = LossTerms(ignore_index, label_smoothing, z_loss)
    losses = torch.empty(hidden.shape[0], dtype=compute_dtype(hidden.dtype), device=hidden.device)
    logsumexps = torch.empty_like(losses)
    with without_autocast(hidden):
        chunks = _chunks(len(hidden), chunk_rows or _rows_at_once(len(hidden), weight))
        memory = _memory_for_logits(chunks, hidden, weight)
        for some in chunks:
            logits = _linear(hidden[some], weight, bias, memory)
            losses[some], logsumexps[some] = losses_of(logits, target[some], terms)
    return losses, logsumexps


@_losses.register_fake
def _(hidden: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    losses = hidden.new_empty(hidden.shape[0], dtype=compute_dtype(hidden.dtype))
    return losses, torch.empty_like(losses)


@torch.library.custom_op("diagnose::linear_cross_entropy_backward", mutates_args=())
def _gradients(
    by_losses: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    logsumexps: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    needs_hidden: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients by hidden, weight and bias, from logits computed again; those not needed are empty."""
    terms = LossTerms(ignore_index, label_smoothing, z_loss)
    rows, (vocabulary, width) = hidden.shape[0], weight.shape
    dtype = logsumexps.dtype
    by_hidden = torch.zeros((rows, width) if needs_hidden else (0,), dtype=dtype, device=hidden.device)
    by_weight = weight.new_empty((vocabulary, width) if needs_weight else (0,))
    by_bias = weight.new_empty(vocabulary if needs_bias else 0)
    with without_autocast(hidden):
        chunks = _chunks(vocabulary, _columns_at_once(rows))
        memory = _memory_for_logits([slice(0, rows)], hidden, weight[: _columns_at_once(rows)])
        for some in chunks:
            logits = _linear(hidden, weight[some], None if bias is None else bias[some], memory)
            write_gradients(logits, target, logsumexps, by_losses, terms, logits, some.start, vocabulary)
            if needs_hidden:
                _add_product(by_hidden, logits, weight[some], first=some.start == 0)
            if needs_weight:
                torch.mm(logits.t(), hidden, out=by_weight[some])
            if needs_bias:
                by_bias[some] = logits.sum(0, dtype=dtype).to(weight.dtype)
        if chunks:
            del memory, logits  # before the sum is rounded, which takes memory too
    return by_hidden.to(hidden.dtype), by_weight, by_bias


refuse_second_derivatives(_gradients, INSTEAD)


@_gradients.register_fake
def _(
    _: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _shapes_of_gradients(hidden, weight, *rest[-3:])


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    hidden, weight, bias, target, *terms, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.terms = terms
    ctx.save_for_backward(hidden, weight, bias, target, output[1])


def _compute_again(ctx: Any, by_losses: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    nothing = (None,) * (1 + len(ctx.terms) + 1)
    if by_losses is None:
        return (None, None, None, *nothing)
    refuse_tangents((by_losses,))
    needs = ctx.needs_input_grad[:3]
    found = _gradients(by_losses, *ctx.saved_tensors, *ctx.terms, *needs)
    return (*(gradient if needed else None for needed, gradient in zip(needs, found, strict=True)), *nothing)


_losses.register_autograd(_compute_again, setup_context=_keep_inputs)


def _shapes_of_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, needs_hidden: bool, needs_weight: bool, needs_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        hidden.new_empty(hidden.shape if needs_hidden else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,)),
        weight.new_empty(weight.shape[:1] if needs_bias else (0,)),
    )


def _memory_for_logits(chunks: list[slice], hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Allocate the buffer that holds the logits of one chunk of rows after the other."""
    rows = max((some.stop - some.start for some in chunks), default=0)
    memory = hidden.new_empty(rows, -(-len(weight) // MULTIPLE) * MULTIPLE)
    # torch's products of bfloat16 on the CPU read some way on behind a row, and multiply by zero what they find there.
    memory[:, len(weight) :] = 0
    return memory


def _linear(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, memory: torch.Tensor
) -> torch.Tensor:
    """Logits, in memory whose rows may be longer."""
    logits = memory[: len(hidden), : len(weight)]
    for part in _aligned_parts(len(weight)):
        if bias is None:
            torch.mm(hidden, weight[part].t(), out=logits[:, part])
        else:
            torch.addmm(bias[part], hidden, weight[part].t(), out=logits[:, part])
    return logits


def _aligned_parts(vocabulary: int) -> list[slice]:
    """The classes as products are fast on: the rest first, so that a sum over all is rounded but for that once."""
    aligned = vocabulary // MULTIPLE * MULTIPLE
    if vocabulary % ALIGNED == 0 or aligned == 0:
        return [slice(0, vocabulary)]
    return [slice(aligned, vocabulary), slice(0, aligned)]


def _rows_at_once(rows: int, weight: torch.Tensor) -> int:
    """Rows of a chunk: as many as fill the device, and make few chunks, within the bytes that its logits may take.

    A quarter of all rows at most, and even, so that none is a small rest.
    """
    vocabulary, width = weight.shape
    wanted = max(min(FILLING_ELEMENTS // max(1, width), rows // 4), -(-rows // FEW_CHUNKS))
    most = max(FEWEST_ROWS, min(wanted, MOST_BYTES // max(1, vocabulary * weight.element_size())))
    count = max(1, -(-rows // most))
    return -(-rows // (count * MULTIPLE)) * MULTIPLE


def held_bytes(rows: int, weight: torch.Tensor) -> int:
    """Return the bytes that the loss of so many rows holds at once by default, besides its gradients."""
    at_once = min(rows, _rows_at_once(rows, weight))
    wide = compute_dtype(weight.dtype).itemsize if len(_chunks(rows, at_once)) > FEW_CHUNKS else 0
    held: int = at_once * weight.shape[0] * weight.dtype.itemsize + weight.numel() * wide
    return held


def _columns_at_once(rows: int) -> int:
    return max(1024, BLOCK_ELEMENTS // max(1, rows) // MULTIPLE * MULTIPLE)


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, total)) for first in range(0, total, size)] if size > 0 else []


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    """Add a matrix product to a sum, which may be kept in a wider dtype than its factors; the first one begins it."""
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, beta=0 if first else 1, out=total)  # with 0, what was there is not read
    elif _adds_wide_products(left.device, left.dtype):
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, beta=0 if first else 1, out=total)
    else:
        # The product is rounded once to the factors' dtype; in blocks, for it is as large as the sum.
        for some in _chunks(len(total), max(1, BLOCK_ELEMENTS // max(1, total.shape[1]))):
            product = torch.mm(left[some], right)
            if first:
                total[some] = product
            else:
                total[some] += product


@cache
def _adds_wide_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch can add a half-precision matmul into a float32 tensor on this device in one call."""
    if device.type != "cuda":
        return False
    factor = torch.zeros(16, 16, dtype=dtype, device=device)
    total = torch.zeros(16, 16, dtype=torch.float32, device=device)
    try:
        torch.ops.aten.addmm.dtype_out(total, factor, factor, torch.float32, out=total)
    except (AttributeError, RuntimeError):  # no such overload, or none for this device and dtype
        return False
    return True
