"""How much lengths vary, told by the middle of them, so that a few stray ones do not matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.trace.schema import Int64

_NORMAL = 1.4826  # the standard deviation of a normal distribution over its median absolute deviation


def standard_deviation(lengths: Int64 | Sequence[int]) -> float:
    """Estimated from the median absolute deviation, in the unit of the lengths; NaN without any."""
    return _NORMAL * float(np.median(np.abs(np.asarray(lengths) - np.median(lengths))))
