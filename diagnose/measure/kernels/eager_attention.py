"""Where attention is written out: a batched product, something over its scores, a softmax, a batched product.

Found in the order of launches: from each softmax (or its gradient) back and on over elementwise work to the batched
products on both sides. A softmax between other neighbours (over classes, over experts) is no attention; kernels that
do all of it in one (flash, cuDNN, generated ones) hold no softmax of PyTorch's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.views.shapes import shapes_of
from diagnose.trace.schema import Bool, Int64

MOST_STEPS = 12
"""Pieces of elementwise work between a softmax and its product; written out, there are about five."""

_FORWARD = re.compile(r"_softmax|_safe_softmax")
_BACKWARD = re.compile(r"_softmax_backward_data")
_BATCHED = re.compile(r"bmm|baddbmm")
_CAUSAL = re.compile(r"triu|tril")
_ELSEWHERE = re.compile(r"topk|sort|_log_softmax.*|nll_loss.*|embedding.*|scatter.*")


@dataclass(frozen=True)
class WrittenAttention:
    """One pass over one attention, forward or backward; places in the `LaunchOrder`."""

    first: int
    last: int
    softmax: int
    products: tuple[int, ...]
    backward: bool
    causal: bool
    """Whether the mask seems to be a triangle: half of the scores are then never needed."""


def written_attention(order: LaunchOrder) -> tuple[WrittenAttention, ...]:
    """Every attention written out, in order."""
    forward, backward = order.says(_FORWARD) & order.eager, order.says(_BACKWARD) & order.eager
    # Without an operator a product's kind is unknown: it may be a batched one.
    unknown = order.product & (order.op < 0)
    batched = (order.product & order.says(_BATCHED)) | unknown
    between = order.eager & ~order.product & ~order.says(_ELSEWHERE) & ~forward & ~backward
    causal = order.says(_CAUSAL)
    found = []
    for place in np.flatnonzero(forward | backward).tolist():
        before = _next(batched, between, place, -1)
        after = _next(batched, between, place, 1)
        if before is None or after is None or not _over_scores(order, place):
            continue
        first = _first_product(batched, between, before) if backward[place] else before
        last = _last_product(batched, between, after) if backward[place] else after
        products = np.flatnonzero(batched[first : last + 1]) + first
        found.append(
            WrittenAttention(
                first=first,
                last=last,
                softmax=place,
                products=tuple(products.tolist()),
                backward=bool(backward[place]),
                causal=bool(causal[first:last].any()),
            )
        )
    return tuple(found)


def scores_shape(order: LaunchOrder, place: int) -> tuple[int, ...] | None:
    """The shape that a softmax runs over; None where it is not recorded."""
    shapes = shapes_of(order.trace, int(order.op[place]))
    return shapes[0] if shapes else None


def product_flop(order: LaunchOrder, products: Int64) -> int | None:
    """Floating-point operations of batched products, 2·b·m·n·k each; None where a shape is missing."""
    total = 0
    for place in products.tolist():
        shapes = shapes_of(order.trace, int(order.op[place]))
        matrices = [shape for shape in shapes or () if shape is not None and len(shape) == 3][-2:]
        if len(matrices) != 2:
            return None
        (batch, rows, inner), (_, _, columns) = matrices
        total += 2 * batch * rows * inner * columns
    return total


def _next(batched: Bool, between: Bool, place: int, step: int) -> int | None:
    """The batched product next to `place` with only elementwise work in between."""
    for at in range(place + step, place + step * (MOST_STEPS + 2), step):
        if not 0 <= at < len(batched):
            return None
        if batched[at]:
            return at
        if not between[at]:
            return None
    return None


def _first_product(batched: Bool, between: Bool, place: int) -> int:
    """Backward, both gradients of the second product come first: the other one before this, if it is near."""
    near = _next(batched, between, place, -1)
    return near if near is not None and place - near <= 3 else place


def _last_product(batched: Bool, between: Bool, place: int) -> int:
    near = _next(batched, between, place, 1)
    return near if near is not None and near - place <= 3 else place


def _over_scores(order: LaunchOrder, place: int) -> bool:
    """Whether the softmax may be one over queries × keys; where its shape is known, whether it is."""
    shape = scores_shape(order, place)
    return shape is None or (len(shape) >= 3 and min(shape[-2:]) > 1)
