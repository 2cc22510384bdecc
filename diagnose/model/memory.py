"""The contents of a device's memory when it is fullest: bytes by category, by line, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.model.finding import Place


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Pieces of a device's memory that serve as the same, and that one line asked for in one phase."""

    category: str
    held_bytes: int
    pieces: int
    place: Place | None
    """None where no line is known: what autograd's own threads ask for has none."""
    taken: str | None
    """The phase that asked: `forward`, `backward`, `optimizer`, or `before` the recording; None where none is known."""
    freed: str | None
    """The phase that gave it back, or `never`; None where none is known."""
    by: str | None = None
    """The modules and the operator that asked, where operators are recorded and the allocator's stacks are not."""


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Bytes by category at moments in order; of each stretch of time the moment at which most was held."""

    time_ns: tuple[int, ...] | None
    """None for a history without times: then events are as far apart as each other."""
    categories: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The contents of a device's memory when most of it is in use, or when an allocation finds no room."""

    device: int
    at_ns: int | None
    held_bytes: int
    """The memory that programs asked for and did not give back: `categories` sum to it."""
    categories: Mapping[str, int]
    """Bytes by category (`diagnose.measure.memory.categories.CATEGORIES`), without those that hold nothing."""
    parts: tuple[MemoryPart, ...] = ()
    """The memory by line, the most first."""
    reserved_bytes: int | None = None
    """The memory that the allocator has of the device."""
    fragments_bytes: int | None = None
    """The part of that which is free in segments that hold something else too, so that it cannot be given back."""
    capacity_bytes: int | None = None
    """The device's memory."""
    wanted_bytes: int | None = None
    """The size of an allocation that found no room at this moment; None where there was none."""
    timeline: MemoryTimeline | None = None
