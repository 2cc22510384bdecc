"""Tells how much of an optimizer's state may be on its way back while the backward pass still runs.

A backward pass gives back what the forward pass kept, so that there is room long before the optimizer steps. How much
is learned from the pass before: at some parameters, as their gradients arrive, it is looked at what the device holds,
and how high that will still rise until the step. What is on its way never makes that more than the most that was held
at any of these places, and takes only a part of the room below it: between two of them more is held for a while.

Nothing is on its way early unless the step is near, and until what comes without a step is known to be harmless. With
gradients that are accumulated over several passes only the last one brings something back: as many as were ever seen
before a step. Where a step is left out, as a gradient scaler does, the next forward pass must find the memory empty: it
is known to come when gradients are freed. A program that frees them only after its forward pass, or fills them with
zeros, has its state brought back by the step itself. One that accumulates over more passes than ever before holds what
came back early through the forward passes that are new, once.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

PART = 0.75
"""The part of the room that is seen and used; the rest is for what is held between two looks."""
NEAR = 0.1
"""The share of what a pass holds above the level after a step within which the end of the gradients counts as before
the forward pass."""


class Ahead:
    """The device memory held in the passes between two steps, and the prefetch budget that it leaves for the next."""

    def __init__(self, held_bytes: Callable[[], int], drop: Callable[[], None]) -> None:
        self._held_bytes = held_bytes
        self._drop = drop
        """Called when gradients end: no step is going to come for them."""
        self._level_bytes: int | None = None
        self._seen: list[tuple[tuple[int, int], int]] = []
        self._learned: list[tuple[tuple[int, int], int]] = []
        self._passes: Counter[int] = Counter()
        self._most_passes = 0
        self._gradient: weakref.ref[Any] | None = None
        self._ended_early = False

    def marked(self, place: int, gradient: object, on_way_bytes: int) -> int:
        """Return the bytes that may be on their way back now that the gradient of a parameter is there."""
        if self._gradient is None and gradient is not None:
            self._gradient = weakref.ref(gradient, self._gradients_end)
        self._passes[place] += 1
        passes = max(self._passes.values())  # some leave this parameter out
        key = (place, passes)
        held = self._held_bytes() - on_way_bytes
        self._seen.append((key, held))
        is_last = passes == self._most_passes
        self._most_passes = max(self._most_passes, passes)
        places = [at for at, (known, _) in enumerate(self._learned) if known == key]
        if not places or not is_last or not self._ended_early:
            return 0
        top = max(held for _, held in self._learned)
        still_to_come = max(held for _, held in self._learned[places[0] :])
        return max(0, int(PART * (top - max(held, still_to_come))))

    def stepping(self, on_way_bytes: int) -> None:
        """A step begins: what is held now is the last that its passes are known by."""
        if self._seen:
            self._seen.append(((-1, 0), self._held_bytes() - on_way_bytes))
            self._learned = self._seen
        self._seen = []

    def stepped(self) -> None:
        """The state is away again."""
        self._level_bytes = self._held_bytes()
        self._ended_early = False
        self._passes.clear()

    def _gradients_end(self, _reference: object) -> None:
        """The gradients of the last pass are freed: by `zero_grad`, after a step or without one."""
        self._gradient = None
        self._passes.clear()
        self._seen = []
        self._drop()
        if self._level_bytes is not None and self._learned:
            most = max(held for _, held in self._learned) - self._level_bytes
            self._ended_early = self._held_bytes() - self._level_bytes <= NEAR * most
