"""Calls what an operator does without the operator, in eager code: dispatching from Python takes longer than launching.

An operator registered from Python is dispatched several times over each way. Eager code on plain tensors needs nothing
of that but a node in the autograd graph. Whatever watches or replaces operators (compilers, tracing, modes, transforms,
tensors of other classes) sees the operator. Derivatives that neither way has are refused: torch would call those in
forward mode zero, and of second ones say nothing that helps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from diagnose.kernels.fallbacks import has_tangent, has_tangents

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float))


def direct(operator: Any, function: Callable[..., Any], instead: str) -> Callable[..., Any]:
    """The function that the operator is made of, where neither a gradient is wanted nor anybody watches.

    It is a gradient's own, which has no further one: who wants that is told what to write `instead`.
    """
    refuse_second_derivatives(operator, instead)

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
    """Call a differentiable operator directly: `keep` and `backward` are what its `register_autograd` gets."""

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


def refuse_second_derivatives(operator: Any, instead: str) -> None:
    """Let the backward pass through an operator that computes a gradient raise."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(no_second_derivatives(instead))

    operator.register_autograd(refuse)


def no_second_derivatives(instead: str) -> str:
    """Return the error message for a second derivative."""
    return f"fused kernels have no second derivatives: write `{instead}` there, or take them by torch.func"


def refuse_tangents(args: Sequence[Any]) -> None:
    """Raise where derivatives in forward mode are wanted of an operator."""
    if has_tangents() and any(isinstance(arg, torch.Tensor) and has_tangent(arg) for arg in args):
        raise NotImplementedError(
            "fused kernels have no derivatives in forward mode of what was computed before: let the whole function "
            "run under torch.func.jvp or in the dual level"
        )


def _wants_gradient(args: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)


def _unwatched(args: tuple[Any, ...]) -> bool:
    return (
        not torch.compiler.is_compiling()
        and PLAIN.issuperset(map(type, args))
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and not any(isinstance(arg, torch.Tensor) and _is_batch(arg) for arg in args)
    )


_is_batch: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a plain tensor stands for many: gradients of a batch of cotangents (`is_grads_batched`) have no transform."""
