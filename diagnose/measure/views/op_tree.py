"""The operators of a rank as a tree, and what hangs on it: calls, device work, backward operators, modules.

tree = op_tree(trace)
tree.nesting.self_ns         # per operator
tree.of_work                 # per row of device work, the operator that caused it
tree.forward                 # per backward operator, the forward operator that it differentiates
tree.module_path(row)        # ("ResNet_0", "Sequential_2", "Conv2d_7")
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from diagnose.measure.views.launches import Launches, joined, launches_of
from diagnose.measure.views.names import named
from diagnose.measure.views.nesting import Nesting, nested
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64

_MODULE = re.compile(r"^nn\.Module: ")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |Backward\d*$")


class OpTree:
    """Named, cached views of one rank's operators. Rows are those of `trace.ops`, -1 where there is none."""

    def __init__(self, trace: Trace, launches: Launches | None = None) -> None:
        self.trace = trace
        self._launches = launches

    @cached_property
    def nesting(self) -> Nesting:
        """Parents, depths and self times of operators."""
        ops = self.trace.ops
        return nested(ops.start_ns, ops.end_ns, ops.thread)

    @cached_property
    def levels(self) -> tuple[Int64, ...]:
        """The rows of operators by depth, the outermost first."""
        depth = self.nesting.depth
        order = np.argsort(depth, kind="stable")
        borders = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1))
        return tuple(np.split(order, borders))

    @cached_property
    def of_call(self) -> Int64:
        """Per row of `trace.calls`, the innermost operator around it."""
        calls = self.trace.calls
        return self.nesting.innermost(calls.thread, calls.start_ns)

    @cached_property
    def of_work(self) -> Int64:
        """Per row of device work, the operator that caused it: by its id, else the innermost around its launch.

        Some recordings number operators and work apart: where most operators of the ids were not running when the
        work was launched, ids are not believed.
        """
        device, ops, calls = self.trace.device, self.trace.ops, self.trace.calls
        by_id = joined(device.external_id, ops.external_id, ops.start_ns)
        call = (self._launches or launches_of(self.trace)).call
        both = np.flatnonzero((by_id != MISSING) & (call != MISSING))
        op, launch_ns = by_id[both], calls.start_ns[call[both]]
        if 2 * np.count_nonzero((ops.start_ns[op] <= launch_ns) & (launch_ns <= ops.end_ns[op])) < len(both):
            by_id = np.full(len(by_id), MISSING, np.int64)
        by_launch = np.where(call == MISSING, MISSING, self.of_call[call]) if len(self.of_call) else by_id
        return np.where(by_id == MISSING, by_launch, by_id)

    @cached_property
    def device_ns(self) -> Int64:
        """Per operator, the device time of all work that it and the operators in it caused; overlap counts twice."""
        device, of_work = self.trace.device, self.of_work
        known = of_work != MISSING
        length = (device.end_ns - device.start_ns)[known]
        own = np.bincount(of_work[known], weights=length, minlength=len(self.trace.ops)).astype(np.int64)
        return self.nesting.rolled_up(own)

    @cached_property
    def backward(self) -> Bool:
        """Which operators run in a backward pass."""
        ops = self.trace.ops
        return np.asarray((ops.forward_thread != MISSING) | named(self.trace.names, ops.name, _BACKWARD), np.bool_)

    @cached_property
    def forward(self) -> Int64:
        """Per operator of a backward pass with a sequence number, the forward operator of that number.

        Of several, the last to begin before is meant: those before it saw the number without taking it. Numbers count
        per thread; where several threads run forward passes, the match may be another thread's.
        """
        ops = self.trace.ops
        result = np.full(len(ops), MISSING, np.int64)
        ahead = np.flatnonzero(~self.backward & (ops.sequence >= 0))
        behind = np.flatnonzero(self.backward & (ops.sequence >= 0))
        if not len(ahead) or not len(behind):
            return result
        ahead = ahead[np.lexsort((ops.start_ns[ahead], ops.sequence[ahead]))]
        first = np.searchsorted(ops.sequence[ahead], ops.sequence[behind], side="left")
        last = np.searchsorted(ops.sequence[ahead], ops.sequence[behind], side="right") - 1
        result[behind] = np.where(last >= first, ahead[np.maximum(last, 0)], MISSING)
        late = result[behind] != MISSING
        late &= ops.start_ns[np.maximum(result[behind], 0)] > ops.start_ns[behind]
        result[behind[late]] = MISSING
        return result

    @cached_property
    def modules(self) -> Int64:
        """Rows of `trace.frames` that are calls of modules."""
        return np.flatnonzero(named(self.trace.names, self.trace.frames.name, _MODULE))

    @cached_property
    def module(self) -> Int64:
        """Per operator, the place in `modules` of the innermost module around it, or around its forward operator."""
        ops = self.trace.ops
        around = self._module_nesting.innermost(ops.thread, ops.start_ns)
        through = np.where(self.forward == MISSING, MISSING, around[self.forward]) if len(ops) else around
        return np.where(around == MISSING, through, around)

    def module_path(self, row: int) -> tuple[str, ...]:
        """The modules around an operator, outermost first; empty where none are recorded."""
        path: list[str] = []
        place = int(self.module[row])
        while place != MISSING:
            name = self.trace.names[self.trace.frames.name[self.modules[place]]]
            path.append(name.removeprefix("nn.Module: "))
            place = int(self._module_nesting.parent[place])
        return tuple(reversed(path))

    @cached_property
    def _module_nesting(self) -> Nesting:
        frames = self.trace.frames
        rows = self.modules
        return nested(frames.start_ns[rows], frames.end_ns[rows], frames.thread[rows])


def op_tree(trace: Trace, launches: Launches | None = None) -> OpTree:
    """The operators of a rank; nothing is computed before it is asked for."""
    return OpTree(trace, launches)
