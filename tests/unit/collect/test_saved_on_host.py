"""What a backward pass needs waits elsewhere and comes back as it was."""

from __future__ import annotations

from collections.abc import Callable

import torch

from diagnose.collect.inside.modes.saved_on_host import SavedOnHost


def gradients(hooks: SavedOnHost | None) -> list[torch.Tensor]:
    """Those of a small network, twice through one graph."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    x = torch.randn(4, 8, dtype=torch.float64)
    model.double()
    with torch.autograd.graph.saved_tensors_hooks(*(hooks.pack, hooks.unpack) if hooks else (same, same)):
        loss = model(x).exp().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def counting(room_bytes: int, crowded: Callable[[torch.Tensor], bool]) -> tuple[SavedOnHost, list[object]]:
    hooks, packed = SavedOnHost(torch, room_bytes, crowded), list[object]()
    pack = hooks.pack

    def counted(tensor: torch.Tensor) -> object:
        packed.append(pack(tensor))
        return packed[-1]

    hooks.pack = counted  # type: ignore[method-assign]
    return hooks, packed


def test_gradients_are_the_same_bit_for_bit() -> None:
    hooks, packed = counting(1 << 20, lambda _: True)
    for one, other in zip(gradients(None), gradients(hooks), strict=True):
        assert torch.equal(one, other)
    assert any(isinstance(one, tuple) for one in packed)


def test_nothing_leaves_a_device_that_has_room() -> None:
    hooks, packed = counting(1 << 20, lambda _: False)
    gradients(hooks)
    assert packed and not any(isinstance(one, tuple) for one in packed)


def test_leaves_and_what_the_host_has_no_room_for_stay() -> None:
    hooks = SavedOnHost(torch, 16, lambda _: True)
    leaf = torch.zeros(2, requires_grad=True)
    assert hooks.pack(leaf) is leaf
    first = hooks.pack(leaf + 1)
    assert isinstance(first, tuple)
    more = leaf.repeat(2)
    assert hooks.pack(more) is more
    del first
    assert isinstance(hooks.pack(more), tuple)  # what was given back is there again
