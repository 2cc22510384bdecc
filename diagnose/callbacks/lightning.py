"""A callback for the `Trainer` of Lightning.

watching = WatchCallback()
Trainer(…, callbacks=[watching]).fit(model, loader)
watching.analysis
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from diagnose.api.analysis import Analysis
from diagnose.api.loop_watch import LoopWatch, watch
from diagnose.errors import UsageError


class WatchCallback(Callback):  # type: ignore[misc,unused-ignore]  # its base may have no types for mypy
    """Watches the steps of `fit()`; a step is one optimizer step, whatever is accumulated in it."""

    def __init__(self, steps: int = 4, warmup: int = 10) -> None:
        self._steps, self._warmup = steps, warmup
        self._watch: LoopWatch[Any] | None = None

    @property
    def analysis(self) -> Analysis:
        """The diagnosis. Raises UsageError before training is over."""
        if self._watch is None:
            raise UsageError("nothing was trained yet; ask for the analysis after `fit()`")
        return self._watch.analysis

    def on_train_start(self, *_: Any) -> None:
        """Begin to watch."""
        self._watch = watch(steps=self._steps, warmup=self._warmup).__enter__()

    def on_train_end(self, *_: Any) -> None:
        """End watching."""
        self._end()

    def on_exception(self, *_: Any) -> None:
        """End watching where training fails."""
        self._end()

    def _end(self) -> None:
        if self._watch is not None and self._watch.is_running:
            self._watch.__exit__(None, None, None)
