"""Whether a program that is ended once it is diagnosed has shown enough."""

from __future__ import annotations

from collections import Counter

from diagnose.collect.recipe import Recipe


class LogLength:
    """Counts the steps of its ranks, and the time since all were traced."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._steps: Counter[int] = Counter()
        self._since_s: float | None = None

    def grew(self, rank: int, steps: int, *, anew: bool = False) -> None:
        """A rank has come so many steps further; `anew`: in a log that has begun again."""
        self._steps[rank] = steps + (0 if anew else self._steps[rank])

    def suffices(self, now_s: float) -> bool:
        """Asked once all ranks are traced: whether the log is long enough too, or has had its time."""
        if self._since_s is None:
            self._since_s = now_s
        recipe = self._recipe
        long = max(self._steps.values(), default=0) >= recipe.log_steps
        return recipe.stop_after_trace and (long or now_s - self._since_s >= recipe.most_log_s)
