"""Recordings of jobs of several ranks, drawn: four equal steps, with what their collectives say."""

from __future__ import annotations

from typing import Any

from diagnose.measure import Measures
from diagnose.model import CollectiveCurve
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn

MS = 1_000_000
MIB = 1 << 20
KERNELS = {"b": "gemm", "d": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
CURVE = CollectiveCurve("all_reduce", 2, 1, (1 * MIB, 16 * MIB, 256 * MIB), (30_000, 80_000, 900_000))


def measured(picture: str, comms: dict[str, Collective], **known: Any) -> Measures:
    """Measures of a drawn recording."""
    return Measures(drawn(picture, repeat=4, kernels=KERNELS, comms=comms, **known))
