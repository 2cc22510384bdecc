"""Which matrix products run slowly because their matrices are not aligned, and how fast they would run if they were.

    slow = misaligned(measures)
    slow.places, slow.left       # places of the program order, and per place the part of its time that would be left

Told from shapes where they are recorded: a product of unaligned sizes against the aligned ones of the same program and
format. Else from kernels' names, which say for how many elements a load is aligned; a name says less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.kernels.matmuls import Matmuls, best_rate
from diagnose.measure.views.kernel_classes import KernelClass, matmul_format
from diagnose.trace.schema import Float64, Int64

SLOW = 0.7
"""Unaligned products that reach at least this part of the aligned ones' rate are not slow: shapes differ by as much."""

LIKE = 64
"""An aligned product serves as a measure for others of up to so many times, and down to one so-manieth, its work."""

LEAST_BYTES_PER_NS = 2000
"""What a product moves at least takes this long: an A100's memory. Thin products are bound by it, aligned or not."""

# What is left of a product's time once it is aligned, by the elements of its loads: bulk loads are 16 bytes.
LEFT_16_BIT = {1: 0.25, 2: 0.35, 4: 0.6}
LEFT_32_BIT = {1: 0.5, 2: 0.7}

_ALIGN = re.compile(r"align[abc]?(\d+)")
_HALF = frozenset({"bf16", "fp16"})


@dataclass(frozen=True, eq=False)
class MisalignedMatmuls:
    """Slow products; parallel arrays."""

    places: Int64
    left: Float64
    """The share of each place's time that is left if its product were aligned."""
    measured: bool
    """Against aligned products of the same program, not by names."""
    sizes: tuple[tuple[int, int, int, int], ...] = ()
    """Batch, m, n, k of the slow products, the most expensive first."""
    rate: float = 0.0
    """The rate of the slow ones, FLOP per ns."""
    aligned_rate: float = 0.0
    """The rate of the aligned ones, FLOP per ns."""


def misaligned(order: LaunchOrder, products: Matmuls) -> MisalignedMatmuls:
    """The slow products that alignment would speed up."""
    told = _by_shapes(order, products)
    return told if len(told.places) else _by_names(order, products)


def _by_shapes(order: LaunchOrder, products: Matmuls) -> MisalignedMatmuls:
    left = np.ones(len(products), np.float64)
    reference = 0.0
    for item_bytes in np.unique(products.item_bytes).tolist():
        same = products.item_bytes == item_bytes
        slow = np.flatnonzero(same & ~products.aligned)
        if not len(slow):
            continue
        work = np.median(products.flop[slow])
        like = same & products.aligned & (products.flop * LIKE >= work) & (products.flop <= work * LIKE)
        rate = best_rate(products, like)
        if rate is None:
            continue
        needed = np.maximum(products.flop[slow] / rate, _bytes(products)[slow] / LEAST_BYTES_PER_NS)
        part = needed / np.maximum(products.length_ns[slow], 1)
        left[slow] = np.where(part < SLOW, part, 1.0)
        reference = max(reference, rate) if (part < SLOW).any() else reference
    slow = np.flatnonzero(left < 1)
    by_op = np.ones(len(order.trace.ops) + 1, np.float64)  # the last is that of -1, no operator
    by_op[products.op[slow]] = left[slow]
    per_place = by_op[order.op]
    places = np.flatnonzero(per_place < 1)
    total = int(products.length_ns[slow].sum())
    return MisalignedMatmuls(
        places=places,
        left=per_place[places],
        measured=True,
        sizes=_largest(products, slow),
        rate=float(products.flop[slow].sum()) / total if total else 0.0,
        aligned_rate=reference,
    )


def _by_names(order: LaunchOrder, products: Matmuls) -> MisalignedMatmuls:
    left = np.array([*map(_left, order.trace.names), 1.0], np.float64)
    # Where sizes are recorded they have been looked at.
    unseen = (order.kind == KernelClass.MATMUL) & ~np.isin(order.op, products.op)
    per_place = np.where(unseen, left[order.trace.device.name[order.rows]], 1.0)
    places = np.flatnonzero(per_place < 1)
    return MisalignedMatmuls(places, per_place[places], measured=False)


def _left(name: str) -> float:
    found = [int(digits) for digits in _ALIGN.findall(name)]
    form = matmul_format(name)
    if not found or not form.tensor_cores:
        return 1.0  # ordinary units load element by element: every such kernel is called align1
    if form.dtype in _HALF:
        return LEFT_16_BIT.get(min(found), 1.0)
    return LEFT_32_BIT.get(min(found), 1.0) if form.dtype == "tf32" else 1.0


def _bytes(products: Matmuls) -> Int64:
    batch, m, n, k = products.sizes.T
    return np.asarray(products.item_bytes * batch * (m * k + k * n + m * n), np.int64)


def _largest(products: Matmuls, rows: Int64) -> tuple[tuple[int, int, int, int], ...]:
    time: dict[tuple[int, int, int, int], int] = {}
    for size, length in zip(products.sizes[rows].tolist(), products.length_ns[rows].tolist(), strict=True):
        key = (size[0], size[1], size[2], size[3])
        time[key] = time.get(key, 0) + length
    return tuple(sorted(time, key=lambda key: -time[key]))
