"""Heartbeats of one rank, and the blocks of a few seconds of steps that they make. Pure.

A test of every step would be swayed by every slow one; a block holds five seconds of steps, or one step that is longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnose.units import NS_PER_S

BLOCK_NS = 5 * NS_PER_S
"""A large change shows within three blocks: in a quarter of the 60 s within which it shall be told."""

Place = tuple[str, int]
"""File and line."""


@dataclass(frozen=True)
class Block:
    """Steps of one rank that follow each other."""

    start_ns: int
    """The end of the step before."""
    end_ns: int
    first_step: int
    steps: int
    phases: Mapping[str, int]
    """Nanoseconds on the training thread: `input`, `forward`, `checkpoint`, `gc`, `compile`."""
    lines: Mapping[Place, int] = field(default_factory=dict)
    """Samples by line of the user's."""
    samples: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    """Means of what was read beside the program, and under `throttle` the bits of NVML's mask that were set."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """Bytes at its end: `resident`, `allocated`; what is not known is absent."""

    @property
    def step_ns(self) -> float:
        """Mean time of a step."""
        return (self.end_ns - self.start_ns) / self.steps


class BlockBuilder:
    """Makes blocks of the heartbeats and the counters of one rank."""

    def __init__(self, block_ns: int = BLOCK_NS) -> None:
        self._block_ns = block_ns
        self._begin(None)

    def leave_out(self) -> None:
        """Make no block of the steps that go on: they were held up."""
        self._traced = True

    def counters(self, values: Mapping[str, float]) -> None:
        """Add one reading."""
        self._counters.append(values)

    def add(self, beat: Mapping[str, Any]) -> Iterator[Block]:
        """Add one heartbeat; yields the block that it completes. Steps that were traced make none."""
        begun = self._start
        if begun is None or beat["i"] < begun["i"]:  # the first one, or steps turned out to be something else
            self._begin(beat)
            return
        self._traced |= bool(beat.get("x"))
        self._phases.update(beat.get("r", {}))
        for file, line, count in beat.get("l", ()):
            self._lines[file, line] += count
            self._samples += count
        if beat["i"] == begun["i"] or beat["e"] - begun["e"] < self._block_ns:
            return
        if not self._traced:
            yield self._block(begun, beat)
        self._begin(beat)

    def _begin(self, beat: Mapping[str, Any] | None) -> None:
        """Forget what was added; steps from this heartbeat on make the next block."""
        self._start = dict(beat) if beat is not None else None
        self._traced = beat is not None and bool(beat.get("x"))
        self._phases: Counter[str] = Counter()
        self._lines: Counter[Place] = Counter()
        self._samples = 0
        self._counters: list[Mapping[str, float]] = []

    def _block(self, begun: Mapping[str, Any], beat: Mapping[str, Any]) -> Block:
        phases = {kind: self._phases.get(kind, 0) for kind in ("checkpoint", "gc", "compile")}
        phases |= {"input": beat["w"] - begun["w"], "forward": beat["f"] - begun["f"]}
        memory = {"resident": beat.get("m"), "allocated": beat.get("a")}
        return Block(
            begun["e"],
            beat["e"],
            begun["i"],
            beat["i"] - begun["i"],
            phases,
            dict(self._lines),
            self._samples,
            _means(self._counters),
            {name: float(value) for name, value in memory.items() if value is not None},
        )


def _means(readings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for reading in readings for name in reading} - {"gpu.throttle_reasons"}
    means = {name: _mean(reading[name] for reading in readings if name in reading) for name in names}
    masks = [int(reading["gpu.throttle_reasons"]) for reading in readings if "gpu.throttle_reasons" in reading]
    bits = {bit for mask in masks for bit in range(mask.bit_length()) if mask >> bit & 1}
    # A reason counts that was given in most readings: a single one may be a moment between two kernels.
    common = [bit for bit in bits if 2 * sum(mask >> bit & 1 for mask in masks) > len(masks)]
    return means | ({"throttle": float(sum(1 << bit for bit in common))} if masks else {})


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
