"""How much shorter the counted steps would be if collectives took less time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diagnose.measure.recoverable import scaled_ns
from diagnose.measure.replay import Cut
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

if TYPE_CHECKING:
    from diagnose.measure import Measures


@dataclass(frozen=True, eq=False, slots=True)
class Shortened:
    """What shorter collectives give back."""

    gain_ns: int
    """Over all counted steps together."""
    exposed: Intervals
    """The time that goes, as far as nothing was computed in it."""
    cut: Cut | None
    """The change itself; None without a device."""


def shortened(measures: Measures, from_ns: Int64, to_ns: Int64) -> Shortened:
    """The gain if each collective (a row of `measures.communication`) that takes `from_ns` at its end took `to_ns`.

    Never more than the exposed part of what goes, nor than the replay says where there is one.
    """
    comm = measures.communication
    goes = np.clip(from_ns - to_ns, 0, comm.duration_ns)
    exposed = (Intervals.of(comm.end_ns - to_ns - goes, comm.end_ns - to_ns) - measures.compute) & measures.counted
    most = exposed.total_ns
    if most == 0 or not measures.has_device:
        return Shortened(most, exposed, None)
    scale = np.ones(len(measures.trace.device))
    scale[comm.row] = 1 - goes / np.maximum(comm.duration_ns, 1)
    saved = scaled_ns(measures, scale)
    return Shortened(most if saved is None else min(most, saved), exposed, Cut(scale=scale))
