"""Measures: what the rules know about one rank, computed when first asked for and kept.

measures = Measures(trace)
measures.mean_ns                # the mean counted step
measures.accounting_of(0)       # classes that sum to step 0
measures.idle["sync"]           # the idle time that waits for the device caused, as intervals
measures.places(measures.idle["sync"], "sync")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diagnose.measure.accounting import Occupation, account, added, device_occupation, main_device
from diagnose.measure.activity import calls_of, ops_of, pageable_waits_of, ranges_of, waits_of
from diagnose.measure.alignment import Misaligned, misaligned
from diagnose.measure.allocation import DeviceAllocation, device_allocation
from diagnose.measure.backward import BackwardPasses, backward_passes
from diagnose.measure.ceilings import Ceilings, ceilings_of
from diagnose.measure.communication import Communication, communication_of
from diagnose.measure.compiled import CompiledRegions, compiled_regions
from diagnose.measure.exchange import Exchange
from diagnose.measure.fill import fill_of
from diagnose.measure.followed import FollowedLines, followed_lines
from diagnose.measure.framework_python import framework_python
from diagnose.measure.host import host_idle, host_occupation
from diagnose.measure.idle import CAUSES, ISSUE_NS, LATENCY_NS, REFILL_NS, device_idle
from diagnose.measure.kernels import KernelClass, classes_of
from diagnose.measure.late_gradients import LateGradients, late_gradients
from diagnose.measure.launch import Launches, launch_cost_ns, launches_of, queue_depth
from diagnose.measure.layouts import layout_conversions
from diagnose.measure.loss_work import LossWork, loss_work
from diagnose.measure.marks import training_thread
from diagnose.measure.memory import MemoryUse, main_memory, memory_use
from diagnose.measure.optimizer_work import launched_by_optimizer
from diagnose.measure.optree import OpTree, op_tree
from diagnose.measure.places import places_of, ranked_places
from diagnose.measure.pointwise_chains import COMPOSITES, Chain, chained, loose, pointwise_chains
from diagnose.measure.products import Products, products_of
from diagnose.measure.program_order import ProgramOrder, program_order
from diagnose.measure.readings import readings
from diagnose.measure.recomputation import Recomputations, recomputations
from diagnose.measure.replay import Replay
from diagnose.measure.replay_overhead import LEAST_LEFT
from diagnose.measure.roofline import MATRIX_CLASSES, Roofline, arithmetic_of, roofline_of
from diagnose.measure.steps import StepSpans, find_steps
from diagnose.measure.stretched import stretched
from diagnose.measure.validity import Violation, check
from diagnose.measure.value_reads import value_reads
from diagnose.measure.work import OpWork, work_of
from diagnose.measure.written_attention import WrittenAttention, attention_places, written_attention
from diagnose.model import Accounting, Place, StepWork
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Float64, Int64, RangeKind, WorkKind

__all__ = ["Measures"]

_KNOWN_SHARE = 0.5
"""Of some time: below it, most passed in steps that do something else than the one whose lines were followed."""


class Measures:
    """Named, cached values over the trace of one rank. Times are integer nanoseconds on the trace's clock."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def has_device(self) -> bool:
        """Whether device work was recorded; without it, the accounting is that of the host."""
        return self.trace.has_device

    @cached_property
    def blind(self) -> bool:
        """Whether the program used a device whose work was not recorded: then host time need not cost anything."""
        trace = self.trace
        if self.has_device:
            return False
        used = trace.facts.device_name is not None or bool(trace.device_names)
        return used or len(trace.calls) > 0 or any(name.startswith("nccl:") for name in trace.names)

    @cached_property
    def thread(self) -> int:
        """The training thread, an index into `trace.threads`; -1 where none is known."""
        return training_thread(self.trace)

    @cached_property
    def launches(self) -> Launches:
        """Per row of device work, the call that launched it."""
        return launches_of(self.trace)

    @cached_property
    def op_of_work(self) -> Int64:
        """Per row of device work, the innermost operator that launched it (a row of `trace.ops`); -1 for unknown."""
        return self.op_tree.of_work

    @cached_property
    def op_tree(self) -> OpTree:
        """The operators as a tree, and what hangs on it."""
        return op_tree(self.trace, self.launches)

    @cached_property
    def program_order(self) -> ProgramOrder:
        """Device work in the order in which the program launched it, each piece under its operator's name."""
        return program_order(self)

    @cached_property
    def products(self) -> Products:
        """The matrix products whose sizes are recorded."""
        return products_of(self.program_order)

    @cached_property
    def misaligned(self) -> Misaligned:
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
        return chained(self.program_order, self.chains)

    @cached_property
    def loose_places(self) -> Bool:
        """Which places are eager elementwise work outside chains, the optimizer, written attention and the loss."""
        return loose(self.program_order, self._explained | self.chain_places)

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
        return attention_places(self.program_order, self.written_attention)

    @cached_property
    def rows(self) -> Bool:
        """Rows of device work that are accounted for: those of the busiest device."""
        return main_device(self.trace)

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        """The `kernels.KernelClass` of every row of device work."""
        return classes_of(self.trace, self.op_of_work, launched_by_optimizer(self.trace, self.launches))

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
    def memory(self) -> MemoryUse:
        """The memory of the busiest device; without one, that of the host."""
        return memory_use(self.trace, main_memory(self.trace))

    @cached_property
    def device_allocation(self) -> DeviceAllocation:
        """The calls of the counted steps that take memory from the device or give it back."""
        return device_allocation(self.trace, self.steps, self.op_tree)

    @cached_property
    def recomputations(self) -> Recomputations:
        """What the backward pass computed a second time."""
        return recomputations(self.trace, self.op_tree)

    @cached_property
    def steps(self) -> StepSpans:
        """The counted steps."""
        return find_steps(self.trace, self.rows, self.launches)

    @cached_property
    def stretched(self) -> Int64 | None:
        """Per row of device work, ns beyond what the kernel takes in other steps; None where no steps are alike."""
        return stretched(self)

    def readings(self, names: Sequence[str]) -> Mapping[str, Float64]:
        """Counters of the busiest device, moment by moment; NaN where a moment lacks one."""
        return readings(self.trace, names)

    @property
    def step_count(self) -> int:
        """How many steps are counted."""
        return len(self.steps)

    @cached_property
    def total_ns(self) -> int:
        """The length of all counted steps together."""
        return int(self.steps.length_ns.sum())

    @property
    def mean_ns(self) -> float:
        """The mean length of a step; 0.0 without steps."""
        return self.total_ns / self.step_count if self.step_count else 0.0

    @cached_property
    def counted(self) -> Intervals:
        """The time of all counted steps."""
        return Intervals.of(self.steps.start_ns, self.steps.end_ns)

    @cached_property
    def occupation(self) -> Occupation:
        """What occupied the device, or without one the host."""
        if self.has_device:
            return device_occupation(self.trace, self.rows, self.classes)
        return host_occupation(self.trace, self.thread)

    @property
    def compute(self) -> Intervals:
        """Time with compute."""
        return self.occupation.compute

    @property
    def comm(self) -> Intervals:
        """Time with communication, covered by compute or not."""
        return self.occupation.comm

    @property
    def copies(self) -> Intervals:
        """Time with copies, covered by other work or not."""
        return self.occupation.copies

    @cached_property
    def busy(self) -> Intervals:
        """Time with any work."""
        return self.occupation.busy

    @cached_property
    def busy_ns(self) -> Int64:
        """Per step, the time with any work."""
        return self.busy.covered(self.steps.start_ns, self.steps.end_ns)

    @cached_property
    def idle(self) -> Mapping[str, Intervals]:
        """Idle time within the counted steps, by cause (`idle.CAUSES`); disjoint, every cause present."""
        if self.step_count == 0:
            return {cause: Intervals.empty() for cause in CAUSES}
        if not self.has_device:
            return host_idle(self.trace, self.occupation, self.thread, self.steps)
        start, end = int(self.steps.start_ns[0]), int(self.steps.end_ns[-1])
        return device_idle(self.trace, self.busy, self.launches, self.thread, start, end)

    def idle_of(self, *causes: str) -> Intervals:
        """Idle time of some causes together, of all without any."""
        return Intervals.union(self.idle[cause] for cause in causes or CAUSES)

    @cached_property
    def python_stalls(self) -> Intervals:
        """Idle time in the program's Python, of stretches too long to be the Python around one operator."""
        long = self.idle["python"].at_least(REFILL_NS)
        return (long - framework_python(self.trace, self.thread, long)).at_least(REFILL_NS)

    @cached_property
    def issue_gaps(self) -> Intervals:
        """Idle time in which the host was issuing work: dispatch, launch calls, its Python, and the latency after."""
        dependency, launch = self.idle["dependency"], self._brisk(self.idle["launch"])
        follows = np.isin(dependency.starts, launch.ends, assume_unique=True) & (dependency.lengths_ns <= LATENCY_NS)
        latency = Intervals(dependency.starts[follows], dependency.ends[follows])
        python = self._brisk(self.idle["python"] - self.python_stalls)
        return Intervals.union((self._brisk(self.idle["dispatch"]), launch, python, latency))

    def _brisk(self, pieces: Intervals) -> Intervals:
        """Without pieces in which hardly anything was issued: loading a module, starting the runtime, a lock."""
        count = np.searchsorted(self._begun, pieces.ends) - np.searchsorted(self._begun, pieces.starts)
        brisk = pieces.lengths_ns <= ISSUE_NS * (1 + count)
        return Intervals(pieces.starts[brisk], pieces.ends[brisk])

    @cached_property
    def _begun(self) -> Int64:
        """When operators and calls began."""
        # A stable sort merges what is sorted already, and both tables are.
        return np.sort(np.concatenate((self.trace.ops.start_ns, self.trace.calls.start_ns)), kind="stable")

    @cached_property
    def accountings(self) -> tuple[Accounting, ...]:
        """One per counted step; each sums to its step exactly."""
        return tuple(account(self.occupation, self.idle, self.steps.start_ns, self.steps.end_ns))

    @cached_property
    def accounting(self) -> Accounting:
        """All counted steps together."""
        return added(list(self.accountings)) if self.accountings else Accounting(idle=dict.fromkeys(CAUSES, 0))

    def accounting_of(self, step: int) -> Accounting:
        """Where the time of one step went."""
        return self.accountings[step]

    @cached_property
    def waits(self) -> Intervals:
        """Time in which the training thread waited for the device in a call."""
        return calls_of(self.trace, {self.thread}, waits_of(self.trace))

    @cached_property
    def pageable_waits(self) -> Intervals:
        """Time in calls that copy from pageable memory to the device, and in the waits that directly follow them."""
        return pageable_waits_of(self.trace, self.thread)

    @cached_property
    def value_reads(self) -> Intervals:
        """Time of the training thread in operators that read a value or a size of the device, waits in it included."""
        mine = waits_of(self.trace) & (self.trace.calls.thread == self.thread)
        return value_reads(self.trace, self.op_tree, np.asarray(mine, np.bool_))

    @cached_property
    def wait_calls(self) -> Int64:
        """Rows of `trace.calls` on the training thread that wait for the device, within the host's counted steps."""
        calls = self.trace.calls
        mine = waits_of(self.trace) & ((calls.thread == self.thread) | (calls.thread == -1))
        if self.step_count == 0:
            return np.empty(0, np.int64)
        start, end = self.steps.host_start_ns[0], self.steps.host_end_ns[-1]
        return np.flatnonzero(mine & (calls.start_ns >= start) & (calls.start_ns < end))

    @cached_property
    def host_work_ns(self) -> Int64:
        """Per step, what the host spent between its marks without waiting for the device or for data."""
        idle = self.waits | ranges_of(self.trace, RangeKind.INPUT, {self.thread})
        starts, ends = self.steps.host_start_ns, self.steps.host_end_ns
        return np.asarray(ends - starts - idle.covered(starts, ends), np.int64)

    @cached_property
    def issuing(self) -> Intervals:
        """Host time in which threads that launch work issue it: operators and calls with the short Python between."""
        launchers = set(np.unique(self.trace.calls.thread[self.launches.call[self.launches.linked]]).tolist())
        threads = (launchers | {self.thread}) - {-1}
        calls = calls_of(self.trace, threads, np.ones(len(self.trace.calls), np.bool_))
        loading = ranges_of(self.trace, RangeKind.INPUT, threads)
        return (ops_of(self.trace, threads) | calls).joined(REFILL_NS) - self.waits - loading

    @cached_property
    def issuing_ns(self) -> Int64:
        """Per step, between the host's marks, the time spent issuing work."""
        return self.issuing.covered(self.steps.host_start_ns, self.steps.host_end_ns)

    @cached_property
    def queue_depth(self) -> Int64:
        """Per row of device work: how much work was launched and not yet begun when it was launched."""
        return queue_depth(self.trace, self.launches)

    @cached_property
    def launch_cost_ns(self) -> int | None:
        """The median time that launching a kernel takes the host; None where no launch is known."""
        return launch_cost_ns(self.trace, self.launches)

    @cached_property
    def backward_passes(self) -> BackwardPasses:
        """When the host issued which backward pass."""
        return backward_passes(self.trace)

    @cached_property
    def communication(self) -> Communication:
        """The collectives of the counted steps."""
        return communication_of(self.trace, self.launches, self.classes, self.rows, self.steps, self.backward_passes)

    @cached_property
    def exchange(self) -> Exchange:
        """The same, with what is wrong with them."""
        return Exchange(self.trace, self.communication)

    @cached_property
    def late_gradients(self) -> LateGradients:
        """Gradients that are reduced after the backward pass."""
        return late_gradients(self)

    @cached_property
    def followed(self) -> FollowedLines:
        """The lines that the training thread went through in the counted steps, where the run followed them."""
        return followed_lines(self.trace, self.thread, self.steps)

    @cached_property
    def replay(self) -> Replay:
        """The counted steps, to be replayed with something changed."""
        return Replay(self.trace, self.launches, self.rows, self.steps, self.thread, self.op_tree)

    @cached_property
    def recording_ns(self) -> Int64:
        """Per step, between the host's marks, what the profiler's records cost the threads that issue work.

        Zeros where the recording does not show what it cost (`measure.recording`).
        """
        if self.step_count == 0 or not self.has_device:
            return np.zeros(self.step_count, np.int64)
        records, scale = self.replay.records, self.recording_scale
        starts, ends = self.steps.host_start_ns, self.steps.host_end_ns
        most = (self.host_work_ns * (1 - LEAST_LEFT)).astype(np.int64)
        return np.minimum((records.between(starts, ends) * scale).astype(np.int64), np.maximum(most, 0))

    @cached_property
    def recording_scale(self) -> float:
        """How many times the usual cost the profiler's records had on this host; 0.0 where it is not known."""
        return self.replay.recording_scale or self.replay.records.scale

    def host_excess_ns(self, intervals: Intervals) -> int:
        """How much of some time of the host went into what the profiler wrote down; 0 where it is not known."""
        if self.step_count == 0 or not self.has_device:
            return 0
        return self.replay.records.within(intervals, self.recording_scale)

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        """What the recording says that cannot be."""
        return check(self.trace)

    @cached_property
    def doubt(self) -> Intervals:
        """Time of which the cause is less than proven, because the recording contradicts itself there."""
        return Intervals.union(violation.doubt for violation in self.violations)

    @cached_property
    def ceilings(self) -> Ceilings | None:
        """What the device can do at most; None for a device that nobody measured and no table has."""
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
    def step_work(self) -> StepWork | None:
        """The arithmetic of a step and how near the ceiling it came; None where nothing is known of it."""
        if self.roofline is None or self.ceilings is None or self.step_count == 0:
            return None
        matrix = self.rows_within_steps(np.isin(self.classes, MATRIX_CLASSES))
        again = self.recomputations.launched(self.launches)
        done = arithmetic_of(self.trace, self.roofline, self.op_work, self.op_of_work, matrix, again)
        return done.per_step(self.total_ns, self.step_count, self.ceilings.source)

    def per_step(self, intervals: Intervals) -> Int64:
        """How much of each counted step lies in some intervals."""
        return intervals.covered(self.steps.start_ns, self.steps.end_ns)

    def share(self, intervals: Intervals) -> float:
        """The part (0 to 1) of the counted steps that lies in some intervals; 0.0 without steps."""
        return int(self.per_step(intervals).sum()) / self.total_ns if self.total_ns else 0.0

    def places(self, intervals: Intervals, cause: str | None = None) -> tuple[Place, ...]:
        """The lines of source that some time belongs to, the biggest share first; empty where nothing tells.

        Lines that were followed tell best, but not of waits for data or files, which differ from step to step. Given
        the `cause`, samples of the whole recording help out where too few fall into the intervals.
        """
        if self.followed and cause in (None, "python", "sync", "gc"):
            shares = self.followed.shares(intervals)
            if shares.total() >= _KNOWN_SHARE * intervals.total_ns:
                return ranked_places(shares, self.trace)
        return places_of(self.trace, intervals, cause, {self.thread} - {-1})

    def rows_within_steps(self, mask: Bool) -> Int64:
        """Rows of device work that a mask chooses and that begin within the counted steps, in order."""
        if self.step_count == 0:
            return np.empty(0, np.int64)
        start = self.trace.device.start_ns
        inside = (start >= self.steps.start_ns[0]) & (start < self.steps.end_ns[-1])
        return np.flatnonzero(mask & self.rows & inside)

    def time_of(self, rows: Int64) -> Intervals:
        """The time of some rows of device work within the counted steps."""
        return Intervals.of(self.trace.device.start_ns[rows], self.trace.device.end_ns[rows]) & self.counted
