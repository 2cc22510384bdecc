"""No backward pass and no updates: what the forward pass alone takes.

What it takes away
    Every `backward()`, and with it clipping, overflow checks and the optimizer, which find no gradients. What is left
    of the step is loading, copying, the forward pass, the loss, and what the program does beside training.

What stays as it is
    The forward pass saves what the backward pass would need. `torch.autograd.grad` is computed.

When it refuses
    A job of several ranks, whose gradients are exchanged within the backward pass; a program that reads gradients
    itself fails without them, and its error is the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .no_optimizer import skip_optimizers

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ()
BOUNDS = ("over-checkpointing",)


def start(change: Change) -> None:
    """Stand where backward passes enter the engine, and in the places of what needs gradients."""
    torch = change.torch
    change.nothing = "no backward pass was run before the measured steps"

    def instead(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("accumulate_grad", False):
                change.leave("torch.autograd.grad")
                return run(*args, **kwargs)
            if change.hub.world_size > 1:
                change.refuse("ranks exchange their gradients within the backward pass")
            change.times += 1
            return ()

        return call

    change.replace(torch.autograd, "_engine_run_backward", instead)
    scaler = torch.amp.GradScaler
    for name in ("step", "unscale_", "update"):
        change.replace(scaler, name, lambda _method: lambda *_args, **_kwargs: None)
    skip_optimizers(change)
