"""How far the device's compute is from what it could be, and how much of it nobody understands.

    left = headroom(diagnosis)
    left.share                   # of the step: compute beyond what good kernels would take, and of unknown work
    left.beyond                  # [("products in tf32", 18_600_000), …]: ns per step, the largest first

The same operations in the same formats and the same bytes, at rates that good kernels reach. Changes that spare
operations or bytes (fused operators, fewer bits) are findings of their own, and not counted here.

Thresholds
    REACHED: of a data sheet's ceilings. Large products of cuBLAS reach 0.70 to 0.82 of it on an H200, elementwise
    kernels 0.85 to 0.92 of the memory's. Of measured ceilings, MEASURED 0.95.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.model import ComputePart, Diagnosis

REACHED = {"matmul": 0.75, "memory": 0.85}
MEASURED = 0.95
_WORDS = {"memory": "memory-bound kernels", "latency": "kernels too small to fill the device"}


@dataclass(frozen=True)
class Headroom:
    """Per step of the slowest rank."""

    share: float
    """Of the step (0 to 1)."""
    beyond: Sequence[tuple[str, int]]
    """What takes longer than good kernels would, and by how many nanoseconds; the largest first."""
    unknown_ns: int
    """In kernels whose operations and bytes are not known."""


def headroom(diagnosis: Diagnosis) -> Headroom | None:
    """What is left; None where no work of a device was recorded."""
    steps = diagnosis.steps
    if not diagnosis.compute or not steps.count or not steps.total_ns:
        return None
    by_words: Counter[str] = Counter()
    for part in diagnosis.compute:
        by_words[_words(part)] += part.known_ns - _good_ns(part, is_measured=_is_measured(diagnosis))
    unknown_ns = sum(part.time_ns - part.known_ns for part in diagnosis.compute)
    beyond = [(words, left // steps.count) for words, left in by_words.most_common() if left >= steps.count]
    return Headroom((sum(by_words.values()) + unknown_ns) / steps.total_ns, beyond, unknown_ns // steps.count)


def _good_ns(part: ComputePart, *, is_measured: bool) -> int:
    """What good kernels would take for the known part; no more than it took."""
    reached = MEASURED if is_measured else REACHED.get(part.bound, 1.0)
    return min(round(part.least_ns / reached), part.known_ns)


def _is_measured(diagnosis: Diagnosis) -> bool:
    return diagnosis.work is not None and diagnosis.work.ceiling_source == "measured"


def _words(part: ComputePart) -> str:
    if part.bound == "matmul":
        return f"products in {part.format}" if part.format else "products"
    return _WORDS.get(part.bound, "other kernels")
