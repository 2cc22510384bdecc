"""A callback for the `Trainer` of Hugging Face transformers.

watching = WatchCallback()
Trainer(…, callbacks=[watching]).train()
watching.analysis
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from diagnose.api.analysis import Analysis
from diagnose.api.loop_watch import LoopWatch, watch
from diagnose.errors import UsageError


class WatchCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]  # its base has no types for mypy
    """Watches the steps of `train()`; a step is one optimizer step, whatever is accumulated in it."""

    def __init__(self, steps: int = 4, warmup: int = 10) -> None:
        self._steps, self._warmup = steps, warmup
        self._watch: LoopWatch[Any] | None = None

    @property
    def analysis(self) -> Analysis:
        """The diagnosis. Raises UsageError before training is over."""
        if self._watch is None:
            raise UsageError("nothing was trained yet; ask for the analysis after `train()`")
        return self._watch.analysis

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to watch."""
        self._watch = watch(steps=self._steps, warmup=self._warmup).__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count a step."""
        if self._watch is not None:
            self._watch.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End watching."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
