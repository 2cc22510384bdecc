"""`nn.DataParallel` copies the model to all devices in every step, and drives them all from one process.

What it finds
    Forward passes of `nn.DataParallel`: a batch is scattered, the parameters are broadcast, outputs are gathered on the
    first device and gradients are added up there.

Why it costs
    Weights travel to every device in every step, outputs and gradients back to the first. One Python interpreter
    launches for all devices, in threads that hold its lock in turn. A process for each device with
    DistributedDataParallel keeps the weights where they are and reduces gradients beside the backward pass.

What proves it
    PyTorch's mark `DataParallel.forward`, or the operators `Broadcast`, `Scatter` and `Gather` with their backward
    ones. The recoverable time is an upper bound: the time of the step in which the busiest device does not compute,
    waits for data aside.

What fixes it
    `DistributedDataParallel` (`use-ddp`).

Thresholds
    TWICE (2): the least number of devices that must have worked; on one, the wrapper does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.names import named
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    Trace,
    drawn,
    format_ns,
)

TWICE = 2
_FORWARD = re.compile(r"^DataParallel\.forward$")
_REPLICATES = re.compile(r"^(Broadcast|BroadcastBackward|ReduceAddCoalesced|torch::cuda::broadcast_coalesced)$")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Steps of a replicated module."""
    trace = measures.trace
    forward = named(trace.names, trace.ranges.name, _FORWARD)
    replicas = named(trace.names, trace.ops.name, _REPLICATES)
    devices = len(np.unique(trace.device.device)) if measures.has_device else 0
    if devices < TWICE or not (forward.any() or replicas.any()) or measures.step_count == 0:
        return
    lost = measures.counted - measures.compute - measures.idle["input"]
    if not lost.total_ns:
        return
    spans = Intervals.of_rows(trace.ranges, forward)
    if not len(spans):
        spans = Intervals.of_rows(trace.ops, replicas)
    steps = measures.step_count
    sites = [site for site in trace.sites if site.kind == "DataParallel"]
    yield Claim(
        summary=f"nn.DataParallel copies the model to {devices} devices in every step and drives them from one "
        f"process: the busiest computes for {of_traced_step(measures, measures.counted - lost)}",
        recoverable_ns=lost.total_ns,
        claims=lost,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("devices of one process", devices, "count"),
            Evidence("step in which the busiest device does not compute", lost.total_ns // steps, "ns"),
            Evidence("forward passes of the wrapper per step", len(spans) / steps, "count"),
        ],
        where=[Place.at(site) for site in sites] or measures.places(spans),
        confirm=f"a trial with a process for each device; at best {format_ns(lost.total_ns / steps)} per step go",
    )


def _on_two(trace: Trace) -> Trace:
    """Return what is drawn on another stream, on another device."""
    device = (trace.device.stream != 0).astype(np.int32)
    return replace(trace, device=replace(trace.device, device=device))


_FIRES = (
    _on_two(
        drawn(
            """
            host  : bbbbololol
            gpu   :      kkk  kkk
            gpu 7 :        kkk
            opt   :           O
            """,
            repeat=4,
            ops={"b": "Broadcast", "o": "aten::op"},
        )
    ),
)

_SILENT = (
    # Two devices of one process, without the wrapper: a pipeline.
    _on_two(
        drawn(
            """
            host  :    olol
            gpu   :     kkk
            gpu 7 :        kkk
            opt   :            O
            """,
            repeat=4,
        )
    ),
    # Wrapped, with one device to use.
    drawn(
        """
        host: bbbbolol
        gpu :      kkmmm
        opt :           O
        """,
        repeat=4,
        ops={"b": "Broadcast", "o": "aten::op"},
        kernels={"m": "gemm"},
    ),
)

RULE = Rule(
    "data-parallel-module", check, fixers=("use-ddp",), fires=_FIRES, silent=_SILENT, nearness=30, symptom=Symptom.RANKS
)
