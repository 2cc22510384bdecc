"""Memory is so full that the allocator gives back what it cached and tries again, or that the run died of it.

What it finds
    Allocations that are retried after everything unused was given back to the device; a run that ended, or went on, in
    an out-of-memory error; a peak near the device's memory.

Why it costs
    A retry frees every unused segment (`cudaFree` waits until the device has finished everything) and takes a new one
    (`cudaMalloc`); the segments that were freed are missed in the next operators. A run that dies costs everything
    since its last checkpoint.

What proves it
    Device memory that is given back and taken again within one operator, or retries that the allocator counted in the
    recorded steps: the idle time of the device inside these calls. Retries in other steps, an error, or a peak near
    the device's memory alone cost an unknown time.

    What held the memory, and which lines asked for it, is read from the allocator's history: of a live run, from the
    moment at which an allocation found no room, or else from the peak of a step.

What fixes it
    Less memory: checkpointed blocks (`checkpoint-blocks`), a memory budget for compiled regions (`memory-budget`), a
    loss that never holds all logits (`fuse-linear-cross-entropy`), activations offloaded to the host (`offload`), or
    what the optimizer holds (`offload-state`), or a smaller batch.

Thresholds
    WARM_UP (10): logged steps that may still fill the allocator: as many as a live run warms up before it traces.
    FULL (95 %): from this part of the device's memory on, allocated at the peak, the next larger batch or library
    workspace fails: driver and libraries hold one to two percent, fragments as much again.
    HOLDERS (4): lines that are named beside the one that asked; FEW (2 %): of what is held, less is no reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.model import MemoryPeak
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Measures,
    Place,
    Rule,
    Site,
    Symptom,
    drawn,
    format_bytes,
    format_count,
    format_ns,
    format_share,
)
from diagnose.trace.schema import MemoryAction

WARM_UP = 10
FULL = 0.95

HOLDERS = 4
FEW = 0.02

_DIED = "out of memory"
_LETS_GO = (
    MemoryAction.UNKNOWN,
    MemoryAction.FREE_REQUESTED,
    MemoryAction.FREE,
    MemoryAction.SEGMENT_FREE,
    MemoryAction.SEGMENT_UNMAP,
)
_FIXERS = ("checkpoint-blocks", "memory-budget", "fuse-linear-cross-entropy", "offload", "offload-state")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Retries with the time that they cost; without any, what tells that memory is short."""
    retried = _retries_in_steps(measures)
    idle = measures.idle["allocator"]
    gain = recoverable_ns(measures, idle) if retried else 0
    if gain:
        steps = measures.step_count
        yield Claim(
            summary=f"the device idles {format_ns(gain / steps)} per step while the allocator gives back what it "
            f"cached and tries again ({format_count(retried / steps)} retries per step)",
            recoverable_ns=gain,
            claims=idle,
            evidence=[
                Evidence("idle.allocator", idle.total_ns // steps, "ns"),
                Evidence("retries per step", retried / steps, "count"),
                *_totals(measures),
            ],
            where=measures.places(idle),
            short_of_memory=True,
        )
        return
    died = [site for site in measures.trace.sites if site.kind == _DIED]
    if died:
        yield _death(measures, died[-1])
        return
    ended = _end_without_room(measures)
    if ended is not None:
        yield _end(measures, ended)
        return
    yield from _hints(measures)


def _retries_in_steps(measures: Measures) -> int:
    """Return how often the allocator tried again within the counted steps."""
    if measures.step_count == 0 or not measures.has_device:
        return 0
    counted = measures.memory.retries
    steps = measures.steps
    if len(counted):
        return int(counted.at(steps.host_end_ns[-1:])[0] - counted.at(steps.host_start_ns[:1])[0])
    allocation = measures.device_allocation
    return int(allocation.retries_per_step.sum()) if allocation.mostly_retried else 0


def _end_without_room(measures: Measures) -> int | None:
    """The row of the allocation that found no room, where all there is is the allocator's history up to it.

    What is let go of after it says nothing of whether the program went on: an error frees what its frames held.
    """
    trace = measures.trace
    alone = measures.step_count == 0 and not len(trace.step_log) and not len(trace.ops)
    rows = np.flatnonzero(~np.isin(trace.memory.action, _LETS_GO))
    last = int(rows[-1]) if alone and len(rows) else None
    return last if last is not None and trace.memory.action[last] == MemoryAction.OUT_OF_MEMORY else None


def _end(measures: Measures, row: int) -> Claim:
    """The end of such a history, which whoever asks for a snapshot there is handed."""
    trace, peak = measures.trace, measures.memory_peak
    size, stack = int(trace.memory.size_bytes[row]), int(trace.memory.stack[row])
    own = [frame for frame in (trace.stacks[stack] if stack >= 0 else ()) if frame.owned]
    asked = f" asking for {format_bytes(size)}" if size > 0 else ""
    at = Place(own[0].file, own[0].line, function=own[0].function) if own else Place("", 0)
    return Claim(
        summary=f"the recording ends with an allocation{asked} that found no room{_held(peak)}: the run died of it, or "
        "the program caught the error",
        confidence=Confidence.HINT,
        evidence=[*([Evidence("allocation that failed", size, "bytes")] if asked else []), *_totals(measures)],
        where=[*([at] if own else ()), *_holders(peak, at)],
        fixers=_fixers(peak, size),
        confirm=_relief(peak, size),
        ended_run=True,
    )


def _death(measures: Measures, site: Site) -> Claim:
    wanted, peak = site.arguments.get("wanted_bytes"), measures.memory_peak
    size = (peak.wanted_bytes if peak else None) or (wanted if isinstance(wanted, int) else 0)
    asked = f" asking for {format_bytes(size)}" if size > 0 else ""
    at = Place.at(site)
    return Claim(
        summary=f"the run died of it: an allocation{asked} found no room{_held(peak)}",
        confidence=Confidence.HINT,
        evidence=[*([Evidence("allocation that failed", size, "bytes")] if asked else []), *_totals(measures)],
        where=[*([at] if site.line > 0 else ()), *_holders(peak, at)],
        fixers=_fixers(peak, size),
        confirm=_relief(peak, size),
        ended_run=True,
    )


def _held(peak: MemoryPeak | None) -> str:
    """Return what held the memory, the two largest categories that are known."""
    if peak is None or not peak.held_bytes:
        return ""
    known = {name: size for name, size in peak.categories.items() if name != "other"}
    largest = sorted(known, key=lambda name: -known[name])[:2]
    named = " and ".join(f"{format_bytes(known[name])} of {name}" for name in largest)
    return f" beside the {format_bytes(peak.held_bytes)} that were held" + (f", {named} among them" if named else "")


def _holders(peak: MemoryPeak | None, besides: Place) -> Iterator[Place]:
    """The lines that asked for most of what was held, with their share of it."""
    if peak is None or not peak.held_bytes:
        return
    lines: dict[tuple[str, int, str | None], int] = {}
    for part in peak.parts:
        if part.place is not None:
            key = (part.place.file, part.place.line, part.place.function)
            lines[key] = lines.get(key, 0) + part.held_bytes
    for (file, line, function), size in sorted(lines.items(), key=lambda entry: -entry[1])[:HOLDERS]:
        if (file, line) != (besides.file, besides.line) and size >= FEW * peak.held_bytes:
            yield Place(file, line, function=function, share=size / peak.held_bytes)


def _fixers(peak: MemoryPeak | None, short_bytes: int) -> tuple[str, ...] | None:
    """All of the rule's: first those that can free what was short, of them first what frees most and copies nothing."""
    if peak is None:
        return None
    activations, logits, state = (peak.categories.get(name, 0) for name in ("activations", "logits", "optimizer state"))
    frees = {
        "checkpoint-blocks": activations,
        "memory-budget": activations,
        "fuse-linear-cross-entropy": logits,
        "offload": activations,
        "offload-state": state,
    }
    copies = ("offload", "offload-state")
    return tuple(sorted(_FIXERS, key=lambda name: (frees[name] < short_bytes, name in copies, -frees[name])))


def _relief(peak: MemoryPeak | None, short_bytes: int) -> str:
    """Return what would bring the run under the limit, as far as there is enough to be freed."""
    held = peak.categories if peak else {}
    activations, logits = held.get("activations", 0), held.get("logits", 0)
    ways = (
        (activations, "blocks that are computed again free up to"),
        (logits, "a loss that never holds all logits frees up to"),
        ((activations + logits + held.get("inputs", 0)) // 2, "half the micro-batch frees about"),
    )
    said = [f"{words} {format_bytes(size)}" for size, words in ways if size >= max(short_bytes, 1)]
    return "; ".join(said) or "a smaller batch: how far memory is short"


def _hints(measures: Measures) -> Iterator[Claim]:
    """Signs of short memory whose cost is unknown."""
    memory, log = measures.memory, measures.trace.step_log
    since = log.end_ns[WARM_UP : WARM_UP + 1]
    failures = memory.failed_allocations
    retries = int(memory.retries.value[-1] - memory.retries.at(since)[0]) if len(since) and len(memory.retries) else 0
    full = memory.peak_allocated_bytes or 0
    if failures:
        many = "an allocation" if failures == 1 else f"{failures} allocations"
        said = f"{many} failed for want of memory, and the program went on"
    elif retries > 0:
        said = f"the allocator gave back what it cached and tried again {retries} times after the first steps"
        said += ", though not in the recorded ones" if measures.step_count else ""
    elif memory.capacity_bytes and full >= FULL * memory.capacity_bytes:
        said = f"the peak of memory is {format_share(full / memory.capacity_bytes)} of what the device has"
    else:
        return
    count = failures or retries
    yield Claim(
        summary=said,
        confidence=Confidence.HINT,
        evidence=[*([Evidence("allocations without room", count, "count")] if count else []), *_totals(measures)],
        confirm="a recording of more steps",
        short_of_memory=True,
    )


def _totals(measures: Measures) -> list[Evidence]:
    memory = measures.memory
    known = (
        ("peak of memory", memory.peak_allocated_bytes),
        ("peak of memory with what is cached", memory.peak_reserved_bytes),
        ("memory of the device", memory.capacity_bytes),
    )
    return [Evidence(name, value, "bytes") for name, value in known if value is not None]


_H200 = Facts(device_name="NVIDIA H200", device_memory_bytes=150_000_000_000)

_drawn = partial(drawn, repeat=4)
_FIRES = (
    # No room: within an operator, segments are given back and one is taken.
    _drawn("""
        host: oooooooo
        host:  fffmm  ol
        gpu :           kkkkkkk
        step:                  |
    """),
    # The allocator counts its retries.
    _drawn(
        """
        host: fffffmmmolmmmol
        gpu :            kk  kkkkkkk
        step:                       |
        """,
        counted={"allocator.retries": [3, 4, 5, 6, 7]},
    ),
    # The run died of it before anything was traced.
    drawn(
        """
        line: x
        """,
        stacks={"x": [("train.py", 31, "main")]},
        sites=(Site(_DIED, "train.py", 40, "forward", {"wanted_bytes": 2 << 30}),),
    ),
    # Nearly all of the device's memory is in use at the peak.
    _drawn(
        """
        host: ol
        gpu :   kkkkkkkk
        step:           |
        """,
        facts=_H200,
        counted={"allocator.allocated_bytes": [80_000_000_000, 146_000_000_000]},
    ),
)

_SILENT = (
    # The program empties the cache: segments are given back outside of operators.
    _drawn("""
        host: fffffmmmolmmmol
        gpu :            kk  kkkkkkk
        step:                       |
    """),
    # A device well filled, whose allocator finds room.
    _drawn(
        """
        host: ol
        gpu :   kkkkkkkk
        step:           |
        """,
        facts=_H200,
        counted={"allocator.allocated_bytes": [60_000_000_000, 120_000_000_000], "allocator.retries": [2, 2, 2]},
    ),
)

RULE = Rule("memory-pressure", check, fixers=_FIXERS, fires=_FIRES, silent=_SILENT, nearness=13, symptom=Symptom.MEMORY)
