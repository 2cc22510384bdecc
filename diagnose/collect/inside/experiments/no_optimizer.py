"""No updates of the weights: what a step takes without its optimizer.

What it takes away
    The body of `step` of every `torch.optim.Optimizer`. A closure runs, as it computes the gradients.

What stays as it is
    Gradients, their clipping and exchange, `zero_grad`, schedulers. A GradScaler still looks for overflows.

When it refuses
    A program in which no torch optimizer takes a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ()
BOUNDS = ("slow-optimizer",)


def start(change: Change) -> None:
    """Have each optimizer class wrap an empty `step`."""
    change.nothing = "no torch optimizer took a step before the measured ones"
    skip_optimizers(change)


def skip_optimizers(change: Change) -> None:
    """Let `step` of every optimizer do nothing but run its closure."""
    optimizer, grad = change.torch.optim.Optimizer, change.torch.enable_grad

    def instead(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
        def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(step)
            def skipped(_self: Any, closure: Callable[[], Any] | None = None, **_rest: Any) -> Any:
                change.times += 1
                if closure is None:
                    return None
                with grad():
                    return closure()

            return wrap(skipped)

        return profile_hook_step

    change.replace(optimizer, "profile_hook_step", instead)
