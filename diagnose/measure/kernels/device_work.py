"""The device's work in the counted steps, and what bounds it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from diagnose.measure.kernels.compiled_regions import CompiledRegions, compiled_regions
from diagnose.measure.kernels.eager_attention import WrittenAttention, written_attention
from diagnose.measure.kernels.growing_work import GrowingWork, growing_work
from diagnose.measure.kernels.launch_order import LaunchOrder, program_order
from diagnose.measure.kernels.layout_conversions import layout_conversions
from diagnose.measure.kernels.loss_work import LossWork, loss_work
from diagnose.measure.kernels.matmuls import Matmuls, products_of
from diagnose.measure.kernels.memory_chains import MemoryChain, memory_chains
from diagnose.measure.kernels.misaligned_matmuls import MisalignedMatmuls, misaligned
from diagnose.measure.kernels.pointwise_chains import COMPOSITES, Chain, pointwise_chains
from diagnose.measure.kernels.recomputation import Recomputations, recomputations
from diagnose.measure.kernels.sharing.preempted_kernels import stretched
from diagnose.measure.kernels.sharing.time_slices import handed_over
from diagnose.measure.roofline.ceilings import Ceilings, ceilings_of
from diagnose.measure.roofline.kernel_bounds import Bound, KernelBounds, kernel_bounds
from diagnose.measure.roofline.kernel_counters import kernel_counters
from diagnose.measure.roofline.kernel_work import kernel_work
from diagnose.measure.roofline.occupancy import fill_of
from diagnose.measure.roofline.op_costs import OpWork, work_of
from diagnose.measure.roofline.roofline import MATRIX_CLASSES, Roofline, arithmetic_of, roofline_of
from diagnose.measure.steps.timeline import Timeline
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.model import StepWork
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, CopyDirection, Float64, Int64, WorkKind


class DeviceWork(Timeline):
    """The timeline of one rank with its kernels: what they compute and what they could take."""

    @cached_property
    def program_order(self) -> LaunchOrder:
        """Device work in the order in which the program launched it, each piece under its operator's name."""
        return program_order(self)

    @cached_property
    def products(self) -> Matmuls:
        """The matrix products whose sizes are recorded."""
        return products_of(self.program_order)

    @cached_property
    def misaligned(self) -> MisalignedMatmuls:
        """Products that are slow because their matrices are not aligned."""
        return misaligned(self.program_order, self.products)

    @cached_property
    def loss_work(self) -> LossWork:
        """The work of the loss."""
        return loss_work(self.program_order)

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """Chains of elementwise kernels, outside the optimizer, written attention and the loss."""
        return pointwise_chains(self.program_order, self._explained)

    @cached_property
    def chain_places(self) -> Bool:
        """Which places of the program order belong to chains."""
        return self.program_order.mask((one.first, one.last) for one in self.chains)

    @cached_property
    def memory_chains(self) -> tuple[MemoryChain, ...]:
        """Chains of eager, memory-bound work that has no rule of its own; none where the ceilings are unknown."""
        if self.ceilings is None:
            return ()
        return memory_chains(self.program_order, self.kernel_bounds, self.ceilings, self._has_own_rule)

    @cached_property
    def eager_memory_ns(self) -> int:
        """Device time of the eager, memory-bound work that `memory_chains` is made of, its bytes known or not."""
        order = self.program_order
        memory = (self.kernel_bounds.kind[order.rows] == Bound.MEMORY) & ~np.isin(order.kind, MATRIX_CLASSES)
        return int(order.length_ns[order.eager & memory & ~self._has_own_rule].sum())

    @cached_property
    def _has_own_rule(self) -> Bool:
        order = self.program_order
        own = self.attention_places | self.chain_places | (order.kind == KernelClass.OPTIMIZER)
        own[self.loss_work.places] = True
        return np.asarray(own | self.layout_conversions[order.rows], np.bool_)

    @cached_property
    def _explained(self) -> Bool:
        order = self.program_order
        explained: Bool = self.attention_places | (order.kind == KernelClass.OPTIMIZER)
        explained[self.loss_work.places] = True
        # What an operator of PyTorch's own is made of, where it has no kernel for it, the program did not write out.
        explained |= order.within(COMPOSITES)
        return explained

    @cached_property
    def written_attention(self) -> tuple[WrittenAttention, ...]:
        """Every pass over an attention that is written out."""
        return written_attention(self.program_order)

    @cached_property
    def attention_places(self) -> Bool:
        """Which places of the program order belong to attention written out."""
        return self.program_order.mask((one.first, one.last) for one in self.written_attention)

    @cached_property
    def fill(self) -> Float64:
        """Per row of device work, the share (0 to 1) of the device that its grid fills; NaN where it is unknown."""
        return fill_of(self.trace, self.classes, self.op_of_work)

    @cached_property
    def compiled_regions(self) -> CompiledRegions:
        """The calls of functions that torch.compile compiled, and what their graph breaks cost the host."""
        return compiled_regions(self.trace, self.op_tree)

    @cached_property
    def layout_conversions(self) -> Bool:
        """Which rows of device work only write a convolution's tensor again in another memory format."""
        return layout_conversions(self.trace, self.op_tree, self.launches, self.classes)

    @cached_property
    def recomputations(self) -> Recomputations:
        """The work that the backward pass computed a second time."""
        return recomputations(self.trace, self.op_tree)

    @cached_property
    def growing_work(self) -> GrowingWork | None:
        """Kernels that take longer in every step than in the step before; None where none do."""
        return growing_work(self)

    @cached_property
    def stretched(self) -> Int64 | None:
        """Per row of device work, ns beyond what the kernel takes in other steps; None where no steps are alike."""
        return stretched(self)

    @cached_property
    def handed_over(self) -> Intervals:
        """Gaps of the device in which another process had its turn, as they betray themselves by their length."""
        return handed_over(self)

    @cached_property
    def ceilings(self) -> Ceilings | None:
        """The ceilings of the device; None for a device that nobody measured and no table lists."""
        return ceilings_of(self.trace)

    @cached_property
    def op_work(self) -> OpWork:
        """Per row of `trace.ops`, the arithmetic and the bytes of what launched device work; -1 for unknown."""
        return work_of(self.trace, np.unique(self.op_of_work))

    @cached_property
    def roofline(self) -> Roofline | None:
        """How near the ceilings the operators of the counted steps came; None without ceilings."""
        if self.ceilings is None:
            return None
        kernels = self.rows_within_steps(self.trace.device.kind == WorkKind.KERNEL)
        return roofline_of(self.trace, kernels, self.op_of_work, self.op_work, self.ceilings)

    @cached_property
    def kernel_bounds(self) -> KernelBounds:
        """The bound of each piece of device work of the counted steps, and its time at that bound."""
        device = self.trace.device
        rows = self.rows_within_steps(
            (device.kind != WorkKind.COPY) | (device.direction == CopyDirection.DEVICE_TO_DEVICE)
        )
        work = kernel_work(self.trace, rows, self.classes, self.op_of_work, self.op_work)
        return kernel_bounds(
            self.trace,
            rows,
            self.classes,
            self.op_of_work,
            work,
            self.fill,
            self.ceilings,
            kernel_counters(self.trace),
        )

    @cached_property
    def step_work(self) -> StepWork | None:
        """The arithmetic of a step and how near the ceiling it came; None where nothing is known of it."""
        if self.roofline is None or self.ceilings is None or self.step_count == 0:
            return None
        matrix = self.rows_within_steps(np.isin(self.classes, MATRIX_CLASSES))
        again = self.recomputations.launched(self.launches)
        done = arithmetic_of(self.trace, self.roofline, self.op_work, self.op_of_work, matrix, again)
        return done.per_step(self.total_ns, self.step_count, self.ceilings)
