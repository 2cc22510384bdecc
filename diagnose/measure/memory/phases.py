"""The training phase (forward, backward, optimizer) and the step of each allocator event.

From who asked, where the history knows it: what autograd's own threads ask for has no Python line, and what a module's
call asks for has one. Else from the time, where operators were recorded beside. What the program asks for outside of
all of them belongs to the forward pass that follows, unless gradients are about to be used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from diagnose.measure.steps.backward_passes import backward_passes
from diagnose.trace import StackFrame, Trace
from diagnose.trace.schema import MISSING, Bool, Int64, MemoryAction, RangeKind, UInt8


class TrainingPhase(IntEnum):
    """A phase of the training step."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


_BACKWARD = frozenset({"backward", "_make_grads", "_engine_run_backward", "recompute_fn", "unpack_hook"})
_OPTIMIZER = re.compile(r"[/\\]torch[/\\]optim[/\\](?!lr_scheduler|swa_utils)")
_MODULE_CALL = "_call_impl"
_KNOWN_STACKS = 0.1
"""The share of the allocations that must have stacks, for those without to be autograd's."""


@dataclass(frozen=True, eq=False)
class Phases:
    """Per place of a history."""

    phase: UInt8
    """A `TrainingPhase`."""
    step: Int64
    """Numbers of steps, from 0: they rise where one ends."""
    outside: Bool
    """The places that ask for memory outside of modules, the backward pass and the optimizer, before a forward pass."""


def training_phases(trace: Trace, rows: Int64) -> Phases:
    """The phases of some rows of `trace.memory`, a device's history in its order."""
    memory = trace.memory
    takes = memory.action[rows] == MemoryAction.ALLOC
    timed = bool(len(rows)) and bool((memory.time_ns[rows] != MISSING).all())
    known = takes & (memory.stack[rows] != MISSING)
    if known.sum() > _KNOWN_STACKS * max(int(takes.sum()), 1):
        own = _by_stack(trace, rows, takes)
    elif timed:
        own = _by_time(trace, memory.time_ns[rows])
    else:
        own = np.zeros(len(rows), np.uint8)
    phase = _filled(own, takes)
    outside = takes & (own == TrainingPhase.UNKNOWN) & (phase == TrainingPhase.FORWARD)
    outside &= (_last_known(own) != TrainingPhase.FORWARD) & bool((own == TrainingPhase.FORWARD).any())
    return Phases(phase, _steps(trace, rows, phase, timed), outside)


def phase_of_stack(stack: tuple[StackFrame, ...]) -> TrainingPhase:
    """Return the training phase that some Python frames, innermost first, belong to."""
    if any(frame.function in _BACKWARD for frame in stack):
        return TrainingPhase.BACKWARD
    for frame in stack:
        if frame.function == _MODULE_CALL:
            return TrainingPhase.FORWARD
        if _OPTIMIZER.search(frame.file) or (frame.function == "step" and "optim" in frame.file.lower()):
            return TrainingPhase.OPTIMIZER
    return TrainingPhase.UNKNOWN


def _by_stack(trace: Trace, rows: Int64, takes: Bool) -> UInt8:
    stack = trace.memory.stack[rows]
    kinds = np.zeros(len(trace.stacks) + 1, np.uint8)
    for number in np.unique(stack[takes]).tolist():
        kinds[number] = phase_of_stack(trace.stacks[number]) if number != MISSING else TrainingPhase.BACKWARD
    return np.where(takes, kinds[stack], TrainingPhase.UNKNOWN).astype(np.uint8)


def _by_time(trace: Trace, time_ns: Int64) -> UInt8:
    passes = backward_passes(trace)
    optimizer = trace.ranges.where(trace.ranges.kind == RangeKind.OPTIMIZER)
    if not len(passes) and not len(optimizer):
        return np.zeros(len(time_ns), np.uint8)
    found = np.full(len(time_ns), TrainingPhase.FORWARD, np.uint8)
    begun = np.searchsorted(np.sort(optimizer.start_ns), time_ns, side="right")
    ended = np.searchsorted(np.sort(optimizer.end_ns), time_ns, side="right")
    found[begun > ended] = TrainingPhase.OPTIMIZER
    found[passes.holding(time_ns) >= 0] = TrainingPhase.BACKWARD
    return found


def _filled(own: UInt8, takes: Bool) -> UInt8:
    """Every place with a phase, if any has one."""
    if not own.any():
        return own
    before, after = _last_known(own), _last_known(own[::-1])[::-1]
    # Between the backward pass and the optimizer gradients are clipped; any other line of the program is on its way to
    # the next backward pass.
    clips = (before == TrainingPhase.BACKWARD) & (after == TrainingPhase.OPTIMIZER)
    asked = np.where(takes & (own == TrainingPhase.UNKNOWN) & ~clips, TrainingPhase.FORWARD, own).astype(np.uint8)
    last, first = _last_known(asked), asked[np.argmax(asked != TrainingPhase.UNKNOWN)]
    return np.where(last == TrainingPhase.UNKNOWN, first, last).astype(np.uint8)


def _last_known(own: UInt8) -> UInt8:
    """Per place the last phase up to it that is known."""
    at = np.maximum.accumulate(np.where(own != TrainingPhase.UNKNOWN, np.arange(len(own)), MISSING))
    return np.where(at >= 0, own[np.maximum(at, 0)], TrainingPhase.UNKNOWN).astype(np.uint8)


def _steps(trace: Trace, rows: Int64, phase: UInt8, timed: bool) -> Int64:
    """The step of each place: by the log of a live run, the optimizer's ranges or allocations, else by passes."""
    if timed:
        time_ns = trace.memory.time_ns[rows]
        for ends in (trace.step_log.end_ns, trace.ranges.end_ns[trace.ranges.kind == RangeKind.OPTIMIZER]):
            within = ends[(ends >= time_ns.min()) & (ends <= time_ns.max())]
            if len(within):
                return np.searchsorted(np.sort(within), time_ns, side="left")
    last = TrainingPhase.OPTIMIZER if (phase == TrainingPhase.OPTIMIZER).any() else TrainingPhase.BACKWARD
    ends_here = (phase[:-1] == last) & (phase[1:] != last)
    return np.concatenate(([0], np.cumsum(ends_here)))[: len(rows)].astype(np.int64)
