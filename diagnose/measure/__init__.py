"""Measures: what the rules know about one rank, computed when first asked for and kept.

measures = Measures(trace)
measures.mean_ns                # the mean counted step
measures.accounting_of(0)       # classes that sum to step 0
measures.idle["sync"]           # the idle time that waits for the device caused, as intervals
measures.places(measures.idle["sync"], "sync")

Each view adds its values to the one before it. A function takes the first view that has what it reads, so no module
below imports this one.

steps.timeline ──▶ kernels.device_work ──▶ replay.host_waits ──▶ lines.host_side ──▶ comm.rank_collectives ──▶
    comm.ddp.rank_gradients ──▶ Measures, with memory and what is computed from several views
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from diagnose.measure.comm.ddp.rank_gradients import RankGradients
from diagnose.measure.kernels.practical_ceiling import practical_ceiling
from diagnose.measure.kernels.wide_formats import WideFormats, wide_formats
from diagnose.measure.lines.compute_parts import compute_kinds
from diagnose.measure.lines.new_shapes import NewShapes, new_shapes
from diagnose.measure.memory.allocating_ops import AllocatingOps
from diagnose.measure.memory.allocator_calls import DeviceAllocation, device_allocation
from diagnose.measure.memory.peak import memory_peak
from diagnose.measure.memory.usage import MemoryUse, main_memory, memory_use
from diagnose.measure.views.counters import readings
from diagnose.model import MemoryPeak, PracticalCeiling
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Float64

__all__ = ["Measures"]


class Measures(RankGradients):
    """Named, cached values over the trace of one rank. Times are integer nanoseconds on the trace's clock."""

    @cached_property
    def wide_formats(self) -> WideFormats | None:
        """The 32-bit work that would be shorter in 16 bits; None where the device's formats are unknown."""
        return wide_formats(self)

    @cached_property
    def memory(self) -> MemoryUse:
        """The memory of the busiest device; without one, that of the host."""
        return memory_use(self.trace, main_memory(self.trace))

    @cached_property
    def memory_peak(self) -> MemoryPeak | None:
        """Return the contents of a device's memory at its peak; None where no history of its allocator was recorded."""
        logits = self.loss_work.logits if self.has_device else None
        sizes = np.asarray([size * math.prod(logits) for size in (2, 4)] if logits else (), np.int64)
        ops = AllocatingOps(self) if len(self.trace.ops) and len(self.trace.memory) else None
        return memory_peak(self.trace, main_memory(self.trace), sizes, ops)

    @cached_property
    def memory_in_steps(self) -> bool:
        """Whether what the allocator did in the counted steps was recorded: a live run records it in later ones."""
        times, steps = self.trace.memory.time_ns, self.steps
        return bool(len(steps)) and bool(((times >= steps.host_start_ns[0]) & (times < steps.host_end_ns[-1])).any())

    @cached_property
    def device_allocation(self) -> DeviceAllocation:
        """The calls of the counted steps that take memory from the device or give it back."""
        return device_allocation(self.trace, self.steps, self.op_tree)

    @cached_property
    def new_shapes(self) -> NewShapes:
        """Calls in which an operator first saw a shape, and took far longer than with one that it knew."""
        return new_shapes(self)

    def readings(self, names: Sequence[str]) -> Mapping[str, Float64]:
        """Counters of the busiest device, moment by moment; NaN where a moment lacks one."""
        return readings(self.trace, names)

    @cached_property
    def compute_kinds(self) -> Mapping[str, Intervals]:
        """The device's compute by what bounds it, as disjoint sets of time whose union is the compute; empty without a
        device.
        """
        return compute_kinds(self) if self.has_device else {}

    @cached_property
    def practical_ceiling(self) -> PracticalCeiling | None:
        """The shortest step that this model could have on this device; None where too little is known."""
        return practical_ceiling(self)
