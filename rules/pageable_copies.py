"""Copies to the device from pageable memory, which the step waits for.

What it finds
    Host-to-device copies whose source is ordinary, swappable memory, as far as nothing hides them: the device copies
    while nothing computes, or idles while the host is stuck in the copy call.

Why it costs
    The device can only read pinned memory. A pageable source is staged piece by piece through a pinned buffer by the
    host, which is slower, blocks the launching thread, and cannot overlap with the host's next launches.

What proves it
    The source kind in the copy's record; copy time outside compute and collectives; idle time within the copy's launch
    call and the wait that follows it. An upper bound: a pinned copy still takes its transfer time, hidden or not.

What fixes it
    `pin_memory=True` in the loader (`loader-pin`, `loader-workers`) and `non_blocking=True` (`nonblocking-copies`).

Thresholds
    None.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    CopyDirection,
    Evidence,
    Measures,
    Memory,
    Rule,
    drawn,
    format_bytes,
    format_ns,
    recoverable_ns,
)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Exposed pageable copies and the idle time around their calls."""
    if not measures.has_device:
        yield CannotTell("pageable-copies", "a recording of the device's work")
        return
    device = measures.trace.device
    to_device = device.direction == CopyDirection.HOST_TO_DEVICE
    copies = measures.rows_within_steps(to_device)
    if len(copies) and (device.host_memory[copies] == Memory.UNKNOWN).all():
        yield CannotTell("pageable-copies", "whether the copies' host memory is pinned")
        return
    rows = measures.rows_within_steps(to_device & (device.host_memory == Memory.PAGEABLE))
    if len(rows) == 0:
        return
    exposed = measures.time_of(rows) - measures.compute - measures.comm
    claims = exposed | (measures.idle_of("launch", "sync", "dispatch") & measures.pageable_waits)
    gain = recoverable_ns(measures, claims)
    if gain == 0:
        return
    size = int(device.size_bytes[rows][device.size_bytes[rows] > 0].sum())
    lengths = int((device.end_ns - device.start_ns)[rows].sum())
    yield Claim(
        summary=f"the step waits {format_ns(gain / measures.step_count)} for copies from pageable memory "
        f"({len(rows) / measures.step_count:.3g} per step, {format_bytes(size / measures.step_count)})",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("pageable copies per step", len(rows) / measures.step_count, "count", tuple(rows[:3].tolist())),
            Evidence("copied per step", size // measures.step_count, "bytes"),
            Evidence("bandwidth", size / lengths if lengths else 0.0, "GB/s"),
        ],
        where=measures.places(claims),
        confirm="a trial with pinned memory and non-blocking copies",
    )


_FIRES = (
    # The copy blocks its call and stands alone on the device.
    drawn(
        """
        host: cccccol
        gpu :  hhhh  kkkkkkkk
        step:                |
        """,
        repeat=4,
    ),
)

_SILENT = (
    # The same copy under compute of another stream.
    drawn(
        """
        host : ol ccccc
        gpu  :   kkkkkkkkkk
        gpu 7:     hhhh
        step :             |
        """,
    ),
    # Exposed, but from pinned memory.
    drawn(
        """
        host: c ol
        gpu :  HHHHkkkkkkkk
        step:              |
        """,
        repeat=4,
    ),
)

RULE = Rule(
    "pageable-copies",
    check,
    fixers=("loader-pin", "loader-workers", "nonblocking-copies"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=15,
)
