"""The counted steps of one rank, and where their time went: the first of what `Measures` is made of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diagnose.measure.steps.accounting import (
    Occupation,
    account,
    account_within,
    add_accountings,
    device_occupation,
    main_device,
)
from diagnose.measure.steps.backward_passes import BackwardPasses, backward_passes, lacks_optimizer, only_infers
from diagnose.measure.steps.host_accounting import host_idle, host_occupation
from diagnose.measure.steps.idle import CAUSES, device_idle
from diagnose.measure.steps.optimizer_work import launched_by_optimizer, own_starts_ns
from diagnose.measure.steps.outlier_steps import without_rare_steps
from diagnose.measure.steps.step_marks import training_thread
from diagnose.measure.steps.steps import StepSpans, find_steps
from diagnose.measure.views.kernel_classes import classes_of
from diagnose.measure.views.launches import Launches, launches_of
from diagnose.measure.views.op_tree import OpTree, op_tree
from diagnose.model import Accounting
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Int64


class Timeline:
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
    def op_tree(self) -> OpTree:
        """The operators as a tree, and what hangs on it."""
        return op_tree(self.trace, self.launches)

    @cached_property
    def op_of_work(self) -> Int64:
        """Per row of device work, the innermost operator that launched it (a row of `trace.ops`); -1 for unknown."""
        return self.op_tree.of_work

    @cached_property
    def rows(self) -> Bool:
        """Rows of device work that are accounted for: those of the busiest device."""
        return main_device(self.trace)

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        """The `kernels.KernelClass` of every row of device work."""
        return classes_of(self.trace, self.op_of_work, launched_by_optimizer(self.trace, self.launches))

    @cached_property
    def steps(self) -> StepSpans:
        """The counted steps."""
        return without_rare_steps(self.trace, find_steps(self.trace, self.rows, self.launches))

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
        """The occupation of the device, or without one of the host."""
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
    def accountings(self) -> tuple[Accounting, ...]:
        """One per counted step; each sums to its step exactly."""
        starts, ends = self.steps.start_ns, self.steps.end_ns
        return tuple(account(self.occupation, self.idle, starts, ends, self.compute_kinds))

    @property
    def compute_kinds(self) -> Mapping[str, Intervals]:
        """The compute by what bounds it, as disjoint sets of time; empty where the bounds were not determined."""
        return {}

    @cached_property
    def accounting(self) -> Accounting:
        """All counted steps together."""
        return (
            add_accountings(list(self.accountings)) if self.accountings else Accounting(idle=dict.fromkeys(CAUSES, 0))
        )

    def accounting_within(self, time: Intervals) -> Accounting:
        """Return where some of the time of the counted steps went."""
        return account_within(self.occupation, self.idle, self.compute_kinds, time & self.counted)

    def accounting_of(self, step: int) -> Accounting:
        """Return where the time of one step went."""
        return self.accountings[step]

    def per_step(self, intervals: Intervals) -> Int64:
        """Return how much of each counted step lies in some intervals."""
        return intervals.covered(self.steps.start_ns, self.steps.end_ns)

    def share(self, intervals: Intervals) -> float:
        """The part (0 to 1) of the counted steps that lies in some intervals; 0.0 without steps."""
        return int(self.per_step(intervals).sum()) / self.total_ns if self.total_ns else 0.0

    def rows_within_steps(self, mask: Bool) -> Int64:
        """Rows of device work that a mask chooses and that begin within the counted steps, in order."""
        if self.step_count == 0:
            return np.empty(0, np.int64)
        start = self.trace.device.start_ns
        inside = (start >= self.steps.start_ns[0]) & (start < self.steps.end_ns[-1])
        return np.flatnonzero(mask & self.rows & inside)

    def time_of(self, rows: Int64) -> Intervals:
        """The time of some rows of device work within the counted steps."""
        return Intervals.of_rows(self.trace.device, rows) & self.counted

    @cached_property
    def backward_passes(self) -> BackwardPasses:
        """When the host issued which backward pass."""
        return backward_passes(self.trace)

    @cached_property
    def only_infers(self) -> bool:
        """Whether operators were recorded, and no training: neither a backward pass nor an optimizer."""
        return only_infers(self.trace)

    @cached_property
    def lacks_optimizer(self) -> bool:
        """Whether operators were recorded, and no optimizer's step."""
        return lacks_optimizer(self.trace)

    def optimizer_starts_ns(self, rows: Int64) -> Int64:
        """Return when the optimizer's own work begins in each of its ranges: after the passes of a closure that it
        calls."""
        return own_starts_ns(self.trace, rows)
