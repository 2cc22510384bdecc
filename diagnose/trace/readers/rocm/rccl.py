"""Finds the kernels of collectives from the RCCL calls around their launches; their names do not tell.

A kernel belongs to the RCCL call in which it was launched, on the launching thread. Calls between `ncclGroupStart` and
`ncclGroupEnd` launch nothing until the group ends: what is launched there is what all of them asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.trace import Collective
from diagnose.trace.readers.rocm.meaning import rccl_kind, rccl_type
from diagnose.trace.schema import MISSING, DeviceWork, HostCalls, Int32, WorkKind

_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_SIZED = {"all_reduce", "broadcast", "reduce", "send_recv"}
"""What `count` elements are the whole message of; a gather's depends on the number of ranks, which no call names."""
_OWN_KERNELS = "__amd_rocclr_"
"""The runtime's own fills and copies, which a collective's first call needs too."""


@dataclass(frozen=True, slots=True)
class RcclCall:
    """One call of RCCL on the host."""

    start_ns: int
    end_ns: int
    thread: int
    function: str
    correlation: int
    arguments: Mapping[str, str] | None = None
    """The arguments by name, where the profiler wrote them down."""


def collectives_of(
    rccl: Sequence[RcclCall], device: DeviceWork, calls: HostCalls, names: Sequence[str]
) -> tuple[tuple[Collective, ...], Int32]:
    """The collectives, and for each row of device work its index among them or -1."""
    rows = np.full(len(device), MISSING, np.int32)
    within = _by_correlation(_spans(rccl), calls)
    if not within:
        return (), rows
    own = [number for number, name in enumerate(names) if name.startswith(_OWN_KERNELS)]
    launched = np.isin(device.correlation, list(within)) & (device.kind == WorkKind.KERNEL)
    found: dict[Collective, int] = {}
    for row in np.flatnonzero(launched & ~np.isin(device.name, own)).tolist():
        rows[row] = found.setdefault(within[int(device.correlation[row])], len(found))
    return tuple(found), rows


Spans = list[tuple[RcclCall, Collective]]


def _spans(rccl: Sequence[RcclCall]) -> dict[int, Spans]:
    """Return the launching calls of each thread in order, with the collectives that they launch."""
    spans: dict[int, Spans] = {}
    depth: dict[int, int] = {}
    grouped: dict[int, list[Collective]] = {}
    for call in sorted(rccl, key=lambda call: call.start_ns):
        thread = call.thread
        if call.function == _GROUP_START:
            depth[thread] = depth.get(thread, 0) + 1
            continue
        collective = _collective(call)
        if collective is not None and depth.get(thread, 0) > 0:
            grouped.setdefault(thread, []).append(collective)
        elif collective is not None:
            spans.setdefault(thread, []).append((call, collective))
        elif call.function == _GROUP_END:
            depth[thread] = max(0, depth.get(thread, 0) - 1)
            if depth[thread] == 0 and (members := grouped.pop(thread, [])):
                spans.setdefault(thread, []).append((call, _of_group(members)))
    return spans


def _by_correlation(spans: Mapping[int, Spans], calls: HostCalls) -> dict[int, Collective]:
    """Return the collective of each correlation id: launched by RCCL's call itself, or by a call that it made."""
    found = {call.correlation: collective for span in spans.values() for call, collective in span}
    for thread, span in spans.items():
        rows = np.flatnonzero(calls.thread == thread)
        start = calls.start_ns[rows]
        # RCCL's calls do not nest on a thread, groups aside: the last one that began is the one that runs.
        place = np.searchsorted([call.start_ns for call, _ in span], start, side="right") - 1
        inside = (place >= 0) & (start <= np.asarray([call.end_ns for call, _ in span])[place])
        for row, at in zip(rows[inside].tolist(), place[inside].tolist(), strict=True):
            found.setdefault(int(calls.correlation[row]), span[at][1])
    return {correlation: collective for correlation, collective in found.items() if correlation > 0}


def _of_group(members: Sequence[Collective]) -> Collective:
    kinds = {member.kind for member in members}
    sizes = [member.size_bytes for member in members]
    types = {member.dtype for member in members}
    return Collective(
        kind=kinds.pop() if len(kinds) == 1 else "group",
        size_bytes=sum(sizes) if min(sizes) >= 0 else MISSING,
        dtype=types.pop() if len(types) == 1 else None,
    )


def _collective(call: RcclCall) -> Collective | None:
    kind = rccl_kind(call.function)
    if kind is None:
        return None
    arguments = call.arguments or {}
    element = rccl_type(arguments.get("datatype", ""))
    count = arguments.get("count", "")
    sized = kind in _SIZED and element is not None and count.isdecimal() and len(count) < 15
    return Collective(
        kind=kind,
        size_bytes=int(count) * element[1] if sized and element else MISSING,
        dtype=element[0] if element else None,
    )
