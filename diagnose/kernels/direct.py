"""Calls operators past torch's dispatcher in eager code: from Python, dispatching takes a host longer than launching.

An operator registered from Python is dispatched several times over each way. Eager code on plain tensors needs nothing
of that but a node in the autograd graph. Whatever watches or replaces operators (compilers, tracing, modes, transforms,
tensors of other classes) sees the operator.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function
from torch.library import CustomOpDef  # type: ignore[attr-defined]  # torch does not say that it exports it

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float))


def plain(operator: CustomOpDef) -> Callable[..., Any]:
    """The operator's own function, where neither a gradient is wanted nor anybody watches."""
    function = operator._init_fn

    def call(*args: Any) -> Any:
        return function(*args) if _unwatched(args) and not _wants_gradient(args) else operator(*args)

    return call


def differentiable(
    operator: CustomOpDef, keep: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Register the operator's gradient, and return what eager code calls."""
    operator.register_autograd(backward, setup_context=keep)
    function = operator._init_fn
    members = {"forward": function, "setup_context": keep, "backward": backward}
    node: Any = type(operator._name, (Function,), {name: staticmethod(one) for name, one in members.items()})

    def call(*args: Any) -> Any:
        if not _unwatched(args):
            return operator(*args)
        return node.apply(*args) if _wants_gradient(args) else function(*args)

    return call


def _wants_gradient(args: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)


def _unwatched(args: tuple[Any, ...]) -> bool:
    return (
        not torch.compiler.is_compiling()
        and all(type(arg) in PLAIN for arg in args)
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
    )
