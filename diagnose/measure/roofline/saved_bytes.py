"""How many bytes the arguments of operators have: what autograd saves of a forward pass, to within a factor of two.

Nearly all that is saved for the backward pass is an argument of some operator; an argument of two counts twice, and
parameters count though they are there anyway. The sum is therefore rather too large than too small.
"""

from __future__ import annotations

import math

import numpy as np

from diagnose.measure.views.shapes import parsed_dtypes, parsed_shapes
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Int64

_BYTES = {
    **dict.fromkeys(("float", "int", "c10::complex<c10::Half>"), 4),
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short"), 2),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    "c10::complex<double>": 16,
}


def argument_bytes(trace: Trace, ops: Int64) -> Int64:
    """Per operator the bytes of its tensor arguments; -1 where shapes or formats are not recorded."""
    if not len(ops):
        return np.empty(0, np.int64)
    shapes, dtypes = trace.ops.shapes[ops].astype(np.int64), trace.ops.dtypes[ops].astype(np.int64)
    pairs, place = np.unique(np.stack((shapes, dtypes)), axis=1, return_inverse=True)
    sizes = [_size(trace, int(shape), int(dtype)) for shape, dtype in pairs.T.tolist()]
    return np.asarray(sizes, np.int64)[place.ravel()]


def _size(trace: Trace, shapes: int, dtypes: int) -> int:
    if shapes == MISSING or dtypes == MISSING:
        return MISSING
    sizes, formats = parsed_shapes(trace.texts[shapes]), parsed_dtypes(trace.texts[dtypes])
    if sizes is None or formats is None:
        return MISSING
    return sum(
        math.prod(size) * _BYTES[one] for size, one in zip(sizes, formats, strict=False) if size and one in _BYTES
    )
