"""Keeps what an optimizer holds of its parameters in pinned memory of the host, and on the device only as it steps.

    optimizer = torch.optim.AdamW(model.parameters())
    offload_state(optimizer, 0.5)

Between two steps the states of the first parameters, as many as hold that share of the bytes, are on the host. They go
there when a step is over, beside the next forward pass, and come back when a step begins. Values are those that they
were, bit for bit.

`offload_state(optimizer, ahead=True)` lets them come back beside the backward pass, as far as that has made room for
them (`prefetch_budget`), the rest when a step begins. It is for programs that have memory to spare, one optimizer, and
nothing large to do between the backward pass and the step: what holds more there, as the step of another optimizer
does, finds the state on the device already. Sharded gradients arrive on a stream of their own: there the step does it.

`optimizer.state_dict()` waits for copies that are under way, and can be loaded as ever. It has what is away as tensors
of the host: a sharded state that ranks gather whole over NCCL has to be moved to the device before. Small tensors, and
those of groups that are `capturable` or `differentiable`, stay where they are; so does all on the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.host_memory.host_lane import HostLane
from diagnose.kernels.host_memory.prefetch_budget import Ahead

SMALLEST_BYTES = 1 << 16
"""A smaller tensor costs more in launches than its memory is worth."""
MARKS = 16
"""Parameters at whose gradients it is looked how much may come back: to ask the allocator takes some 10 µs."""

_with_states: weakref.WeakSet[Any] = weakref.WeakSet()


def offload_state(optimizer: torch.optim.Optimizer, share: float = 1.0, *, ahead: bool = False) -> None:
    """Keep this share of the bytes of an optimizer's state on the host between steps, from its next step on.

    With `ahead` it begins to come back while the backward pass still runs, where that has made room.

    Raises:
        ValueError: a share that is not between 0 and 1, or an optimizer that was given here before.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be between 0 and 1, not {share}")
    if optimizer in _with_states:
        raise ValueError("the state of this optimizer is offloaded already")
    _with_states.add(optimizer)
    states = _States(share, ahead)
    optimizer.register_step_pre_hook(states.bring_back)
    optimizer.register_step_post_hook(states.send_away)
    optimizer.register_state_dict_pre_hook(states.arrive)
    optimizer.register_load_state_dict_pre_hook(states.arrive)


@dataclass(eq=False)
class _Away:
    """A tensor of the state that is on the host."""

    parameter: Tensor
    name: str
    host: Tensor
    device: torch.device
    buffer: Tensor
    event: Any
    arriving: tuple[Tensor, Any] | None = None
    """The tensor on the device that is being written, before the step puts it in its place; and when it is there."""

    def load(self, lane: HostLane) -> None:
        """Begin to bring it back. The host's memory stays as it is until a step comes for it."""
        if self.arriving is None:
            size, stride = self.host.size(), self.host.stride()
            local = torch.empty_strided(size, stride, dtype=self.host.dtype, device=self.device)
            self.arriving = local, lane.copy(local, self.host)


class _States:
    """The tensors of one optimizer; its hooks."""

    def __init__(self, share: float, ahead: bool) -> None:
        self._share = share
        self._looks_ahead = ahead
        self._away: list[_Away] = []
        self._lanes: dict[torch.device, HostLane] = {}
        self._was_read = False
        self._ahead: Ahead | None = None
        self._stream: int | None = None
        """The one that steps: memory of another one's is not that which the backward pass has given back."""

    def send_away(self, optimizer: torch.optim.Optimizer, _args: Any = None, _kwargs: Any = None) -> None:
        """Send the state to the host after a step."""
        found = list(_movable(optimizer))
        if found and self._looks_ahead:
            self._looks_ahead = False
            self._mark(found)
        left = self._share * sum(_size(_local(tensor)) for _, _, tensor in found)
        for parameter, name, tensor in found:
            if left <= 0:
                break
            local = _local(tensor)
            left -= _size(local)
            lane = self._lane(local.device)
            buffer = lane.take(_size(local))
            host = buffer.view(local.dtype).as_strided(local.size(), local.stride())
            event = lane.copy(host, local)
            _put(optimizer, parameter, name, tensor, host)
            self._away.append(_Away(parameter, name, host, local.device, buffer, event))
        if self._ahead is not None:
            self._ahead.stepped()
            self._stream = self._lane(self._away[0].device).current() if self._away else None

    def bring_back(self, optimizer: torch.optim.Optimizer, _args: Any = None, _kwargs: Any = None) -> None:
        """Before a step. What was replaced meanwhile, as by `load_state_dict`, stays as it is.

        Its buffer is not used again: a `state_dict()` from before may still hold it. Nor is any that was read since the
        last step: a thread may be writing it to a file. Where there is no room for all, the rest is brought back before
        the next step.
        """
        if self._ahead is not None:
            self._ahead.stepping(self.on_way_bytes())
        arrived = []
        try:
            while self._away:
                one = self._away[-1]
                tensor = optimizer.state.get(one.parameter, {}).get(one.name)
                if isinstance(tensor, Tensor) and _local(tensor) is one.host:
                    lane = self._lane(one.device)
                    one.load(lane)
                    assert one.arriving is not None  # as `load` leaves it
                    local, event = one.arriving
                    arrived.append((lane, event))
                    _put(optimizer, one.parameter, one.name, tensor, local)
                    if not self._was_read:
                        lane.give(one.buffer)
                self._away.pop()
            self._was_read = False
        finally:
            for lane, event in arrived:
                lane.wait(event)

    def bring_some_back(self, place: int, parameter: Tensor) -> None:
        """Bring state back during a backward pass as far as memory allows; the step brings back the rest."""
        if self._ahead is None or not self._away or torch.compiler.is_compiling() or _is_capturing(parameter):
            return
        if self._lane(self._away[0].device).current() != self._stream:
            return
        on_way = self.on_way_bytes()
        room = self._ahead.marked(place, parameter.grad, on_way)
        for one in reversed(self._away):
            if one.arriving is not None:
                continue
            on_way += _size(one.host)
            if on_way > room:
                return
            try:
                one.load(self._lane(one.device))
            except torch.OutOfMemoryError:  # the allocator's room is in pieces: it will be no other the next time
                self._ahead = None
                self.drop()  # the pass may need what was taken before
                return

    def drop(self) -> None:
        """No step comes for what was brought back: what the host holds is still the state."""
        for one in self._away:
            one.arriving = None

    def _mark(self, found: list[tuple[Tensor, str, Tensor]]) -> None:
        """Look from now on at gradients of some parameters, evenly over all; not where they are on several devices."""
        devices = {_local(tensor).device for _, _, tensor in found}
        if len(devices) > 1:
            return
        self._ahead = Ahead(self._lane(*devices).held_bytes, self.drop)
        parameters = [one for one in dict.fromkeys(one for one, _, _ in found) if one.is_leaf and one.requires_grad]
        for place in sorted({at * (len(parameters) - 1) // (MARKS - 1) for at in range(MARKS)} if parameters else ()):
            hook = partial(_bring_some_back, weakref.ref(self), place)
            parameters[place].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch's

    def on_way_bytes(self) -> int:
        """Bytes of state that are on their way back to the device before their step."""
        return sum(_size(one.host) for one in self._away if one.arriving is not None)

    def arrive(self, _optimizer: torch.optim.Optimizer, _loaded: Any = None) -> None:
        """Before somebody reads the state, or loads one that may be what was read before.

        Who copies a state to the host before a thread saves it gets what is there already, uncopied: from now on these
        buffers are the reader's.
        """
        self._was_read = True
        for one in self._away:
            one.event.synchronize()

    def _lane(self, device: torch.device) -> HostLane:
        if device not in self._lanes:
            self._lanes[device] = HostLane(device)
        return self._lanes[device]


def _bring_some_back(states: weakref.ref[_States], place: int, parameter: Tensor) -> None:
    """A parameter's hook: it keeps no optimizer alive."""
    known = states()
    if known is not None:
        known.bring_some_back(place, parameter)


def _is_capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _movable(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Parameter, name and tensor of what is worth moving, in the order of the parameters."""
    for group in optimizer.param_groups:
        if group.get("capturable") or group.get("differentiable"):
            continue
        for parameter in group["params"]:
            for name, tensor in optimizer.state.get(parameter, {}).items():
                if isinstance(tensor, Tensor) and _is_worth_it(_local(tensor)):
                    yield parameter, name, tensor


def _is_worth_it(tensor: Tensor) -> bool:
    """Whether a tensor lies on a device, is large, and has its memory to itself."""
    own = tensor.untyped_storage().nbytes() == _size(tensor) and tensor.storage_offset() == 0
    return tensor.is_cuda and _size(tensor) >= SMALLEST_BYTES and own


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor that may be sharded."""
    return getattr(tensor, "_local_tensor", tensor)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _put(optimizer: torch.optim.Optimizer, parameter: Tensor, name: str, tensor: Tensor, local: Tensor) -> None:
    """Let `local` stand for what this rank holds of a tensor of the state."""
    if _local(tensor) is tensor:
        optimizer.state[parameter][name] = local
    else:
        tensor._local_tensor = local  # type: ignore[attr-defined]
