"""Copies between host and device that nothing hides.

What it finds
    Copies to the device, and asynchronous ones from it, during which the device neither computes nor communicates:
    parameters or activations offloaded to the host, batches copied on the stream that computes.

Why it costs
    The engines that copy work beside those that compute. A copy that is issued early enough, on a stream of its own and
    from pinned memory, costs the step nothing; one on which the next kernel waits costs its whole length.

What proves it
    Copy time outside compute and collectives. The recoverable time is an upper bound: all of it goes only if the bytes
    need not move at all. What hiding alone gives back is said beside it: the device can copy one way, copy the other
    way and compute at once, so that a step takes at least as long as the longest of the three.

    Copies from pageable memory are `pageable-copies`, results that the program waits for `device-to-host-copies`.
    Copies within the device are its own work.

What fixes it
    `non_blocking=True` (`nonblocking-copies`); offloading less (`state-on-device`); by hand, copying on a stream of its
    own, one batch or layer ahead.

Thresholds
    UNTOLD (2 %): a share of the step in copies of unknown direction from which on the recording cannot tell; below it,
    no finding would be more than a note (severity low begins there).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
)
from diagnose.trace.schema import CopyDirection, Memory, WorkKind

UNTOLD = 0.02

_WAYS = ((CopyDirection.HOST_TO_DEVICE, "to the device"), (CopyDirection.DEVICE_TO_HOST, "to the host"))


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Copy time outside compute and collectives."""
    if not measures.has_device:
        yield CannotTell("exposed-copies", "a recording of the device's work")
        return
    device = measures.trace.device
    if not (measures.rows & (device.kind == WorkKind.KERNEL)).any():
        yield CannotTell("exposed-copies", "the kernels that copies could hide behind, besides the copies")
        return
    unknown = measures.rows_within_steps((device.kind == WorkKind.COPY) & (device.direction == CopyDirection.UNKNOWN))
    if measures.share(_exposed(measures, unknown)) >= UNTOLD:
        yield CannotTell("exposed-copies", "the direction of the copies: many of them may stay on the device")
    to_device = (device.direction == CopyDirection.HOST_TO_DEVICE) & (device.host_memory != Memory.PAGEABLE)
    to_host = (device.direction == CopyDirection.DEVICE_TO_HOST) & (device.host_memory == Memory.PINNED)
    rows = measures.rows_within_steps((device.kind == WorkKind.COPY) & (to_device | to_host))
    exposed = _exposed(measures, rows)
    gain = recoverable_ns(measures, exposed)
    if gain == 0:
        return
    hidden = min(_by_hiding_ns(measures, exposed), gain)
    alone = int(measures.per_step(exposed).sum())
    steps = measures.step_count
    yield Claim(
        summary=f"copies {_described(measures, rows, exposed)} take {of_traced_step(measures, exposed)} "
        f"in which the device does nothing else",
        recoverable_ns=gain,
        claims=exposed,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("exposed copy time", alone // steps, "ns", tuple(rows.tolist())),
            Evidence("by hiding alone", hidden // steps, "ns"),
            Evidence("copies per step", len(rows) / steps, "count"),
            Evidence("copied per step", _bytes(measures, rows) // steps, "bytes"),
        ],
        where=places_of_ops(measures, measures.op_of_work[rows]) or measures.places(_called(measures, rows)),
        confirm=f"a trial that copies ahead of use: hiding gives back at most {format_ns(hidden / steps)} per step, "
        "copying less the rest",
    )


def _exposed(measures: Measures, rows: np.typing.NDArray[np.int64]) -> Intervals:
    return measures.time_of(rows) - measures.compute - measures.comm


def _by_hiding_ns(measures: Measures, exposed: Intervals) -> int:
    """Return what all steps together would lose if copies each way and all other work ran at once, idle time
    unchanged."""
    device = measures.trace.device
    lanes = [measures.per_step(measures.compute | measures.comm)]
    for way, _ in _WAYS:
        copies = measures.rows_within_steps((device.kind == WorkKind.COPY) & (device.direction == way))
        lanes.append(measures.per_step(measures.time_of(copies)))
    out = measures.per_step(exposed)
    longest = np.maximum.reduce(lanes)
    return int(np.clip(lanes[0] + out - longest, 0, out).sum())


def _described(measures: Measures, rows: np.typing.NDArray[np.int64], exposed: Intervals) -> str:
    """Return which way most of the exposed time goes, and between which memories."""
    device = measures.trace.device
    spent = {}
    for way, words in _WAYS:
        mine = rows[device.direction[rows] == way]
        spent[words] = (measures.time_of(mine) & exposed).total_ns
    words = " and ".join(word for word, time in spent.items() if time > UNTOLD * exposed.total_ns)
    known = (device.host_memory[rows] == Memory.PINNED).all()
    size = _bytes(measures, rows) / measures.step_count
    return f"{words}{' (pinned)' if known else ''}{f', {format_bytes(size)},' if size else ''}"


def _bytes(measures: Measures, rows: np.typing.NDArray[np.int64]) -> int:
    return int(np.maximum(measures.trace.device.size_bytes[rows], 0).sum())


def _called(measures: Measures, rows: np.typing.NDArray[np.int64]) -> Intervals:
    """The host's time in the calls that launched some work: the lines that copy, whenever the device gets to it."""
    rows = rows[measures.launches.linked[rows]]
    return Intervals.of_rows(measures.launches, rows)


_drawn = partial(drawn, repeat=4)
_FIRES = (
    # A batch from pinned memory, but on the stream that computes.
    _drawn("""
        host: colssssssssssss
        gpu :  HHHHHHkkkkkkkk
        step:                |
    """),
    # Offloaded state comes and goes, each way exposed in part.
    _drawn("""
        host : c olc sssssssss
        gpu  :  HHHHkkkkkkkk
        gpu 7:          DDDDDD
        step :                |
    """),
)

_SILENT = (
    # The next batch is copied while this one is computed.
    _drawn("""
        gpu  : kkkkkkkkkkkk
        gpu 7:  HHHH
        step :             |
    """),
    # … or while gradients are exchanged.
    _drawn("""
        gpu   : kkkkkk
        gpu 5 :       cccccc
        gpu 7 :       HHHH
        step  :             |
    """),
    # Copies within the device are work of its own.
    _drawn("""
        gpu : ttttkkkkkkkk
        step:             |
    """),
    # Exposed, but from pageable memory, or waited for: those have rules of their own.
    _drawn("""
        host: cccccol     cccccc
        gpu :  hhhh  kkkkk  dddd
        step:                    |
    """),
)

RULE = Rule(
    "exposed-copies",
    check,
    fixers=("nonblocking-copies", "state-on-device"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=45,
    symptom=Symptom.DATA,
)
