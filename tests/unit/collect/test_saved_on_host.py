"""What a backward pass needs waits elsewhere and comes back as it was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from diagnose.collect.inside.modes.saved_on_host import LEAST_BYTES, SavedOnHost


def gradients(hooks: SavedOnHost | None) -> list[torch.Tensor]:
    """Those of a small network, twice through one graph."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(64, 1))
    x = torch.randn(LEAST_BYTES // 256, 8, dtype=torch.float64)
    model.double()
    with torch.autograd.graph.saved_tensors_hooks(*(hooks.pack, hooks.unpack) if hooks else (same, same)):
        loss = model(x).exp().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def counting(room_bytes: int, crowded: Callable[[torch.Tensor], bool]) -> tuple[SavedOnHost, list[object]]:
    hooks, packed = SavedOnHost(room_bytes, crowded), list[object]()
    pack = hooks.pack

    def counted(tensor: torch.Tensor) -> object:
        packed.append(pack(tensor))
        return packed[-1]

    hooks.pack = counted  # type: ignore[method-assign]
    return hooks, packed


def test_gradients_are_the_same_bit_for_bit() -> None:
    hooks, packed = counting(1 << 30, lambda _: True)
    for one, other in zip(gradients(None), gradients(hooks), strict=True):
        assert torch.equal(one, other)
    assert any(isinstance(one, tuple) for one in packed)


def test_nothing_leaves_a_device_that_has_room() -> None:
    hooks, packed = counting(1 << 20, lambda _: False)
    gradients(hooks)
    assert packed and not any(isinstance(one, tuple) for one in packed)


def test_what_the_host_has_no_room_for_stays_until_there_is_some() -> None:
    hooks = SavedOnHost(LEAST_BYTES, lambda _: True)
    first, more = (hooks.pack(torch.zeros(LEAST_BYTES // 4)) for _ in range(2))
    assert isinstance(first, tuple) and not isinstance(more, tuple)
    del first
    assert isinstance(hooks.pack(torch.zeros(LEAST_BYTES // 4)), tuple)


LARGE = torch.zeros(LEAST_BYTES // 4)


@pytest.mark.parametrize(
    "tensor",
    [LARGE[1:], torch.zeros(1).expand(LEAST_BYTES), LARGE.to_sparse(), torch.nn.Parameter(LARGE)],
    ids=["small", "expanded", "sparse", "a parameter"],
)
def test_what_would_free_nothing_or_cannot_go_stays(tensor: torch.Tensor) -> None:
    assert isinstance(SavedOnHost(1 << 30, lambda _: True).pack(tensor), torch.Tensor)


def test_a_graph_without_a_backward_pass_is_freed() -> None:
    hooks = SavedOnHost(1 << 20, lambda _: False)
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        root = torch.ones(3, requires_grad=True).exp()

    class Mark:
        """Dies with the node that holds it."""

    mark, node = Mark(), cast(Any, root.grad_fn)
    node.metadata["mark"] = mark
    alive = weakref.ref(mark)
    del mark, node, root
    gc.collect()
    assert alive() is None
