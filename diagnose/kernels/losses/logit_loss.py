"""Cross entropy of logits over a large vocabulary: one read forward, one read and one write backward.

torch's writes the log-probabilities of all logits forward and reads them again backward, and code that widens the
logits to float32 first moves and holds twice as much once more. Here nothing but one number a row is kept between the
passes, and the loss is summed in float32 (float64 for float64) whatever the dtype of the logits.
"""

from typing import Any

import torch

from diagnose.kernels.backend import compute_dtype
from diagnose.kernels.direct import differentiable, direct
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.layout import buffer_like
from diagnose.kernels.losses.row_loss import (
    LossTerms,
    Reduction,
    check_arguments,
    losses_in_torch,
    losses_of,
    reduce_losses,
    write_gradients,
)


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Reduction = "mean",
) -> torch.Tensor:
    """Cross entropy of logits (..., V) and targets (...): classes come last, in logits of any rank.

    `z_loss` adds `z_loss · logsumexp²` to each row's loss. The mean is over the rows that are not ignored.
    """
    check_arguments(logits, target, label_smoothing, z_loss, reduction)
    rows, labels = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    if left_to_torch(rows):
        terms = LossTerms(ignore_index, label_smoothing, z_loss)
        losses, _ = losses_in_torch(rows.to(compute_dtype(rows.dtype)), labels, terms)
    else:
        losses, _ = _differentiable_losses(rows, labels, ignore_index, label_smoothing, z_loss)
    losses = losses.reshape(target.shape) if reduction == "none" else losses
    return reduce_losses(losses, labels, ignore_index, reduction)


def _losses(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the log-sum-exp of each row."""
    return losses_of(logits, target, LossTerms(ignore_index, label_smoothing, z_loss))


_cross_entropy = torch.library.custom_op("diagnose::cross_entropy", _losses, mutates_args=())


@_cross_entropy.register_fake
def _(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    losses = logits.new_empty(logits.shape[0], dtype=compute_dtype(logits.dtype))
    return losses, torch.empty_like(losses)


def _differentiate(
    by_losses: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    logsumexps: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> torch.Tensor:
    """The gradient by the logits, in memory of its own."""
    by_logits = buffer_like(logits)
    terms = LossTerms(ignore_index, label_smoothing, z_loss)
    write_gradients(logits, target, logsumexps, by_losses, terms, by_logits)
    return by_logits


_cross_entropy_backward = torch.library.custom_op("diagnose::cross_entropy_backward", _differentiate, mutates_args=())
_gradients = direct(_cross_entropy_backward, _differentiate, "torch.nn.functional.cross_entropy(logits, …)")


@_cross_entropy_backward.register_fake
def _(_: torch.Tensor, logits: torch.Tensor, *__: Any) -> torch.Tensor:
    return logits.new_empty(logits.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, target, *terms = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.terms = terms
    ctx.save_for_backward(logits, target, output[1])


def _backward(ctx: Any, by_losses: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    by_logits = None if by_losses is None else _gradients(by_losses, *ctx.saved_tensors, *ctx.terms)
    return by_logits, None, *(None for _ in ctx.terms)


_cross_entropy.register_autograd(_backward, setup_context=_keep)
_differentiable_losses = differentiable(_cross_entropy, _losses, _keep, _backward)
