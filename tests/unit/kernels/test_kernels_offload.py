"""Saved tensors on the host: the same gradients, and only what is worth it leaves the device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from diagnose.kernels import offload
from diagnose.kernels.host_memory.activation_offload import SMALLEST_BYTES, _is_dense, _is_worth_it

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")


def gradients(net: nn.Module, x: Tensor, enabled: bool | None) -> list[Tensor]:
    net.zero_grad()
    torch.manual_seed(0)
    if enabled is None:
        loss = net(x).float().square().mean()
    else:
        with offload(enabled):
            loss = net(x).float().square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters() if parameter.grad is not None)]


def a_net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(width), nn.Tanh())


@pytest.mark.parametrize("enabled", [True, False])
def test_on_the_host_nothing_changes(enabled: bool) -> None:
    net, x = a_net(), torch.randn(4, 8)
    assert all(map(torch.equal, gradients(net, x, enabled), gradients(net, x, None)))


def test_a_context_that_is_off_leaves_the_hooks_of_others() -> None:
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), offload(enabled=False):
        torch.randn(3, requires_grad=True).exp()
    assert len(seen) == 1


@given(st.permutations(range(3)), st.tuples(*[st.integers(1, 4)] * 3))
def test_a_tensor_is_dense_in_any_order_of_its_dimensions(order: list[int], size: tuple[int, int, int]) -> None:
    tensor = torch.empty(size).permute(order)
    assert _is_dense(tensor.size(), tensor.stride())


def test_elements_that_share_memory_or_leave_gaps_are_not() -> None:
    assert not _is_dense(*_of(torch.empty(1, 4).expand(3, 4)))
    assert not _is_dense(*_of(torch.empty(4, 6)[:, :3]))
    assert _is_dense(*_of(torch.empty(())))


def _of(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    return tensor.size(), tensor.stride()


def test_tensors_of_the_host_stay() -> None:
    assert not _is_worth_it(torch.empty(2 * SMALLEST_BYTES))


@needs_device
def test_gradients_are_those_without_it_bit_for_bit() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(*[a_net(1024) for _ in range(6)]).cuda()
    x = torch.randn(4096, 1024, device="cuda")
    for _ in range(3):  # buffers are used again
        assert all(map(torch.equal, gradients(net, x, True), gradients(net, x, None)))


@needs_device
def test_what_is_saved_is_not_held_on_the_device() -> None:
    net = nn.Sequential(*[a_net(1024) for _ in range(6)]).cuda()
    x = torch.randn(16384, 1024, device="cuda")

    def held(enabled: bool) -> int:
        with offload(enabled):
            loss = net(x).sum()
        torch.cuda.synchronize()
        bytes_ = torch.cuda.memory_allocated()
        loss.backward()
        return bytes_

    plain, offloaded = held(False), held(True)
    assert plain - offloaded > 6 * x.numel() * 4


@needs_device
def test_a_graph_can_be_gone_through_twice() -> None:
    net = a_net(1024).cuda()
    with offload():
        loss = net(torch.randn(4096, 1024, device="cuda")).sum()
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    loss.backward()
    assert all(torch.equal(parameter.grad, 2 * one) for parameter, one in zip(net.parameters(), once, strict=False))  # type: ignore[arg-type]
