"""How far Adam carries an element further because its gradient is off: far only where the gradient is nearly zero.

Adam's update does not change when all gradients of an element are made twice as large, so an error of a gradient counts
by its ratio to the gradient. Of n updates, with e the largest error so far and s the root of the mean square of the
gradients so far, the parameter is off by at most two times the sum of e/s, in steps: so it is in simulations of up to
five updates, for gradients that grow, shrink, stay or are drawn anew. That is not so where an optimizer takes the sign
of its momentum (Lion), adds the parameter to the gradient first (Adam with weight decay), or mixes elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from diagnose.trace.schema import Float64
from diagnose.trial.gates.captures import Capture

_MARGIN = 3.0  # times the bound; chosen, not measured
_PER_RATIO = 2.0  # steps per e/s: simulated, see the module's docstring


def reach(capture: Capture, reference: Capture, key: tuple[int, int, str, str], step: float) -> Float64 | float:
    """Return by how much each element of a parameter may be off in `capture`, for what its own gradients are off by.

    Infinite where that is not known: for other optimizers, and where a gradient or a step was not seen.
    """
    rank, at, kind, name = key
    if kind != "parameter" or step == 0.0:
        return np.inf
    states = reference.states.get(rank)
    made = states[-1]["optimizers"] if states else ()
    if not _scales_by_gradient(made, name):
        return np.inf
    shape = reference.values[key].shape
    furthest, squares, total = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    updates = 0
    for updates, gradient in enumerate(_gradients(reference, rank, at, name), 1):
        there = capture.values.get(gradient)
        ideal = reference.values[gradient]
        if there is None or not there.shape == ideal.shape == shape:
            return np.inf
        furthest = np.maximum(furthest, np.abs(there - ideal))
        squares = squares + np.square(ideal)
        size = np.sqrt(squares / updates)
        total = total + np.divide(furthest, size, out=np.where(furthest > 0, np.inf, 0.0), where=size > 0)
    return _MARGIN * _PER_RATIO * step * total if updates else np.inf


def _gradients(reference: Capture, rank: int, until: int, name: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield the gradients that an optimizer has had of a parameter, in order."""
    for step in range(until + 1):
        for update in count():
            key = (rank, step, "gradient", f"{name} update {update}")
            if key not in reference.values:
                break
            yield key


def _scales_by_gradient(made: Any, name: str) -> bool:
    """Whether `optimizer 0 group 1 parameter 2` is one of torch's Adam's, which adds no decay to its gradient."""
    words = name.split()
    if words[::2] != ["optimizer", "group", "parameter"] or not all(word.isdigit() for word in words[1::2]):
        return False
    place, group = int(words[1]), int(words[3])
    if place >= len(made) or group >= len(made[place]["groups"]):
        return False
    settings: Mapping[str, Any] = made[place]["groups"][group]["settings"]
    kind = made[place]["kind"]
    return kind == "torch.optim.adamw.AdamW" or (kind == "torch.optim.adam.Adam" and settings.get("weight_decay") == 0)
