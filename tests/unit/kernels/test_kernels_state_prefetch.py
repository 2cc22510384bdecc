"""The state on its way back in the backward pass: no sooner than there is room, never for a step that does not come."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from late_copies import Arrival, Device
from torch import Tensor, nn

from diagnose.kernels import offload_state
from diagnose.kernels.host_memory import optimizer_offload

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")

WIDTH, BLOCKS = 16, 6
STATE_BYTES = 2 * 4 * WIDTH * WIDTH
"""Of one parameter: two numbers in float32 for each element."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Tensors of the CPU are taken for those of a device."""
    found = Device()
    monkeypatch.setattr(optimizer_offload, "HostLane", found.lane)
    monkeypatch.setattr(optimizer_offload, "_is_worth_it", lambda tensor: tensor.numel() > 1)
    return found


class Program:
    """A training loop that keeps an account of what it would hold on a device.

    Its forward pass keeps a number of bytes for each block, which the backward pass gives back block by block.
    """

    def __init__(self, device: Device, share: float | None, kept_bytes: int = 4 * STATE_BYTES, **options: Any) -> None:
        torch.manual_seed(0)
        self.device, self.kept_bytes = device, kept_bytes
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))
        for weight in self.net.parameters():
            weight.register_post_accumulate_grad_hook(self._block_is_done)  # type: ignore[no-untyped-call]  # torch's
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1, **options)
        if share is not None:
            offload_state(self.optimizer, share, ahead=True)
        self.random = torch.Generator().manual_seed(1)

    def _block_is_done(self, _: Tensor) -> None:
        self.device.others_bytes -= self.kept_bytes

    def forward(self) -> Tensor:
        self.device.doing = "forward"
        loss: Tensor = self.net(torch.randn(4, WIDTH, generator=self.random)).square().mean()
        for _ in self.net:
            self.device.others_bytes += self.kept_bytes
            self.device.most_bytes = max(self.device.most_bytes, self.device.held_bytes())
        return loss

    def backward(self, loss: Tensor) -> None:
        self.device.doing = "backward"
        loss.backward()  # type: ignore[no-untyped-call]  # torch's

    def step(self) -> None:
        self.device.doing = "step"
        self.optimizer.step()

    def train(self, steps: int, micro_steps: int = 1) -> list[Tensor]:
        for _ in range(steps):
            self.optimizer.zero_grad()
            for _ in range(micro_steps):
                self.backward(self.forward())
            self.step()
        return [one.detach().clone() for one in self.net.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return not any(each.isnan().any() for each in one) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True, "amsgrad": True}], ids=str)
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_it_comes_back_beside_the_backward_pass_and_changes_no_bit(
    device: Device, share: float, options: dict[str, Any]
) -> None:
    moved = Program(device, share, **options).train(6)
    assert "backward" in device.copies_back and "forward" not in device.copies_back
    assert same(moved, Program(Device(), None, **options).train(6))


@pytest.mark.parametrize("kept_bytes", [STATE_BYTES // 8, STATE_BYTES, 2 * STATE_BYTES, 16 * STATE_BYTES])
def test_never_more_is_held_before_the_step_than_without(device: Device, kept_bytes: int) -> None:
    program = Program(device, 1.0, kept_bytes)
    for _ in range(5):
        program.optimizer.zero_grad()
        device.most_bytes = 0
        program.backward(program.forward())
        assert device.most_bytes == BLOCKS * kept_bytes
        program.step()


def test_who_does_not_ask_for_it_has_the_step_do_it(device: Device) -> None:
    program = Program(device, None)
    offload_state(program.optimizer)
    program.train(4)
    assert set(device.copies_back) == {"step"}


def test_gradients_that_arrive_on_another_stream_leave_it_to_the_step(device: Device) -> None:
    """Memory that is taken there is none of what the backward pass gave back on its own."""
    program = Program(device, 1.0)
    program.train(2)
    device.copies_back.clear()
    for _ in range(3):
        program.optimizer.zero_grad()
        loss = program.forward()
        device.stream = 7
        program.backward(loss)
        device.stream = 0
        program.step()
    assert set(device.copies_back) == {"step"}
    program.train(2)
    assert "backward" in device.copies_back


def test_where_the_backward_pass_leaves_no_room_the_step_brings_it_back(device: Device) -> None:
    Program(device, 1.0, kept_bytes=0).train(4)
    assert set(device.copies_back) == {"step"}


def test_of_gradients_that_are_accumulated_the_last_pass_brings_it_back(device: Device) -> None:
    program = Program(device, 1.0)
    program.train(3, micro_steps=3)
    device.copies_back.clear()
    program.optimizer.zero_grad()
    for micro_step in range(3):
        loss = program.forward()
        assert device.back_bytes == 0
        program.backward(loss)
        assert bool(device.copies_back) == (micro_step == 2)
    program.step()
    plain = Program(Device(), None)
    plain.train(4, micro_steps=3)
    assert same(program.train(2, micro_steps=3), plain.train(2, micro_steps=3))


def test_fewer_passes_than_ever_are_left_to_the_step(device: Device) -> None:
    """The last of an epoch may be cut short: nothing tells the second of three from it."""
    program = Program(device, 1.0)
    program.train(3, micro_steps=3)
    device.copies_back.clear()
    program.train(1, micro_steps=2)
    assert set(device.copies_back) == {"step"}
    device.copies_back.clear()
    program.train(2, micro_steps=3)
    assert "backward" in device.copies_back, "the step after next knows its passes again"


def test_a_step_that_is_left_out_finds_the_memory_empty_at_the_next_forward_pass(device: Device) -> None:
    program, plain = Program(device, 1.0), Program(Device(), None)
    program.train(3)
    plain.train(3)
    for each in (program, plain):
        each.optimizer.zero_grad()
        each.backward(each.forward())
    assert device.back_bytes > 0
    program.optimizer.zero_grad()
    assert device.back_bytes == 0
    plain.optimizer.zero_grad()
    assert same(program.train(3), plain.train(3))


def test_the_steps_that_a_gradient_scaler_leaves_out_change_no_bit(device: Device) -> None:
    def trained(program: Program) -> list[Tensor]:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for turn in range(8):
            program.optimizer.zero_grad()
            loss = program.forward() * (float("inf") if turn in (3, 4, 6) else 1.0)
            program.backward(scaler.scale(loss))
            program.device.doing = "step"
            scaler.step(program.optimizer)
            scaler.update()
        return [one.detach().clone() for one in program.net.parameters()]

    assert same(trained(Program(device, 1.0)), trained(Program(Device(), None)))
    assert "backward" in device.copies_back


def test_who_frees_gradients_after_the_forward_pass_has_the_step_do_it(device: Device) -> None:
    """Of such a program nothing tells in time that a step was left out."""
    program = Program(device, 1.0)
    for _ in range(5):
        loss = program.forward()
        program.optimizer.zero_grad()
        program.backward(loss)
        program.step()
    assert set(device.copies_back) == {"step"}


def test_who_fills_gradients_with_zeros_has_the_step_do_it(device: Device) -> None:
    program = Program(device, 1.0)
    for _ in range(5):
        program.optimizer.zero_grad(set_to_none=False)
        program.backward(program.forward())
        program.step()
    assert set(device.copies_back) == {"step"}


def test_what_finds_no_room_in_the_backward_pass_comes_with_the_step(device: Device) -> None:
    program, plain = Program(device, 1.0), Program(Device(), None)
    program.train(3)
    plain.train(3)
    for each in (program, plain):
        each.optimizer.zero_grad()
        device.room = False
        each.backward(each.forward())
        device.room = True
        each.step()
    device.copies_back.clear()
    assert same(program.train(3), plain.train(3))
    assert set(device.copies_back) == {"step"}, "memory in pieces stays in pieces"


def test_where_no_room_is_found_what_was_on_its_way_is_given_back(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward pass goes on, and may need what was taken before."""
    program, plain = Program(device, 1.0), Program(Device(), None)
    program.train(3)
    plain.train(3)
    copy_, begun = device.copy, len(device.copies_back)

    def copied(to: Tensor, source: Tensor) -> Arrival:
        device.room = device.doing != "backward" or len(device.copies_back) < begun + 2
        return copy_(to, source)

    monkeypatch.setattr(device, "copy", copied)
    for each in (program, plain):
        each.optimizer.zero_grad()
        each.backward(each.forward())
    assert device.copies_back[begun:] == ["backward"] * 2
    assert device.back_bytes == 0
    program.step()
    plain.step()
    assert same(program.train(2), plain.train(2))


def test_a_state_read_or_loaded_while_some_of_it_is_on_its_way_is_whole(device: Device) -> None:
    def trained(program: Program) -> list[Tensor]:
        program.train(3)
        program.optimizer.zero_grad()
        program.backward(program.forward())
        read = copy.deepcopy(program.optimizer.state_dict())
        program.step()
        program.train(2)
        program.optimizer.zero_grad()
        program.backward(program.forward())
        program.optimizer.load_state_dict(read)
        program.step()
        return program.train(2)

    moved = trained(Program(device, 1.0))
    assert "backward" in device.copies_back
    assert same(moved, trained(Program(Device(), None)))


def test_closures_change_no_bit(device: Device) -> None:
    def trained(program: Program) -> list[Tensor]:
        def closure() -> float:
            program.optimizer.zero_grad()
            loss = program.forward()
            program.backward(loss)
            return float(loss.item())

        for _ in range(3):
            program.optimizer.step(closure)
        program.train(3)
        program.optimizer.step(closure)
        return program.train(2)

    assert same(trained(Program(device, 0.7)), trained(Program(Device(), None)))


@pytest.mark.usefixtures("device")
def test_models_are_copied_pickled_and_compiled_as_ever() -> None:
    torch.manual_seed(0)
    net = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.AdamW(net.parameters())
    offload_state(optimizer, ahead=True)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for _ in range(4):
        optimizer.zero_grad()
        compiled(torch.randn(2, WIDTH)).sum().backward()
        optimizer.step()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other.weight, net.weight)
        other(torch.randn(2, WIDTH)).sum().backward()


def test_the_hooks_keep_no_optimizer_alive(device: Device) -> None:
    program = Program(device, 1.0)
    program.train(3)
    known = weakref.ref(next(iter(program.optimizer._optimizer_step_pre_hooks.values())).__self__)  # type: ignore[attr-defined]
    del program.optimizer
    gc.collect()
    assert known() is None
    program.backward(program.forward())


@needs_device
def test_on_a_device_no_step_holds_more_than_where_the_step_brings_it_back() -> None:
    def trained(ahead: bool) -> tuple[list[Tensor], int, int]:
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12))).cuda()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)  # with 0.1 it diverges, to NaN
        offload_state(optimizer, ahead=ahead)
        (states,) = [hook.__self__ for hook in optimizer._optimizer_step_pre_hooks.values()]  # type: ignore[attr-defined]
        peak = on_way_bytes = 0
        for turn in range(6):
            optimizer.zero_grad()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            net(torch.randn(8192, 1024, device="cuda")).square().mean().backward()
            on_way_bytes = states.on_way_bytes()
            if turn > 1:  # the state is there, and was away before
                peak = max(peak, torch.cuda.max_memory_allocated())
            optimizer.step()
        return [one.detach().cpu() for one in net.parameters()], peak, on_way_bytes

    early, early_peak, early_on_way = trained(ahead=True)
    gc.collect()
    torch.cuda.empty_cache()
    late, late_peak, late_on_way = trained(ahead=False)
    assert all(each.isfinite().all() for each in early)
    assert same(early, late)
    assert early_on_way > 0 == late_on_way
    assert early_peak <= late_peak
