"""A plan of bucket sizes as a finding carries it to a fixer: one piece of evidence a bucket, in the order of sending.

planned bucket 1 of 3   4194304 bytes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, floor

from diagnose.model import Evidence, Finding

_BUCKET = re.compile(r"planned bucket (\d+) of \d+$")
_MB = 1 << 20  # bytes: a unit, DistributedDataParallel's


def as_evidence(sizes: Sequence[int]) -> list[Evidence]:
    """Sizes in bytes as evidence."""
    return [Evidence(f"planned bucket {at} of {len(sizes)}", size, "bytes") for at, size in enumerate(sizes, 1)]


def planned(finding: Finding) -> tuple[float, ...]:
    """The sizes in MiB; empty where the finding has no plan."""
    found = {int(match[1]): float(one.value) for one in finding.evidence if (match := _BUCKET.match(one.measure))}
    return planned_mb([found[at] for at in sorted(found)])


def planned_mb(size_bytes: Sequence[float]) -> tuple[float, ...]:
    """A plan as DistributedDataParallel's list of sizes: in MiB, to a hundredth.

    It closes a bucket with the gradient that fills it: rounded up, a size would let in the next one, however large that
    is. After the last nothing may be left.
    """
    hundredths = [size * 100 / _MB for size in size_bytes]
    rounded = [*map(floor, hundredths[:-1]), *map(ceil, hundredths[-1:])]
    return tuple(max(1, size) / 100 for size in rounded)
