"""Has the allocator of the device note who asks for memory, and takes a snapshot of what is held.

    CUDA is first used → every event → … end of step FIRST → nothing is noted → … the traced window …
        → every event, in the steps after it → snapshot → nothing is noted, unless what steps leave behind grows

No counted step carries any of it: an allocation that is noted costs the host 3 µs (benchmarks/out_of_memory.py). When
memory runs out, the allocator calls before it raises, while all that it could not make room beside is still held; the
snapshot of that moment is written if the program ends of it. Where the program has the allocator note things for
itself, nothing of this is switched.
"""

from __future__ import annotations

import functools
import pickle
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ...records import MEMORY
from ..guard import guarded
from ..process_hooks import ProcessHooks
from ..size_limit import unsignalled
from ..transparency import unseen

FIRST = 3
"""Steps until parameters, gradients, optimizer state and a whole step's activations have been asked for."""
MOST_EVENTS = 100_000
"""The last ones are kept; each takes some hundred bytes of the host."""
GROWN = 0.1
GROWN_BYTES = 256 << 20
"""Bytes by which steps hold more at their end than they did after the window, for memory to be running out."""
GROWING = 100
"""Steps that are noted then; what goes on to grow is noted again."""
SNAPSHOTS = 8
"""Moments without memory that are looked at, whatever that costs; a program may try sizes until one fits."""
MOST_SHARE = 0.02
"""The share of the time since the first of them that further ones may take."""
_SWITCHES = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Switches of the allocator; a torch without devices has none."""
KEY = "diagnose"
"""The entry that is added to a snapshot: why it was taken, and what pieces serve as."""


class Allocations:
    """The recorded allocations of one process."""

    def __init__(self, hub: ProcessHooks) -> None:
        self._hub = hub
        self._torch: Any = None
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._record: Callable[..., None] | None = None
        """Has the allocator note things; None until a device is used, and for good where the program does it itself."""
        self._noting = False
        self._theirs = False
        """The program has used the allocator's switch."""
        self._ours = False
        """The call of the allocator's switch that goes on is one of ours."""
        self._in_steps_after = False
        self._held_bytes: int | None = None
        """Bytes held at the end of the steps after the window, or of those that were noted since."""
        self._noted_until: int | None = None
        self._lack: bytes | None = None
        self._lacks = 0
        self._since = 0.0
        self._spent_s = 0.0
        self.step_ended: Callable[[int, int | None], None] = guarded(self._step_ended)
        """Right after step `index`, with what is held now where that was read."""

    def install(self, torch: Any) -> None:
        """Begin as soon as the program uses a device: to begin sooner would make it use one."""
        self._torch = torch
        self._note_optimizers(torch.optim.Optimizer)
        guarded(self._leave_to_program)(torch)
        lazily = getattr(torch.cuda, "_lazy_call", None)
        if lazily is not None:
            lazily(guarded(self._begin))

    def begin_history(self) -> None:
        """Have the steps noted that begin here."""
        self._in_steps_after = True
        self._note()

    def end_history(self) -> None:
        """Write what was noted since, with what is held now."""
        if self._noting and self._in_steps_after:
            snapshot = self._snapshot({"reason": "steady"})
            self._rest()
            self._write(snapshot)
            self._held_bytes = self._torch.cuda.memory_allocated()
        self._in_steps_after = False

    def save_lack(self) -> None:
        """Write the last moment at which memory ran out; for a program that ends of it."""
        self._rest()
        if self._lack is not None:
            self._write(self._lack)

    def _step_ended(self, index: int, held_bytes: int | None) -> None:
        if index + 1 == FIRST:
            self._rest()
        elif self._noted_until is not None:
            if index >= self._noted_until:
                self._rest()
                self._noted_until, self._held_bytes = None, held_bytes
        elif self._held_bytes and held_bytes and held_bytes > self._held_bytes * (1 + GROWN) + GROWN_BYTES:
            self._noted_until = index + GROWING
            self._note()

    # -- on the allocator's side --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._torch._C._cuda_attach_out_of_memory_observer(guarded(self._ran_out))
        if not self._theirs and not self._torch._C._cuda_isHistoryEnabled():
            self._record = self._torch.cuda.memory._record_memory_history
            self._note()

    def _leave_to_program(self, torch: Any) -> None:
        """Stop using the allocator's switch once the program has used it, by whatever name it has it."""
        for name in _SWITCHES:
            if hasattr(torch._C, name):
                setattr(torch._C, name, self._left_to_program(getattr(torch._C, name)))

    def _left_to_program(self, switch: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
        @functools.wraps(switch)
        def seen(*args: Any, **kwargs: Any) -> Any:
            if not self._ours:
                self._theirs, self._record, self._noting = True, None, False
            return switch(*args, **kwargs)

        return seen

    def _note(self) -> None:
        """Have every event noted, and who asks for memory."""
        if self._record is not None:
            self._switch("all", context="alloc", stacks="python", max_entries=MOST_EVENTS)
            self._noting = True

    def _rest(self) -> None:
        """Have nothing noted any more; the stacks of what is held stay."""
        if self._noting and self._record is not None:
            self._switch(None)
        self._noting = False

    def _switch(self, *args: Any, **kwargs: Any) -> None:
        self._ours = True
        try:
            if self._record is not None:
                self._record(*args, **kwargs)
        finally:
            self._ours = False

    def _ran_out(self, device: int, wanted_bytes: int, _most_bytes: int, free_bytes: int) -> None:
        """The allocator found no room; on the thread that asked."""
        begin = time.monotonic()
        self._since = self._since or begin
        if self._lacks >= SNAPSHOTS and self._spent_s > MOST_SHARE * (begin - self._since):
            return
        self._lacks += 1
        self._lack = None  # two of them at a time would be one too many
        self._lack = self._snapshot(
            {"reason": "out of memory", "device": device, "wanted_bytes": wanted_bytes, "free_bytes": free_bytes}
        )
        self._spent_s += time.monotonic() - begin

    def _snapshot(self, why: dict[str, Any]) -> bytes:
        begin = time.perf_counter_ns()
        taken = self._torch.cuda.memory._snapshot()
        properties = self._torch.cuda.get_device_properties(self._torch.cuda.current_device())
        taken[KEY] = {
            **why,
            "time_ns": time.time_ns(),
            "capacity_bytes": int(properties.total_memory),
            "pieces": guarded(self._pieces)() or [],
            "cost_ns": time.perf_counter_ns() - begin,
        }
        return pickle.dumps(taken, protocol=4)

    def _pieces(self) -> list[list[Any]]:
        return [[*piece] for optimizer in list(self._optimizers) for piece in pieces_of(optimizer)]

    def _write(self, snapshot: bytes) -> None:
        sibling = self._hub.folder / f".{MEMORY}.{self._hub.pid}.tmp"
        with unsignalled():
            sibling.write_bytes(snapshot)
            sibling.replace(self._hub.folder / MEMORY)

    def _note_optimizers(self, optimizer_class: Any) -> None:
        init = optimizer_class.__init__
        add = guarded(self._optimizers.add)

        @unseen
        @functools.wraps(init)
        def noted_init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            add(optimizer)

        optimizer_class.__init__ = noted_init


def pieces_of(optimizer: Any) -> Iterator[tuple[int, int, str]]:
    """Address, bytes and role of what an optimizer knows: its parameters, their gradients, what it keeps of them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield from _piece(parameter, "parameter")
            yield from _piece(parameter.grad, "gradient")
    for kept in optimizer.state.values():
        for value in kept.values() if isinstance(kept, dict) else ():
            yield from _piece(value, "optimizer_state")


def _piece(tensor: Any, role: str) -> Iterator[tuple[int, int, str]]:
    """Address, size and role of a tensor's memory on a device; nothing for anything else. Of a sharded tensor, the
    local part.
    """
    tensor = getattr(tensor, "_local_tensor", tensor)
    device = getattr(tensor, "device", None)
    if getattr(device, "type", None) != "cuda" or not hasattr(tensor, "untyped_storage"):
        return
    size = tensor.numel() * tensor.element_size()
    if size:
        yield tensor.data_ptr(), size, role
