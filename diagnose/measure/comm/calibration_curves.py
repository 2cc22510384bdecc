"""The time of collectives by the curves that `diagnose calibrate` measured. Between two measured sizes it follows their
line on logarithmic scales, below the smallest it is that one's time, above the largest it follows the bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.model import CollectiveCurve
from diagnose.trace.schema import Float64, Int64

_REACH = 8
"""A size of so many times the largest measured one is still taken to move at its bandwidth."""


def curve_of(curves: Sequence[CollectiveCurve], kind: str, ranks: int, nodes: int = 1) -> CollectiveCurve | None:
    """The curve of a kind of collective in a group of so many ranks on so many hosts; None where none was measured."""
    wanted = (kind, ranks, nodes)
    return next((one for one in curves if (one.kind, one.ranks, one.nodes) == wanted and one.size_bytes), None)


def calibrated_ns(curve: CollectiveCurve, size_bytes: Int64) -> Float64:
    """Return the expected time of each message of `size_bytes`, in ns; NaN for unknown sizes and those far beyond the
    curve.
    """
    sizes, times = (np.asarray(one, np.float64) for one in (curve.size_bytes, curve.time_ns))
    wanted = np.maximum(size_bytes, 1).astype(np.float64)
    between = np.exp(np.interp(np.log(wanted), np.log(sizes), np.log(np.maximum(times, 1))))
    found = np.where(wanted > sizes[-1], times[-1] * wanted / sizes[-1], between)
    return np.where((size_bytes > 0) & (wanted <= _REACH * sizes[-1]), found, np.nan)
