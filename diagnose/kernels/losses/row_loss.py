"""The loss of rows of logits and its gradient: what both cross entropies are made of.

The loss of a row is `lse − (1 − s)·x[y] − s·mean(x) + z·lse²` with the log-sum-exp `lse`, label smoothing `s` and
z-loss `z`. A row whose label is `ignore_index` has the loss 0 and the gradient 0, whatever its logits are; one whose
label is outside the vocabulary has nan for both. Logits are read once for the loss and once for the gradient.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.layout import with_unit_stride

Reduction = Literal["mean", "sum", "none"]

TORCH_ELEMENTS = 1 << 24
"""Logits that plain torch widens at once: 64 MiB in float32."""


@dataclass(frozen=True)
class LossTerms:
    """The terms added to the plain negative log-likelihood, and the rows that are left out."""

    ignore_index: int
    label_smoothing: float
    z_loss: float


def losses_of(logits: torch.Tensor, target: torch.Tensor, terms: LossTerms) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the log-sum-exp of each row of logits (rows, vocabulary), at least in float32."""
    rows = logits.shape[0]
    dtype = compute_dtype(logits.dtype)
    losses = torch.empty(rows, dtype=dtype, device=logits.device)
    logsumexps = torch.empty_like(losses)
    if rows == 0:
        return losses, logsumexps
    logits, target = with_unit_stride(logits), target.contiguous()
    if runs_triton(logits):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import row_loss

        row_loss.losses_of_rows(
            logits, target, losses, logsumexps, terms.ignore_index, terms.label_smoothing, terms.z_loss
        )
        return losses, logsumexps
    for some in _parts(rows, logits.shape[1]):
        losses[some], logsumexps[some] = losses_in_torch(logits[some].to(dtype), target[some], terms)
    return losses, logsumexps


def write_gradients(
    logits: torch.Tensor,
    target: torch.Tensor,
    logsumexps: torch.Tensor,
    scales: torch.Tensor,
    terms: LossTerms,
    gradients: torch.Tensor,
    first_column: int = 0,
    vocabulary: int | None = None,
) -> None:
    """Write the gradient of each row's loss times the row's scale.

    `logits` may be the columns of the vocabulary from `first_column` on, and `gradients` may be `logits` itself.
    """
    rows, columns = logits.shape
    vocabulary = columns if vocabulary is None else vocabulary
    if rows == 0 or columns == 0:
        return
    target, logsumexps = target.contiguous(), logsumexps.contiguous()
    scales = scales.to(logsumexps.dtype).contiguous()
    logits = with_unit_stride(logits)
    if runs_triton(logits):
        from diagnose.kernels.gpu import row_loss

        row_loss.gradients_of_rows(
            logits, target, logsumexps, scales, gradients, first_column, vocabulary,
            terms.ignore_index, terms.label_smoothing, terms.z_loss,
        )  # fmt: skip
        return
    for some in _parts(rows, columns):
        gradients[some] = _gradients_in_torch(
            logits[some].to(logsumexps.dtype),
            target[some],
            logsumexps[some],
            scales[some],
            terms,
            first_column,
            vocabulary,
        ).to(gradients.dtype)


def losses_in_torch(x: torch.Tensor, target: torch.Tensor, terms: LossTerms) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the log-sum-exp of each row, by torch's own operators alone, which have all derivatives."""
    kept = target != terms.ignore_index
    known = (target >= 0) & (target < x.shape[1])
    logsumexp = torch.logsumexp(x, dim=1)
    picked = x.gather(1, torch.where(known, target, 0).unsqueeze(1)).squeeze(1)
    loss = logsumexp - (1.0 - terms.label_smoothing) * picked.masked_fill(~known, float("nan"))
    if terms.label_smoothing > 0:
        loss = loss - terms.label_smoothing * x.mean(dim=1)
    if terms.z_loss > 0:
        loss = loss + terms.z_loss * logsumexp.square()
    return loss.masked_fill(~kept, 0.0), logsumexp.masked_fill(~kept, 0.0)


def reduce_losses(losses: torch.Tensor, target: torch.Tensor, ignore_index: int, reduction: Reduction) -> torch.Tensor:
    """The losses as `reduction` wants them; the mean of no rows is nan, as torch's."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / rows_kept(target, ignore_index, losses.dtype)


def rows_kept(target: torch.Tensor, ignore_index: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the number of rows that count, as a tensor on the device."""
    return (target != ignore_index).sum(dtype=torch.int64).to(dtype)


def check_arguments(
    features: torch.Tensor, target: torch.Tensor, label_smoothing: float, z_loss: float, reduction: str
) -> None:
    """Refuse what would be computed as something else than was meant."""
    if target.is_floating_point():
        raise TypeError("targets are class indices; class probabilities are not supported")
    if features.shape[:-1] != target.shape:
        raise ValueError(f"a target for each row: rows {tuple(features.shape[:-1])}, targets {tuple(target.shape)}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label smoothing is between 0 and 1, not {label_smoothing}")
    if not z_loss >= 0.0:
        raise ValueError(f"z-loss is 0 or more, not {z_loss}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is mean, sum or none, not {reduction}")


def _gradients_in_torch(
    x: torch.Tensor,
    target: torch.Tensor,
    logsumexp: torch.Tensor,
    scale: torch.Tensor,
    terms: LossTerms,
    first_column: int,
    vocabulary: int,
) -> torch.Tensor:
    kept = target != terms.ignore_index
    known = (target >= 0) & (target < vocabulary)
    gradient = torch.exp(x - logsumexp.unsqueeze(1))
    if terms.z_loss > 0:
        gradient *= (1.0 + 2.0 * terms.z_loss * logsumexp).unsqueeze(1)
    if terms.label_smoothing > 0:
        gradient -= terms.label_smoothing / vocabulary
    here = (target >= first_column) & (target < first_column + x.shape[1])
    column = torch.where(here, target - first_column, 0).unsqueeze(1)
    gradient.scatter_add_(1, column, (here.to(x.dtype) * (terms.label_smoothing - 1.0)).unsqueeze(1))
    gradient *= scale.masked_fill(~known, float("nan")).unsqueeze(1)
    return gradient.masked_fill_(~kept.unsqueeze(1), 0.0)


def _parts(rows: int, columns: int) -> list[slice]:
    step = max(1, TORCH_ELEMENTS // max(1, columns))
    return [slice(first, first + step) for first in range(0, rows, step)]
