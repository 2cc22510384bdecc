"""The matrix products of the counted steps: their sizes, their arithmetic, and how fast they ran.

    products = products_of(order)
    products.rate                # FLOP per ns (1000 of them are a TFLOP/s), per product
    products.aligned             # whether every row of every matrix begins at a multiple of 16 bytes

A product is one operator (`aten::mm`, `addmm`, `bmm`, `baddbmm`) with recorded shapes; kernels that it launched beside
the product proper (a reduction of split sums, a bias) count to its time. FLOP are 2·b·m·n·k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.views.shapes import Shapes, dtypes_of, shapes_of
from diagnose.trace.schema import Bool, Float64, Int64

ALIGNED_BYTES = 16
"""Tensor cores are fed by loads of 16 bytes: 8 elements of 16 bits, 4 of 32 (NVIDIA, matrix multiplication guide)."""

_FIRST_MATRIX = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_addmm_activation": 1}
_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1}


@dataclass(frozen=True, eq=False)
class Matmuls:
    """Parallel arrays, one entry a product, in order of launch."""

    op: Int64
    """The row of `trace.ops`."""
    place: Int64
    """The place of its first kernel in the `LaunchOrder`."""
    length_ns: Int64
    """The time of all its kernels."""
    sizes: Int64
    """Four columns: batch, m, n, k."""
    item_bytes: Int64

    def __len__(self) -> int:
        return len(self.op)

    @property
    def flop(self) -> Int64:
        """Floating-point operations."""
        return np.asarray(2 * self.sizes.prod(axis=1), np.int64)

    @property
    def rate(self) -> Float64:
        """FLOP per nanosecond."""
        return np.asarray(self.flop / np.maximum(self.length_ns, 1), np.float64)

    @property
    def aligned(self) -> Bool:
        """Whether m, n and k are multiples of `ALIGNED_BYTES`: then every layout of the matrices is."""
        return np.asarray(((self.sizes[:, 1:] * self.item_bytes[:, None]) % ALIGNED_BYTES == 0).all(axis=1), np.bool_)


def products_of(order: LaunchOrder) -> Matmuls:
    """The products whose sizes and format are recorded."""
    places = np.flatnonzero(order.op >= 0)
    ops, first, owner = np.unique(order.op[places], return_index=True, return_inverse=True)
    length = np.bincount(owner, weights=order.length_ns[places], minlength=len(ops)).astype(np.int64)
    makes_product = np.bincount(owner, weights=order.product[places], minlength=len(ops)) > 0
    known: list[int] = []
    sizes: list[tuple[int, int, int, int]] = []
    item_bytes: list[int] = []
    seen: dict[tuple[int, int, int], tuple[tuple[int, int, int, int], int] | None] = {}
    table = order.trace.ops
    for at in np.flatnonzero(makes_product).tolist():
        op = int(ops[at])
        key = (int(table.name[op]), int(table.shapes[op]), int(table.dtypes[op]))
        if key not in seen:
            seen[key] = _size(order, op)
        size = seen[key]
        if size is not None:
            known.append(at)
            sizes.append(size[0])
            item_bytes.append(size[1])
    rows = np.array(known, np.int64)
    by_launch = np.argsort(places[first[rows]], kind="stable") if len(rows) else rows
    rows = rows[by_launch]
    return Matmuls(
        op=ops[rows],
        place=places[first[rows]],
        length_ns=length[rows],
        sizes=np.array(sizes, np.int64).reshape(-1, 4)[by_launch],
        item_bytes=np.array(item_bytes, np.int64)[by_launch],
    )


def _size(order: LaunchOrder, op: int) -> tuple[tuple[int, int, int, int], int] | None:
    word = order.trace.names[order.trace.ops.name[op]].removeprefix("aten::")
    begin = _FIRST_MATRIX.get(word)
    shapes, formats = shapes_of(order.trace, op), dtypes_of(order.trace, op)
    if begin is None or shapes is None or formats is None or len(formats) <= begin:
        return None
    bytes_each = _BYTES.get(formats[begin])
    size = _sizes(shapes, begin)
    return None if size is None or bytes_each is None else (size, bytes_each)


def _sizes(shapes: Shapes, begin: int) -> tuple[int, int, int, int] | None:
    """Batch, m, n and k of the product of two recorded matrices."""
    if len(shapes) < begin + 2:
        return None
    left, right = shapes[begin] or (), shapes[begin + 1] or ()
    fit = len(left) == len(right) and len(left) in (2, 3) and left[-1] == right[-2]
    if not fit or 0 in left or 0 in right:
        return None
    return (left[0] if len(left) == 3 else 1, left[-2], right[-1], left[-1])


def best_rate(products: Matmuls, chosen: npt.NDArray[np.bool_]) -> float | None:
    """The rate (FLOP per ns) that the faster half of some products' arithmetic reaches; None without any."""
    rows = np.flatnonzero(chosen & (products.length_ns > 0))
    if not len(rows):
        return None
    rows = rows[np.argsort(-products.rate[rows], kind="stable")]
    done = np.cumsum(products.flop[rows])
    upto = rows[: int(np.searchsorted(done, done[-1] / 2)) + 1]
    return float(products.flop[upto].sum() / products.length_ns[upto].sum())
