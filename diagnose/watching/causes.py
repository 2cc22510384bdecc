"""Says what changed beside the time of a step: blocks before against blocks after. Pure.

Whatever is named explains at least half of the change, measured in time of a step; what explains less is not named, and
where nothing does the cause is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from diagnose.units import format_ns, format_share
from diagnose.watching.blocks import Block

EXPLAINS = 0.5
"""The part of a change from which on something is its cause: no two things that exclude each other explain as much."""
HARDLY = 0.25
"""The part of a change below which a rank does not share a cause of another."""
SURE = 3.0
"""Standard errors by which samples at a line must have risen: by chance one line in 700 does so."""
_IDLE_REASON = 0x1
"""The bit of NVML's mask that says that nothing runs."""
THROTTLE_REASONS = {
    0x40: "heat (hardware slowdown)",
    0x80: "a power brake",
    0x8: "a hardware slowdown",
    0x20: "heat (software slowdown)",
    0x4: "the power limit",
    0x2: "a clock that was set for applications",
    0x10: "a group of devices that share one clock",
}
"""Bits of NVML's mask (nvml.h, nvmlClocksEventReason…), what weighs most first."""
_MOST_NAMED = 3
"""Causes in a notice."""
_PLACE = "place"
"""The first part of the keys of causes that name a place in the program, and not why it takes longer there."""
_PHASES = {
    "input": ("data", "waiting for the data loader"),
    "checkpoint": ("code", "torch.save on the training thread"),
    "gc": ("code", "garbage collections"),
    "compile": ("code", "torch.compile"),
}


@dataclass(frozen=True)
class Cause:
    """Something that changed with the time of a step."""

    kind: str
    """`data`, `code`, `clocks`, `neighbours` or `unknown`."""
    text: str
    explains: float | None = None
    """The part of the change, where it is a time."""
    rank: int | None = None
    """The only rank of several of which it holds."""


_UNKNOWN = (Cause("unknown", "nothing that is watched changed with it"),)

Span = tuple[Sequence[Block], Sequence[Block]]
"""Blocks before and after the change."""


def causes(spans: Mapping[int, Span], of_level: bool = True) -> tuple[Cause, ...]:
    """Return what changed, of all ranks, when the time of a step did; never empty. `of_level`: of all steps, and not of
    slow ones among them.

    What holds of one rank among several is that rank's; of what holds of several, the clearest is given.
    """
    change_ns = sum(step_ns(after) - step_ns(before) for before, after in spans.values()) / len(spans)
    if not change_ns:
        return _UNKNOWN
    late = _late_ranks(spans, change_ns, of_level)
    found: dict[str, dict[int, Cause]] = {}
    for rank, span in spans.items():
        for key, cause in _of_rank(*span, change_ns, of_level):
            if rank in late or not key.startswith(_PLACE):
                found.setdefault(key, {})[rank] = cause
    found = {key: by for key, by in found.items() if any((one.explains or 1.0) >= EXPLAINS for one in by.values())}
    if any(not key.startswith(_PLACE) for key in found):
        # Lines at which the host waits for what has another cause.
        found = {key: by for key, by in found.items() if not key.startswith(_PLACE)}
    named = []
    for key, by in found.items():
        alone = len(by) == 1 < len(spans) and (len(late) < len(spans) or not key.startswith(_PLACE))
        [rank, cause], *_ = sorted(by.items(), key=lambda one: -(one[1].explains or 1.0))
        named.append(replace(cause, rank=rank if alone else None))
    named.sort(key=lambda cause: -(cause.explains or 0.0))
    return tuple(named[:_MOST_NAMED]) or _UNKNOWN


def step_ns(blocks: Sequence[Block]) -> float:
    """Mean time of a step of these blocks."""
    return sum(block.end_ns - block.start_ns for block in blocks) / sum(block.steps for block in blocks)


def _of_rank(
    before: Sequence[Block], after: Sequence[Block], change_ns: float, of_level: bool
) -> Iterator[tuple[str, Cause]]:
    phases = {
        name: _per_step(after, name, of_level) - _per_step(before, name, of_level) for name in (*_PHASES, "forward")
    }
    for name, (kind, words) in _PHASES.items():
        share = phases[name] / change_ns
        if share >= HARDLY:
            yield name, Cause(kind, f"{words}: {_signed(phases[name])} a step", min(share, 1.0))
    yield from _clocks(before, after, change_ns)
    yield from _neighbours(before, after, change_ns)
    share = phases["forward"] / change_ns
    line = _line(before, after, change_ns)
    if line is not None:
        yield f"{_PLACE} {line.text.partition(': ')[0]}", line
    elif share >= HARDLY:
        text = f"the time from a step's batch to its backward pass: {_signed(phases['forward'])} a step"
        yield _PLACE, Cause("code", text, min(share, 1.0))


def _late_ranks(spans: Mapping[int, Span], change_ns: float, of_level: bool) -> set[int]:
    """The ranks whose own time changed; the others wait for them. All ranks where that is so of none or of all."""
    names = (*_PHASES, "forward")
    own = {
        rank: sum(_per_step(after, n, of_level) - _per_step(before, n, of_level) for n in names)
        for rank, (before, after) in spans.items()
    }
    late = {rank for rank, own_ns in own.items() if own_ns / change_ns >= EXPLAINS}
    return late or set(spans)


def _per_step(blocks: Sequence[Block], phase: str, of_level: bool) -> float:
    """Nanoseconds of a phase in a step: of the level, the median of the blocks."""
    if of_level:
        return median(block.phases.get(phase, 0) / block.steps for block in blocks)
    return sum(block.phases.get(phase, 0) for block in blocks) / sum(block.steps for block in blocks)


def _clocks(before: Sequence[Block], after: Sequence[Block], change_ns: float) -> Iterator[tuple[str, Cause]]:
    clock, was = _counter(after, "gpu.sm_clock_mhz"), _counter(before, "gpu.sm_clock_mhz")
    if clock is None or was is None or min(clock, was) <= 0:
        return
    # The rank's own change counts: ranks that do not wait for each other may change differently.
    slowed = math.log(step_ns(after) / step_ns(before))
    share = math.log(was / clock) / slowed if slowed * change_ns > 0 else 0.0
    if share < HARDLY:
        return
    new = _bits(after) & ~_bits(before) & ~_IDLE_REASON
    reason = next((f", because of {words}" for bit, words in THROTTLE_REASONS.items() if new & bit), "")
    text = f"the device's clock went from {was:.0f} to {clock:.0f} MHz{reason}"
    yield "clocks", Cause("clocks", text, min(share, 1.0))


def _neighbours(before: Sequence[Block], after: Sequence[Block], change_ns: float) -> Iterator[tuple[str, Cause]]:
    others, were = _counter(after, "gpu.foreign_processes"), _counter(before, "gpu.foreign_processes")
    if others is not None and were is not None and change_ns * (round(others) - round(were)) > 0:
        yield "device", Cause("neighbours", f"other processes use the device: {round(others)}, {round(were)} before")
    queued, was = _counter(after, "host.queued"), _counter(before, "host.queued")
    if queued is None or was is None:
        return
    waited_ns = (queued * step_ns(after) - was * step_ns(before)) / 100
    if waited_ns / change_ns >= HARDLY:
        text = f"the training thread waits for a core: {_signed(waited_ns)} a step"
        yield "host", Cause("neighbours", text, min(waited_ns / change_ns, 1.0))


def _line(before: Sequence[Block], after: Sequence[Block], change_ns: float) -> Cause | None:
    """The user's line at which steps spend more or less of their time, as samples say."""
    was, now = _samples(before), _samples(after)
    total_was, total_now = sum(block.samples for block in before), sum(block.samples for block in after)
    if not total_was or not total_now:
        return None
    was_ns, now_ns = step_ns(before) / total_was, step_ns(after) / total_now
    grown = {place: now[place] * now_ns - was[place] * was_ns for place in {*was, *now}}
    place = max(grown, key=lambda one: grown[one] / change_ns, default=None)
    if place is None or grown[place] / change_ns < HARDLY:
        return None
    error_ns = math.hypot(now_ns * math.sqrt(now[place]), was_ns * math.sqrt(was[place]))
    if abs(grown[place]) < SURE * error_ns:
        return None
    text = f"{Path(place[0]).name}:{place[1]}: {_signed(grown[place])} a step"
    return Cause("code", text, min(grown[place] / change_ns, 1.0))


def _samples(blocks: Sequence[Block]) -> Counter[tuple[str, int]]:
    counts: Counter[tuple[str, int]] = Counter()
    for block in blocks:
        counts.update(block.lines)
    return counts


def _counter(blocks: Sequence[Block], name: str) -> float | None:
    values = [block.counters[name] for block in blocks if name in block.counters]
    return sum(values) / len(values) if values else None


def _bits(blocks: Sequence[Block]) -> int:
    """The reasons that most blocks have."""
    masks = [int(block.counters["throttle"]) for block in blocks if "throttle" in block.counters]
    return sum(1 << bit for bit in range(16) if 2 * sum(mask >> bit & 1 for mask in masks) > len(masks))


def _signed(nanoseconds: float) -> str:
    return f"{'+' if nanoseconds >= 0 else '-'}{format_ns(abs(nanoseconds))}"


def described(cause: Cause) -> str:
    """A cause as part of a sentence."""
    where = f"rank {cause.rank} alone: " if cause.rank is not None else ""
    share = f" ({format_share(cause.explains)} of the change)" if cause.explains is not None else ""
    return f"{where}{cause.text}{share}"
