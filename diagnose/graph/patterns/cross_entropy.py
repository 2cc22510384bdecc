"""Cross entropy over a large vocabulary whose logits others read too, or that no linear layer gives.

A cast of the logits to a wider dtype that only the loss reads goes too: the operator widens as it reads.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.nodes import dtype, hinted_value, is_cast, only_read_by
from diagnose.graph.patterns.losses import LossCall, loss_call
from diagnose.graph.site import FUSED_BY_COMPILER, Example, Inner, Pattern, Site, classes, floats

LEAST_SAVED_BYTES = 64 << 20
"""The saving below which the call of an operator written in Python costs more time than its memory traffic saves."""


def fused(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    loss_dtype: torch.dtype,
    ignore_index: int,
    label_smoothing: float,
    reduction: Any,
) -> torch.Tensor:
    """The loss of logits with classes second, in the dtype that it had."""
    loss = kernels.cross_entropy(
        logits.movedim(1, -1),
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return loss.to(loss_dtype)


def find(graph: fx.Graph) -> Iterator[Site]:
    """Every cross entropy of class indices."""
    for node in graph.nodes:
        call = loss_call(node)
        loss = dtype(node)
        if call is not None and loss is not None:
            logits, casts = _before_casts(call)
            constants = {"loss_dtype": loss, **call.terms}
            removed = (*reversed(casts), *reversed(call.nodes))
            elements = hinted_value(logits).numel()
            yield Site(PATTERN.name, removed, (logits, call.target), (node,), fused, constants, (0, 1), elements)


def _before_casts(call: LossCall) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """The logits before they are cast for the loss alone, and the casts."""
    value, reader = call.logits, call.nodes[-1]
    casts: list[fx.Node] = []
    while is_cast(value) and only_read_by(value, (reader,)) and _widens(value):
        casts.append(value)
        reader, value = value, value.args[0]  # type: ignore[assignment]
    return value, tuple(casts)


def _widens(cast: fx.Node) -> bool:
    before, after = dtype(cast.args[0]), dtype(cast)
    return before is not None and after is not None and torch.promote_types(before, after) == after


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """Log-probabilities and a gradient in the loss's dtype; Inductor keeps neither."""
    if inner == "compiled":
        return 0
    logits = inputs[0]
    wide = max(logits.dtype.itemsize, site.constants["loss_dtype"].itemsize)
    # As found: log-probabilities and two gradients. Ours: one gradient in the logits' dtype, beside the logits, which
    # are given.
    saved: int = logits.numel() * (3 * wide - logits.dtype.itemsize)
    return saved


def keeps(site: Site, inputs: list[torch.Tensor], inner: Inner) -> str:
    """Inductor reads logits as often as the operator does, and fuses what stands before."""
    if inner == "compiled":
        return FUSED_BY_COMPILER
    saved_bytes = saves(site, inputs, inner)
    if saved_bytes < LEAST_SAVED_BYTES:
        return f"it would save {max(0, saved_bytes) >> 20} MiB: too little to pay for another launch"
    return ""


def _returned(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = functional.linear(hidden, weight)
    return logits, functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=2)


def _widened(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), target, label_smoothing=0.1)


def _classes_second(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.tanh(), target, reduction="sum")


def _weighted(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, target, weight=logits.new_ones(11))


def _probabilities(logits: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, given.softmax(-1))


def _binary(logits: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(logits, given)


def _likelihood_alone(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(torch.log(logits.softmax(-1)), target)


PATTERN = Pattern(
    "cross-entropy",
    find,
    saves,
    keeps,
    matches=(
        Example(_returned, (floats(2, 5, 8), floats(11, 8), classes(11, 2, 5))),
        Example(_widened, (floats(6, 11, dtype=torch.bfloat16), classes(11, 6))),
        Example(_classes_second, (floats(2, 11, 3), classes(11, 2, 3))),
    ),
    leaves=(
        Example(_weighted, (floats(6, 11), classes(11, 6))),
        Example(_probabilities, (floats(6, 11), floats(6, 11))),
        Example(_binary, (floats(6, 11), lambda generator: torch.rand(6, 11, generator=generator))),
        Example(_likelihood_alone, (floats(6, 11), classes(11, 6))),
    ),
)
