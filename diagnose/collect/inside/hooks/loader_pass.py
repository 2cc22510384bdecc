"""Where training is in its pass over the loader, and whether so many more steps fit in.

Between two passes programs evaluate, save, print, and start workers: steps there are far longer than the others. A
window of a few steps that holds such a place says little of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step_hooks import StepHooks


class LoaderPass:
    """Told of each step's end, on the training thread."""

    def __init__(self, steps: StepHooks) -> None:
        self._steps = steps
        self._taken = 0
        """Batches of the pass so far."""
        self._per_step = 1
        self._is_first = True
        """Whether no pass has ended yet: nobody knows whether another one follows."""

    def step_ended(self) -> None:
        """Note how many batches a step takes."""
        before, self._taken = self._taken, getattr(self._iterator(), "_num_yielded", 0)
        if self._taken > before:
            self._per_step = self._taken - before
        else:
            self._is_first = False

    def has_room(self, steps: int) -> bool:
        """Whether the pass goes on for `steps` more; also where that is not known, no pass is that long, or this may be
        the only one."""
        iterator = None if self._is_first else self._iterator()
        try:
            whole = len(iterator) if iterator is not None else 0
        except (TypeError, NotImplementedError):  # a dataset that does not say how long it is
            return True
        if whole < (steps + 1) * self._per_step:
            return True
        return whole - self._taken >= steps * self._per_step

    def _iterator(self) -> Any:
        return self._steps.loader() if self._steps.loader is not None else None
