"""The backward pass computes activations again for which there would have been room.

What it finds
    Forward operators that run a second time inside the backward pass (activation checkpointing), on a device whose
    memory could have held what they compute.

Why it costs
    Checkpointing trades time for memory: each checkpointed block runs its forward pass twice, up to a third of the
    device's work. Where the memory is free anyway, nothing is bought for it.

What proves it
    Operators that autograd numbers within backward operators, or in a recorded `recompute_fn`; the device work that
    they launched; and the peak of the allocator against the device's memory. Room for a part of the activations gives
    back that part of the time.

    What would have to be kept follows from the allocator's events (`profile_memory=True`), or else from the shapes of
    the recomputed operators' arguments, which is up to twice as much. Where the peak is not recorded, but all that the
    shapes show would fit, the time is an upper bound; where it would not, nothing can be told.

What fixes it
    No checkpoints, or fewer (`checkpoint-fewer`).

Thresholds
    USABLE (90 %): the part of the device's memory that a program can count on: the driver, libraries and fragments
    take the rest.
    FEWEST (10 %): room for less than this part of the activations is none worth having.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.roofline.saved_bytes import argument_bytes
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    Trace,
    drawn,
    format_bytes,
    format_ns,
)
from diagnose.trace.schema import Int64

USABLE = 0.9
FEWEST = 0.1

_CHECKPOINT = "torch/utils/checkpoint.py"


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time of recomputation, as far as memory has room for its results."""
    if measures.step_count == 0:
        return
    again = measures.recomputations
    if not len(again.ops):
        if measures.has_device and not ((measures.trace.ops.sequence >= 0).any() or measures.only_infers):
            yield CannotTell("over-checkpointing", "operators with autograd's numbers, as torch.profiler records them")
        return
    room = _room(measures)
    if room is None:
        yield CannotTell("over-checkpointing", "the peak of device memory (profile_memory=True, or diagnose run)")
        return
    rows = measures.rows_within_steps(again.launched(measures.launches))
    host = again.time & measures.counted
    time = measures.time_of(rows) | (host & measures.idle_of()) if measures.has_device else host
    cut = sped_up(measures, rows, 0.0) | Cut(host=host)
    whole = gained_ns(measures, cut, time.total_ns)
    if room.share < FEWEST or whole == 0:
        return
    gain = int(whole * room.share)
    steps = measures.step_count
    part = "" if room.share == 1 else f", {room.share:.0%} of which memory has room to keep"
    yield Claim(
        summary=f"the backward pass computes activations again for {format_ns(whole / steps)} per step{part}{room.why}",
        recoverable_ns=gain,
        claims=time,
        confidence=room.confidence,
        evidence=[
            Evidence("recomputation per step", time.total_ns // steps, "ns"),
            Evidence("operators that run again, per step", len(_within(measures, again.ops)) / steps, "count"),
            *room.evidence,
        ],
        where=_places(measures),
        confirm=room.confirm,
        cut=cut if room.share == 1 else sped_up(measures, rows, 1 - room.share),
    )


@dataclass(frozen=True)
class _Room:
    """Whether what is computed again could have been kept."""

    share: float
    confidence: Confidence
    why: str
    evidence: tuple[Evidence, ...]
    confirm: str | None = None


def _room(measures: Measures) -> _Room | None:
    """The part of the activations that there is room for; None where shapes say that they may well not fit."""
    memory = measures.memory
    kept, seen = _kept_bytes(measures)
    evidence = [Evidence("activations computed again", kept, "bytes")] if kept is not None else []
    capacity, peak = memory.capacity_bytes, memory.peak_allocated_bytes
    if capacity is None or not measures.has_device:
        return _Room(1.0, Confidence.BOUND, "", tuple(evidence), "a look at how much memory is free at the peak")
    evidence.append(Evidence("memory of the device", capacity, "bytes"))
    if peak is None:
        needed = _needed_bytes(measures, kept)
        if needed is not None and needed > USABLE * capacity:
            return None
        evidence += [Evidence("all activations, by their shapes", needed, "bytes")] if needed else []
        confirm = "the peak of device memory (profile_memory=True, or diagnose run), which is not recorded"
        return _Room(1.0, Confidence.BOUND, "", tuple(evidence), confirm)
    free = max(int(USABLE * capacity) - peak, 0)
    evidence.append(Evidence("peak of memory", peak, "bytes"))
    if kept is None:
        # Without shapes: room for as much again as all that is held.
        share, confidence = min(1.0, free / max(peak, 1)), Confidence.BOUND
    else:
        share, confidence = min(1.0, free / max(kept, 1)), Confidence.MEASURED if seen else Confidence.BOUND
        confidence = Confidence.MEASURED if share == 1 else confidence
    free_words = f", while {format_bytes(capacity - peak)} of {format_bytes(capacity)} stay free"
    trial = "a trial with fewer checkpoints" if confidence is Confidence.BOUND else None
    return _Room(share, confidence, free_words, tuple(evidence), trial)


def _kept_bytes(measures: Measures) -> tuple[int | None, bool]:
    """Return what would have to be kept per step, and whether the allocator's events say so rather than shapes."""
    again, steps, memory = measures.recomputations, measures.steps, measures.memory
    window = Intervals.of(steps.host_start_ns, steps.host_end_ns)
    if measures.memory_in_steps and len(memory.allocated):
        spans = again.time & window
        grown = np.maximum(memory.allocated.at(spans.ends) - memory.allocated.at(spans.starts), 0)
        return int(grown.sum()) // measures.step_count, True
    sizes = argument_bytes(measures.trace, _within(measures, again.ops))
    return (int(sizes.sum()) // measures.step_count, False) if len(sizes) and (sizes >= 0).all() else (None, False)


def _needed_bytes(measures: Measures, kept: int | None) -> int | None:
    """Return what a step would hold without checkpoints, as far as the shapes of the forward pass tell."""
    forward = argument_bytes(measures.trace, _within(measures, measures.recomputations.forward))
    if kept is None or (forward < 0).any():
        return None
    return kept + int(forward.sum()) // measures.step_count


def _within(measures: Measures, ops: Int64) -> Int64:
    """The operators that begin within the host's counted steps."""
    start, steps = measures.trace.ops.start_ns[ops], measures.steps
    inside = (start >= steps.host_start_ns[0]) & (start < steps.host_end_ns[-1])
    return np.asarray(ops[inside], np.int64)


def _places(measures: Measures) -> tuple[Place, ...]:
    """Return where blocks are checkpointed: the callers of `checkpoint`, as sampled or as recorded."""
    trace = measures.trace
    lines: Counter[tuple[str, int, str]] = Counter()
    for index, count in zip(*np.unique(trace.samples.stack, return_counts=True), strict=True):
        stack = trace.stacks[index]
        inside = [i for i, frame in enumerate(stack) if frame.file.replace("\\", "/").endswith(_CHECKPOINT)]
        # In the backward pass the outermost of them is another one.
        forward = inside and stack[inside[-1]].function == "checkpoint"
        outside = [frame for frame in stack[inside[-1] :] if frame.owned] if forward else []
        if outside:
            lines[outside[0].file, outside[0].line, outside[0].function] += int(count)
    if lines:
        total = lines.total()
        return tuple(Place(*where[:2], function=where[2], share=n / total) for where, n in lines.most_common(5))
    named = [name for name, text in enumerate(trace.names) if text.endswith(": checkpoint") and _CHECKPOINT in text]
    begins = trace.frames.start_ns[np.isin(trace.frames.name, named)]
    return measures.places(Intervals.of(begins, begins + 1))


_OPS = {
    "B": "autograd::engine::evaluate_function: AddmmBackward0",
    "C": "autograd::engine::evaluate_function: GeluBackward0",
    "D": "autograd::engine::evaluate_function: CheckpointFunctionBackward",
    "x": "aten::linear",
    "y": "aten::gelu",
    "n": "aten::mm",
    "w": "aten::gelu_backward",
}
_KERNELS = {"k": "gemm", "g": "gelu", "r": "gemm", "q": "gelu", "m": "gemm_backward", "b": "gelu_backward"}
_SHAPES = {"x": ("[[8192,4096],[4096,4096]]", '["c10::BFloat16","c10::BFloat16"]'), "y": ("[[8192,4096]]", '["float"]')}
_H200 = Facts(device_name="NVIDIA H200", device_memory_bytes=150_000_000_000)
_STEP = """
    host  : xlyl          SSSSSSSSSSSSSSSSSSSSSSS
    host 1:     BBBBBBBBCC
    host 1:     xlyl nl wl
    gpu   :   kkkkkkggggrrrrrrqqqqmmmmmmmmmbbbbbb
    step  :                                      |
    """


def _drawn(peak_bytes: int | None = None, text: str = _STEP, **known: Any) -> Trace:
    counted = {} if peak_bytes is None else {"allocator.allocated_bytes": [peak_bytes // 2, peak_bytes]}
    return drawn(
        text, repeat=4, ops=_OPS, kernels=_KERNELS, numbered="xy", shapes=_SHAPES, facts=_H200, counted=counted, **known
    )


_FIRES = (
    # Most of the memory is free at the peak.
    _drawn(15_000_000_000),
    # The peak is not recorded, but a step's activations are small against the device's memory.
    _drawn(),
    # Reentrant: the operators run in the backward operator of the checkpoint itself.
    _drawn(
        15_000_000_000,
        """
        host  : xlyl          SSSSSSSSSSSSSSSSSSSSSSS
        host 1:     DDDDBBBBCC
        host 1:     xlyl nl wl
        gpu   :   kkkkkkggggrrrrrrqqqqmmmmmmmmmbbbbbb
        step  :                                      |
        """,
    ),
)

_SILENT = (
    # The memory is full: what is computed again could not have been kept.
    _drawn(136_000_000_000),
    # Nothing runs again.
    _drawn(
        15_000_000_000,
        """
        host  : xlyl      SSSSSSSSSSSSSSSSS
        host 1:     BBBBCC
        host 1:     nl  wl
        gpu   :   kkkkkkggggmmmmmmmmmbbbbbb
        step  :                            |
        """,
    ),
    # A graph of the backward pass: formulas of derivatives have numbers, nothing is computed again.
    drawn(
        _STEP.replace("xlyl nl wl", "nlnl nl wl"),
        repeat=4,
        ops=_OPS,
        kernels=_KERNELS,
        numbered="xynw",
        facts=_H200,
    ),
    # Shapes that may well fill the device, and no peak.
    drawn(
        _STEP,
        repeat=4,
        ops=_OPS,
        kernels=_KERNELS,
        numbered="xy",
        shapes={"x": ("[[8192,4096000],[4096,4096]]", '["float","float"]'), "y": ("[[8192,4096]]", '["float"]')},
        facts=_H200,
    ),
)

RULE = Rule(
    "over-checkpointing",
    check,
    fixers=("checkpoint-fewer",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=22,
    symptom=Symptom.MEMORY,
)
