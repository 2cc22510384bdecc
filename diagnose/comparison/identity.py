"""Whether two runs do the same work: the shapes of weights and of what is multiplied with them.

A run whose recording has shapes is known by its layers: `aten::linear`, `aten::convolution` and `aten::embedding` name
the weight apart from the batch. A compiled or scripted program calls none of these; its work is then unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.views.shapes import Shape, shapes_of

_LAYERS = {"aten::linear": (1, 0), "aten::convolution": (1, 0), "aten::embedding": (0, 1)}
"""Layers, with the positions of the weight and of the batch among their arguments."""

_OTHER_MODEL = 0.1
"""The share of its layers' calls elsewhere beyond which it is another model; a padded vocabulary is the same one."""


@dataclass(frozen=True)
class Identity:
    """The work of one step, by which two runs are recognised as computing the same. Empty where the
    recording does not tell.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    """Shapes of layers' weights, as `linear 768×50257`, and how often one step uses them."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """The rows (samples, tokens) that a step puts through all weights of a layer together, by layer."""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self.weights)


def identity_of(measures: Measures) -> Identity:
    """The work of the mean counted step."""
    trace, steps = measures.trace, measures.steps
    layers = {number: name for number, name in enumerate(trace.names) if name in _LAYERS}
    if len(steps) == 0 or not layers:
        return Identity()
    ops = trace.ops
    inside = (ops.start_ns >= steps.host_start_ns[0]) & (ops.start_ns < steps.host_end_ns[-1]) & (ops.shapes >= 0)
    found = np.flatnonzero(inside & np.isin(ops.name, list(layers)))
    pairs = np.stack([ops.name[found], ops.shapes[found]])
    _, first, times = np.unique(pairs, axis=1, return_index=True, return_counts=True)
    weights: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for op, count in zip(found[first].tolist(), times.tolist(), strict=True):
        layer, given = layers[int(ops.name[op])], shapes_of(trace, op) or ()
        weight, batch = (_at(given, place) for place in _LAYERS[layer])
        if weight:
            word = layer.removeprefix("aten::")
            weights[f"{word} {'×'.join(map(str, weight))}"] += count
            rows[word] += count * _rows(layer, batch)
    return Identity(
        {weight: round(count / len(steps)) for weight, count in sorted(weights.items())},
        {layer: round(count / len(steps)) for layer, count in sorted(rows.items())},
    )


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between the work of two runs, one sentence each."""

    grave: tuple[str, ...] = ()
    """Because of these, their times say nothing about each other."""
    slight: tuple[str, ...] = ()


def differences(before: Identity, after: Identity) -> Differences:
    """Compare the work of two runs; empty where one is unknown."""
    if not (before.is_known and after.is_known):
        return Differences()
    gone = {weight: count for weight, count in before.weights.items() if weight not in after.weights}
    new = {weight: count for weight, count in after.weights.items() if weight not in before.weights}
    if gone or new:
        share = max(_share(gone, before), _share(new, after))
        said = f"{_listed(list(gone))} only in the first, {_listed(list(new))} only in the second"
        if share > _OTHER_MODEL:
            return Differences(grave=(f"the models differ: {said}",))
        return Differences(slight=(f"the models differ slightly: {said}",))
    for layer, rows in before.rows.items():
        now = after.rows.get(layer, 0)
        uses, uses_now = (_uses(layer, one) for one in (before, after))
        if rows == now:
            continue
        if uses != uses_now and rows * uses_now == now * uses:
            times = f"{uses:,} and {uses_now:,} times a step"
            return Differences(slight=(f"{layer} runs {times}: recomputation, or another number of micro-steps",))
        return Differences(grave=(f"the batches differ: {rows:,} and {now:,} rows a step through {layer}",))
    return Differences()


def _share(some: Mapping[str, int], whole: Identity) -> float:
    return sum(some.values()) / max(sum(whole.weights.values()), 1)


def _uses(layer: str, identity: Identity) -> int:
    return sum(count for weight, count in identity.weights.items() if weight.startswith(f"{layer} "))


def _at(shapes: tuple[Shape | None, ...], place: int) -> Shape:
    return (shapes[place] if place < len(shapes) else None) or ()


def _rows(layer: str, batch: Shape) -> int:
    """Count a batch's rows: all dimensions but the features for `linear`, samples for a convolution."""
    if layer == "aten::convolution":
        return batch[0] if batch else 0
    dimensions = batch if layer == "aten::embedding" else batch[:-1]
    return int(np.prod(dimensions)) if batch else 0


def _listed(weights: list[str]) -> str:
    if not weights:
        return "nothing"
    more = f" and {len(weights) - 2} more" if len(weights) > 2 else ""
    return ", ".join(weights[:2]) + more
