"""The model compiled, in each mode of torch.compile: what a step takes with each.

What it takes away
    Launches and passes over memory that a compiler can do without. The first module with parameters that a training
    step calls is compiled in place, as `module.compile(mode=...)` does. A program that compiles itself has the mode of
    its own `torch.compile` changed instead.

What stays as it is
    Loss, optimizer, and other models of the same program. Starts take as long as the compiler: `max-autotune` minutes.

When it refuses
    A program whose steps call no module with parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ()
BOUNDS = ()
COMPILES = True
SETTINGS = (
    {"mode": "default"},
    {"mode": "reduce-overhead"},
    {"mode": "max-autotune"},
    {"mode": "default", "dynamic": True},
)


def start(change: Change) -> None:
    """Wait for the first call of a model, and for the program's own use of torch.compile."""
    change.nothing = "no module with parameters was called with gradients before the measured steps"
    change.replace(change.torch, "compile", lambda compile_: _in_this_mode(change, compile_))
    module = change.torch.nn.Module
    call = module.__call__
    change.replace(module, "__call__", lambda _: _compiling_first(change, module, call))


def _in_this_mode(change: Change, compile_: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        change.times += 1
        if kwargs.get("backend", "inductor") != "inductor":
            change.refuse(f"the program compiles with the backend {kwargs['backend']}, which has no modes")
        if "options" in kwargs:
            change.refuse("the program compiles with options of its own, which no mode can be added to")
        return compile_(*args, **{**kwargs, **change.setting})

    return call


def _compiling_first(change: Change, module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    def compiling(model: Any, *args: Any, **kwargs: Any) -> Any:
        if change.times:
            module.__call__ = call
        elif change.torch.is_grad_enabled() and model.training and any(True for _ in model.parameters()):
            module.__call__ = call  # parts of the model are called as ever: the compiler looks at these calls
            model.compile()
        return call(model, *args, **kwargs)

    return compiling
