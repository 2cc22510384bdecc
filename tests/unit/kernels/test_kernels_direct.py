"""Eager code goes past torch's dispatcher to the kernels; whatever watches operators still sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_checks import always_fused, drawn, labels
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from diagnose import kernels

__all__ = ["always_fused"]
pytestmark = pytest.mark.usefixtures("always_fused")


def geglu() -> torch.Tensor:
    return kernels.geglu(drawn(3, 8, seed=1), drawn(3, 8, seed=2))


def swiglu() -> torch.Tensor:
    return kernels.swiglu(drawn(3, 8, seed=1), drawn(3, 8, seed=2))


def softmax() -> torch.Tensor:
    return kernels.softmax(drawn(3, 8, seed=1), scale=0.5)


def rotary() -> torch.Tensor:
    angles = drawn(3, 8, seed=3).detach()
    return kernels.rotary(drawn(2, 3, 8, seed=1), drawn(2, 3, 8, seed=2), angles.cos(), angles.sin())[0]


def add_layer_norm() -> torch.Tensor:
    return kernels.add_layer_norm(drawn(3, 8, seed=1), drawn(3, 8, seed=2), drawn(8, seed=3))[0]


def add_rms_norm() -> torch.Tensor:
    return kernels.add_rms_norm(drawn(3, 8, seed=1), drawn(3, 8, seed=2), drawn(8, seed=3))[0]


EACH = pytest.mark.parametrize("call", [geglu, swiglu, softmax, rotary, add_layer_norm, add_rms_norm])


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@EACH
def test_a_mode_sees_the_operator_and_changes_no_number(call: Callable[[], torch.Tensor]) -> None:
    plain = call()
    with Watching() as mode:
        watched = call()
    assert f"diagnose::{call.__name__}" in mode.seen
    assert torch.equal(plain, watched)


@EACH
def test_eager_code_does_not_go_through_the_operator(call: Callable[[], torch.Tensor]) -> None:
    """Its node in the autograd graph is not the one that torch makes for operators."""
    with Watching():
        through = call()
    assert _nodes(through) != _nodes(call())


def test_tracing_and_fake_tensors_see_operators() -> None:
    def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return kernels.geglu(gate, up)

    traced = make_fx(gated)(torch.randn(2, 4), torch.randn(2, 4))
    assert torch.ops.diagnose.geglu.default in [node.target for node in traced.graph.nodes]
    with FakeTensorMode():
        assert gated(torch.empty(2, 4), torch.empty(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_in_what_checkpointing_computes_again(reentrant: bool) -> None:
    gate, up = drawn(3, 8, seed=1), drawn(3, 8, seed=2)
    expected = torch.autograd.grad(kernels.geglu(gate, up).sin().sum(), (gate, up))
    found = checkpoint(lambda a, b: kernels.geglu(a, b).sin(), gate, up, use_reentrant=reentrant)
    assert isinstance(found, torch.Tensor)
    torch.autograd.backward(found.sum())
    assert gate.grad is not None and up.grad is not None
    assert torch.equal(gate.grad, expected[0]) and torch.equal(up.grad, expected[1])


@EACH
def test_gradients_of_many_cotangents_at_once(call: Callable[[], torch.Tensor]) -> None:
    """A tensor that stands for a batch looks like any other, and has no memory that a kernel could read."""
    output = call()
    inputs = _leaves(output)
    cotangents = torch.stack([torch.full_like(output, 0.5), output.detach().sin(), torch.zeros_like(output)])
    found = torch.autograd.grad(output, inputs, cotangents, retain_graph=True, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(output, inputs, one, retain_graph=True) for one in cotangents]
    for place, gradients in enumerate(found):
        torch.testing.assert_close(gradients, torch.stack([each[place] for each in one_by_one]))


@EACH
def test_a_tangent_of_the_gradient_alone_is_refused(call: Callable[[], torch.Tensor]) -> None:
    """torch would say, of an operator registered from Python, that it is zero."""
    output = call()
    inputs = _leaves(output)
    with forward_ad.dual_level():
        along: torch.Tensor = forward_ad.make_dual(output.detach().sin(), output.detach())  # type: ignore[no-untyped-call]
        with pytest.raises(NotImplementedError, match="forward mode of what was computed before"):
            torch.autograd.grad(output, inputs, along)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_tangent_of_the_gradient_of_a_heads_loss_is_followed_or_refused(recompute: bool) -> None:
    """The gradients that came with the loss are multiplied by it, and so is its tangent."""
    hidden, weight = drawn(6, 8, seed=1), drawn(11, 8, seed=2)
    loss = kernels.linear_cross_entropy(hidden, weight, labels(6, 11, seed=3), recompute=recompute)
    expected = torch.autograd.grad(loss, (hidden, weight), 3 * torch.ones_like(loss), retain_graph=True)
    with forward_ad.dual_level():
        along: torch.Tensor = forward_ad.make_dual(torch.ones_like(loss), 3 * torch.ones_like(loss))  # type: ignore[no-untyped-call]
        if recompute:
            with pytest.raises(NotImplementedError, match="forward mode of what was computed before"):
                torch.autograd.grad(loss, (hidden, weight), along)
            return
        found = torch.autograd.grad(loss, (hidden, weight), along)
        tangents = [forward_ad.unpack_dual(one).tangent for one in found]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(tuple(tangents), expected)


def _leaves(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that gradients can be had for, each once."""
    found: list[torch.Tensor] = []
    waiting = [tensor.grad_fn]
    for node in waiting:
        if node is not None and (leaf := getattr(node, "variable", None)) is not None:
            found += [leaf] if all(leaf is not other for other in found) else []
        elif node is not None:
            waiting += [following for following, _ in node.next_functions]
    return found


def _nodes(tensor: torch.Tensor) -> list[str]:
    """The kinds of nodes from here to the leaves, the first inputs of each."""
    names, node = [], tensor.grad_fn
    while node is not None:
        names.append(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    return names
