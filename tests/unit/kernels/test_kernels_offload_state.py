"""The optimizer's state on the host between steps: the same updates, a state that loads, and only what is asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnose.kernels import offload_state
from diagnose.kernels.host_memory import optimizer_offload

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")


class Arrival:
    """A copy's event that is there at once, and knows whether it was waited for."""

    waited = False

    def synchronize(self) -> None:
        self.waited = True


class StandIn:
    """For a device and its copy engine: what has been copied from the device is gone there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def take(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def give(self, buffer: Tensor) -> None:
        """It is written over by the next."""

    def copy(self, to: Tensor, source: Tensor) -> Arrival:
        to.copy_(source)
        source.fill_(float("nan"))
        return Arrival()

    def wait(self, event: Arrival) -> None:
        event.synchronize()


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are taken for those of a device."""
    monkeypatch.setattr(optimizer_offload, "HostLane", StandIn)
    monkeypatch.setattr(optimizer_offload, "_is_worth_it", lambda tensor: tensor.numel() > 1)


def a_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[Tensor]:
    """The parameters after some steps, always of the same batches."""
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return [one.detach().clone() for one in net.parameters()]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, centered=True),
}


@pytest.mark.usefixtures("moves")
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_updates_are_the_same_bit_for_bit(made: Callable[[Any], torch.optim.Optimizer], share: float) -> None:
    plain, moved = a_net(), a_net()
    optimizer = made(moved.parameters())
    offload_state(optimizer, share)
    assert all(map(torch.equal, train(plain, made(plain.parameters())), train(moved, optimizer)))


@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_on_the_host_nothing_moves(made: Callable[[Any], torch.optim.Optimizer]) -> None:
    plain, moved = a_net(), a_net()
    optimizer = made(moved.parameters())
    offload_state(optimizer)
    assert all(map(torch.equal, train(plain, made(plain.parameters())), train(moved, optimizer)))


@pytest.mark.usefixtures("moves")
def test_the_states_of_the_first_parameters_go_as_many_as_make_up_the_share() -> None:
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters())
    offload_state(optimizer, 0.5)
    train(net, optimizer, steps=1)
    first = optimizer.state[next(net.parameters())]
    before = first["exp_avg"]
    (away,) = [hook.__self__._away for hook in optimizer._optimizer_step_pre_hooks.values()]  # type: ignore[attr-defined]
    assert [(one.parameter.shape, one.name) for one in away] == [
        (torch.Size([8, 8]), "exp_avg"),
        (torch.Size([8, 8]), "exp_avg_sq"),
        (torch.Size([8]), "exp_avg"),
        (torch.Size([8]), "exp_avg_sq"),
    ]
    assert before is away[0].host and not before.isnan().any()


@pytest.mark.usefixtures("moves")
def test_a_state_that_is_saved_between_steps_loads_with_and_without() -> None:
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    offload_state(optimizer)
    train(net, optimizer)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    expected = train(net, optimizer)
    for again in (False, True):
        other = a_net()
        other.load_state_dict(weights)
        resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
        if again:
            offload_state(resumed, 0.5)
            train(copy.deepcopy(other), resumed, steps=0)
        resumed.load_state_dict(copy.deepcopy(saved))  # torch goes on in the tensors that it is given
        assert all(map(torch.equal, expected, train(other, resumed)))


@pytest.mark.usefixtures("moves")
def test_a_state_that_is_loaded_while_the_old_one_is_away_takes_its_place() -> None:
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    offload_state(optimizer)
    train(net, optimizer)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    expected = train(net, optimizer)
    net.load_state_dict(weights)
    optimizer.load_state_dict(saved)
    assert all(map(torch.equal, expected, train(net, optimizer)))


@pytest.mark.usefixtures("moves")
def test_a_state_that_was_read_is_whole_also_after_another_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "give", lambda _lane, buffer: buffer.fill_(255))

    def trained(share: float | None) -> list[Tensor]:
        net = a_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        if share is not None:
            offload_state(optimizer, share)
        train(net, optimizer)
        held = optimizer.state_dict()
        before = copy.deepcopy(held)
        train(net, optimizer)
        optimizer.load_state_dict(before)
        train(net, optimizer)
        optimizer.load_state_dict(held)
        return train(net, optimizer)

    assert all(map(torch.equal, trained(None), trained(1.0)))


@pytest.mark.usefixtures("moves")
def test_what_a_thread_still_saves_is_not_written_over_by_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """To copy a state to the host copies nothing of what lies there: it has to stay as it was."""
    given: list[Tensor] = []
    monkeypatch.setattr(StandIn, "give", lambda _lane, buffer: given.append(buffer.fill_(255)))
    monkeypatch.setattr(StandIn, "copy", lambda _lane, to, source: (to.copy_(source), Arrival())[1])
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    offload_state(optimizer)
    train(net, optimizer)
    given.clear()
    state = optimizer.state_dict()["state"]
    held = [value.cpu() for one in state.values() for name, value in one.items() if name != "step"]
    before = [value.clone() for value in held]
    train(net, optimizer, steps=1)
    assert not given and all(map(torch.equal, before, held))
    train(net, optimizer, steps=1)
    assert len(given) == 8 and all(map(torch.equal, before, held)), "buffers that nobody read go round as before"


@pytest.mark.usefixtures("moves")
def test_what_found_no_room_comes_back_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, moved = a_net(), a_net()
    other, optimizer = (torch.optim.AdamW(net.parameters(), lr=0.1) for net in (plain, moved))
    offload_state(optimizer)
    train(plain, other)
    train(moved, optimizer)
    real, calls = StandIn.copy, iter([True, True, False])

    def copy_twice(lane: StandIn, to: Tensor, source: Tensor) -> Arrival:
        if not next(calls):
            raise torch.OutOfMemoryError("none left")
        return real(lane, to, source)

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(StandIn, "copy", copy_twice)
        optimizer.step()
    assert all(map(torch.equal, train(plain, other), train(moved, optimizer)))


@pytest.mark.usefixtures("moves")
def test_closures_further_groups_schedules_and_steps_that_fail_change_no_bit() -> None:
    def trained(share: float | None) -> list[Tensor]:
        net = a_net()
        first, *others = net.parameters()
        optimizer = torch.optim.AdamW([first], lr=0.1, amsgrad=True)
        if share is not None:
            offload_state(optimizer, share)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def closure() -> float:
            optimizer.zero_grad()
            loss = net(torch.ones(4, 8)).square().mean()
            loss.backward()
            return float(loss.item())

        optimizer.step(closure)
        optimizer.step()  # a second time with the same gradients
        schedule.step()
        optimizer.add_param_group({"params": others, "lr": 0.01})
        optimizer.step(closure)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        return train(net, optimizer)

    assert all(map(torch.equal, trained(None), trained(0.7)))


@pytest.mark.usefixtures("moves")
def test_who_reads_the_state_waits_for_the_copies() -> None:
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters())
    offload_state(optimizer)
    train(net, optimizer, steps=1)
    (away,) = [hook.__self__._away for hook in optimizer._optimizer_step_pre_hooks.values()]  # type: ignore[attr-defined]
    assert away and not any(one.event.waited for one in away)
    optimizer.state_dict()
    assert all(one.event.waited for one in away)


@pytest.mark.usefixtures("moves")
def test_steps_that_a_gradient_scaler_leaves_out_move_nothing() -> None:
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    offload_state(optimizer)
    before = train(net, optimizer, steps=1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(net(torch.full((4, 8), float("inf"))).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(map(torch.equal, before, net.parameters()))
    plain = a_net()
    other = torch.optim.AdamW(plain.parameters(), lr=0.1)
    train(plain, other, steps=1)
    assert all(map(torch.equal, train(plain, other), train(net, optimizer)))


@pytest.mark.usefixtures("moves")
@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_groups_that_step_within_a_graph_stay(option: str) -> None:
    net = a_net()
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer, steps=1)
    assert len(list(optimizer_offload._movable(optimizer))) == 8
    optimizer.param_groups[0][option] = True
    assert list(optimizer_offload._movable(optimizer)) == []


def test_a_share_is_between_nothing_and_all_and_given_once() -> None:
    optimizer = torch.optim.AdamW(a_net().parameters())
    with pytest.raises(ValueError, match="between 0 and 1"):
        offload_state(optimizer, 1.5)
    offload_state(optimizer)
    with pytest.raises(ValueError, match="already"):
        offload_state(optimizer, 0.5)


@needs_device
@pytest.mark.parametrize("fused", [True, False])
def test_a_device_holds_less_between_steps_and_the_updates_are_the_same(fused: bool) -> None:
    def trained(share: float | None) -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=fused)
        if share is not None:
            offload_state(optimizer, share)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(64, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return [one.detach().cpu() for one in net.parameters()], torch.cuda.memory_allocated()

    torch.cuda.empty_cache()
    (plain, held), (moved, left) = trained(None), trained(1.0)
    assert all(map(torch.equal, plain, moved))
    assert held - left >= 2 * 2 * 4 * 1024 * 1024
