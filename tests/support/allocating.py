"""Histories of allocators for tests: written down event by event, or drawn at random with what was held after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from diagnose.trace import Trace
from diagnose.trace.schema import Blocks, BlockState, MemoryAction, MemoryEvents

ALLOC, REQUESTED, FREE = MemoryAction.ALLOC, MemoryAction.FREE_REQUESTED, MemoryAction.FREE
TAKE, RETURN, LACK = MemoryAction.SEGMENT_ALLOC, MemoryAction.SEGMENT_FREE, MemoryAction.OUT_OF_MEMORY
MIB = 1 << 20
NONE = np.empty(0, np.int64)

Event = tuple[MemoryAction, int, int]


def history(events: Sequence[Event], **more: Any) -> MemoryEvents:
    action, address, size = zip(*events, strict=True) if events else ((), (), ())
    columns = {"time_ns": range(len(events)), "action": action, "address": address, "size_bytes": size}
    return MemoryEvents.build({**columns, "device": [0] * len(events), **more})


def blocks(held: dict[int, int], **more: Any) -> Blocks:
    count = len(held)
    columns = {"address": list(held), "size_bytes": list(held.values()), "requested_bytes": list(held.values())}
    return Blocks.build({**columns, "state": [BlockState.HELD] * count, "device": [0] * count, **more})


@st.composite
def recorded(draw: st.DrawFn) -> tuple[Trace, list[dict[int, int]], bool]:
    """A ring that lost its beginning, with the blocks at its end; what was held; whether it is whole."""
    held: dict[int, int] = {}
    events: list[Event] = []
    states: list[dict[int, int]] = [{}]
    for _ in range(draw(st.integers(0, 60))):
        if draw(st.booleans()) and held:
            address = draw(st.sampled_from(sorted(held)))
            size = held.pop(address)
            events.append((REQUESTED, address, size))
            states.append(dict(held))
            events.append((FREE, address, size))
        else:
            address = draw(st.integers(0, 12).filter(lambda one: one not in held))
            held[address] = draw(st.integers(1, 1000))
            events.append((ALLOC, address, held[address]))
        states.append(dict(held))
        if len(held) == 13:
            break
    lost = draw(st.integers(0, len(events)))
    trace = Trace(source="", memory=history(events[lost:]), blocks=blocks(held))
    return trace, states[lost:], lost == 0
