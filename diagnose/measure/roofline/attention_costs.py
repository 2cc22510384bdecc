"""How much arithmetic fused attention is, and how many bytes it must move.

Forward, two products: 2·B·H·Tq·Tk·(Dqk + Dv) floating-point operations; softmax is left out. Backward, five: the scores
are computed again, 2·B·H·Tq·Tk·(3·Dqk + 2·Dv). As `torch.utils.flop_counter` counts, but where attention is causal
only the pairs that are not masked count: Tq·(Tq + 1)/2 of them, where there are as many keys as queries. Every tensor
moves once. Sequences packed into one (`cu_seqlens`) leave their lengths unrecorded, and stay unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.measure.roofline.matmul_costs import Model, Work
from diagnose.measure.views.operands import NotRecorded, Operands


@dataclass(frozen=True)
class _Places:
    """Where an operator of attention has its arguments."""

    query: int
    causal: int
    heads: int
    """The dimension of the heads, of (batch, heads, time, width) or (batch, time, heads, width)."""
    packed: int | None = None
    """The first of two arguments that say where packed sequences begin."""


def _forward(places: _Places) -> Model:
    def model(given: Operands) -> Work:
        pairs, width, value_width = _sizes(given, places)
        query, value = given.shape(places.query), given.shape(places.query + 2)
        output = query[0] * query[1] * query[2] * value[3] * given.item_bytes(places.query)
        moved = given.bytes(places.query, places.query + 1, places.query + 2) + output
        return Work(2 * pairs * (width + value_width), moved, given.format(places.query))

    return model


def _backward(places: _Places) -> Model:
    def model(given: Operands) -> Work:
        pairs, width, value_width = _sizes(given, places)
        inputs = given.bytes(places.query, places.query + 1, places.query + 2)
        # The gradient of the output and the output are read, the gradients of the inputs written.
        moved = 2 * inputs + 2 * given.bytes(0)
        form = given.format(places.query)
        return Work(2 * pairs * (3 * width + 2 * value_width), moved, form, recomputed=2 * pairs * width)

    return model


def _sizes(given: Operands, places: _Places) -> tuple[int, int, int]:
    """Pairs of a query and a key that meet, over batch and heads; the width of a key; the width of a value."""
    if places.packed is not None and (given.is_tensor(places.packed) or given.is_tensor(places.packed + 1)):
        raise NotRecorded
    query, key, value = (given.shape(places.query + at, 4) for at in range(3))
    time = 3 - places.heads
    queries, keys = query[time], key[time]
    pairs = queries * keys
    if _is_causal(given, places.causal):
        if queries != keys:
            raise NotRecorded  # whether the first or the last query sees all keys differs between implementations
        pairs = queries * (queries + 1) // 2
    return query[0] * query[places.heads] * pairs, query[3], value[3]


def _is_causal(given: Operands, place: int) -> bool:
    try:
        return given.truth(place)
    except NotRecorded:
        return given.number(place) != 0  # `custom_mask_type`: 0 for none, 1 and 2 for causal ones


_HEADS_FIRST, _TIME_FIRST = 1, 2
MODELS: Mapping[str, Model] = {
    "_flash_attention_forward": _forward(_Places(0, 8, _TIME_FIRST, packed=3)),
    "_flash_attention_backward": _backward(_Places(1, 11, _TIME_FIRST, packed=6)),
    "_efficient_attention_forward": _forward(_Places(0, 9, _TIME_FIRST, packed=4)),
    "_efficient_attention_backward": _backward(_Places(1, 14, _TIME_FIRST, packed=6)),
    "_cudnn_attention_forward": _forward(_Places(0, 10, _HEADS_FIRST, packed=4)),
    "_cudnn_attention_backward": _backward(_Places(1, 14, _HEADS_FIRST, packed=9)),
    "_scaled_dot_product_flash_attention": _forward(_Places(0, 4, _HEADS_FIRST)),
    "_scaled_dot_product_flash_attention_backward": _backward(_Places(1, 11, _HEADS_FIRST, packed=6)),
    "_scaled_dot_product_efficient_attention": _forward(_Places(0, 6, _HEADS_FIRST)),
    "_scaled_dot_product_efficient_attention_backward": _backward(_Places(1, 11, _HEADS_FIRST)),
    "_scaled_dot_product_cudnn_attention": _forward(_Places(0, 6, _HEADS_FIRST)),
    "_scaled_dot_product_cudnn_attention_backward": _backward(_Places(1, 14, _HEADS_FIRST, packed=9)),
}
"""Cost models by the operator's name without `aten::`; places from PyTorch's `native_functions.yaml`."""
