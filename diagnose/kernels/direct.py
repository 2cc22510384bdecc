"""Calls what an operator does without the operator, in eager code: dispatching from Python takes longer than launching.

An operator registered from Python is dispatched several times over each way. Eager code on plain tensors needs nothing
of that but a node in the autograd graph. Whatever watches or replaces operators (compilers, tracing, modes, transforms,
tensors of other classes) sees the operator. Forward-mode derivatives, which neither way has, are refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float))


def direct(operator: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the operator is made of, where neither a gradient is wanted nor anybody watches."""

    def call(*args: Any) -> Any:
        refuse_tangents(args)
        return function(*args) if _unwatched(args) and not _wants_gradient(args) else operator(*args)

    return call


def differentiable(
    operator: Callable[..., Any],
    function: Callable[..., Any],
    keep: Callable[..., None],
    backward: Callable[..., Any],
) -> Callable[..., Any]:
    """The same with a gradient: `keep` and `backward` are what the operator's `register_autograd` gets."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = function(*args)
        keep(ctx, args, output)
        return output

    # `keep` as `setup_context` would have torch look up the function's signature at each call.
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node: Any = type(function.__name__, (torch.autograd.Function,), members)

    def call(*args: Any) -> Any:
        refuse_tangents(args)
        if not _unwatched(args):
            return operator(*args)
        return node.apply(*args) if _wants_gradient(args) else function(*args)

    return call


def refuse_tangents(args: Sequence[Any]) -> None:
    """Raise where forward-mode derivatives are wanted: torch has none for operators of Python, and says they are 0."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(isinstance(arg, torch.Tensor) and _tangent(arg) is not None for arg in args):
        raise NotImplementedError("the fused kernels have no forward-mode derivatives")


def _tangent(tensor: torch.Tensor) -> torch.Tensor | None:
    tangent: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]  # torch's
    return tangent


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
        and not any(isinstance(arg, torch.Tensor) and _is_batch(arg) for arg in args)
    )


_is_batch: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a plain tensor stands for many: gradients of a batch of cotangents (`is_grads_batched`) have no transform."""
