"""The collectives of one rank's counted steps: what each moves, when the host issued it, in which phase of a step.

Where no device was recorded, collectives of gloo and MPI are known from their ranges on the host; what NCCL's ranges
there last says nothing.

A collective lasts until the last rank has arrived and the data have moved. How much of it was waiting shows once it is
compared with the fastest one of its size and group: that is all that one rank's recording can tell. What is left, the
transfer, is at the end.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from diagnose.measure.steps.backward_passes import BackwardPasses
from diagnose.measure.steps.steps import StepSpans
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64, RangeKind, UInt8

HOST_BACKENDS = re.compile(r"^(gloo|mpi|ucc):(\w+)")
_HOST_OPS = re.compile(r"^c10d::(\w+?)_?$")
_KINDS = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce", re.I)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("all_to_all", re.compile(r"all_?to_?all", re.I)),
    ("broadcast", re.compile(r"broadcast", re.I)),
    ("send_recv", re.compile(r"send|recv", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
)
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_FLOAT_BYTES = 4  # host operators name their tensors' sizes, not their format: PyTorch's default is float32
SMALL_BYTES = 64 << 10
"""A collective below this carries a norm, a loss, statistics or a bitmap, no gradients worth naming."""


class Phase(enum.IntEnum):
    """The part of its step in which the host issued a collective."""

    UNKNOWN = 0
    FORWARD = 1
    """Outside backward passes: before the first, or between two of them."""
    BACKWARD = 2
    LATE = 3
    """The collective comes after the step's last backward pass."""


@dataclass(frozen=True, eq=False)
class Communication:
    """Columns, one row a collective of the counted steps, in the order in which they began."""

    row: Int64
    """Rows of `trace.device`, or of `trace.ranges` where no device was recorded."""
    start_ns: Int64
    end_ns: Int64
    issued_ns: Int64
    """The time at which the host issued it."""
    step: Int64
    """The counted step that issued it."""
    phase: UInt8
    round: Int64
    """How many backward passes of its step had begun when it was issued."""
    kind: npt.NDArray[np.str_]
    size_bytes: Int64
    group: Int64
    """A number for its group of ranks."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def duration_ns(self) -> Int64:
        """The time from each collective's arrival to its end, in ns."""
        return np.asarray(self.end_ns - self.start_ns, np.int64)

    @cached_property
    def transfer_ns(self) -> Int64:
        """The duration without waiting, as far as one rank can tell: that of the fastest of its kind, size, group."""
        key = np.stack((np.unique(self.kind, return_inverse=True)[1].reshape(-1), self.size_bytes, self.group), axis=1)
        _, same = np.unique(key, axis=0, return_inverse=True)
        same = same.reshape(-1)
        fastest = np.full(int(same.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(fastest, same, self.duration_ns)
        # Of unknown size, only what no other is like can be taken to be.
        known = self.size_bytes != MISSING
        return np.where(known, fastest[same], self.duration_ns)

    @cached_property
    def gradients(self) -> Bool:
        """Collectives that reduce gradients: issued in or after a backward pass, in a group that reduces something of
        size then, and does not in the forward pass as well (such a group splits the model)."""
        reduces = np.isin(self.kind, REDUCING)
        sizeable = reduces & ((self.size_bytes >= SMALL_BYTES) | (self.size_bytes == MISSING))
        after = (self.phase == Phase.BACKWARD) | (self.phase == Phase.LATE) | self.follows_a_pass
        splitting = np.unique(self.group[sizeable & ~after])
        carrying = np.setdiff1d(np.unique(self.group[sizeable & after]), splitting)
        return np.asarray(reduces & after & np.isin(self.group, carrying), np.bool_)

    @cached_property
    def follows_a_pass(self) -> Bool:
        """Issued between two backward passes of a step, and alike what was issued after the last one."""
        late = (self.phase == Phase.LATE) & np.isin(self.kind, REDUCING)
        alike = np.isin(self.size_bytes, self.size_bytes[late]) & (self.size_bytes != MISSING)
        alike &= np.isin(self.kind, REDUCING)
        return np.asarray((self.phase == Phase.FORWARD) & (self.round > 0) & alike, np.bool_)

    def where(self, rows: Bool | Int64) -> Communication:
        """Return the collectives of some of the rows."""
        return Communication(
            self.row[rows],
            self.start_ns[rows],
            self.end_ns[rows],
            self.issued_ns[rows],
            self.step[rows],
            self.phase[rows],
            self.round[rows],
            self.kind[rows],
            self.size_bytes[rows],
            self.group[rows],
        )


def communication_of(
    trace: Trace,
    launches: Launches,
    classes: npt.NDArray[np.uint8],
    rows: Bool,
    steps: StepSpans,
    passes: BackwardPasses,
) -> Communication:
    """The collectives of a trace's counted steps; `rows` masks the device work that is accounted for."""
    if trace.has_device:
        chosen = np.flatnonzero((classes == KernelClass.COLLECTIVE) & rows)
        start, end, issued = trace.device.start_ns[chosen], trace.device.end_ns[chosen], launches.start_ns[chosen]
        kinds, sizes = described(trace, chosen)
        # Groups by name and ranks; what names none, by its stream
        names: Sequence[str] = [f"{one.group}{one.members}" if one.group else "" for one in trace.collectives]
        named_ = np.array([*names, ""], np.str_)[trace.device.collective[chosen]]
        key = np.where(named_ == "", trace.device.stream[chosen].astype(np.str_), named_)
        groups = np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)
    else:
        chosen = host_rows(trace)
        start, end = trace.ranges.start_ns[chosen], trace.ranges.end_ns[chosen]
        issued, kinds, sizes = _issued_on_host(trace, chosen)
        groups = np.zeros(len(chosen), np.int64)
    step = np.searchsorted(steps.host_start_ns, issued, side="right") - 1
    inside = (step >= 0) & (issued < steps.host_end_ns[np.maximum(step, 0)]) if len(steps) else step >= len(chosen)
    if trace.has_device and len(steps):
        # Of what nobody is known to have launched, only the device's clock tells the step.
        unknown = ~launches.linked[chosen]
        step[unknown] = np.searchsorted(steps.start_ns, start[unknown], side="right") - 1
        inside[unknown] = (step[unknown] >= 0) & (start[unknown] < steps.end_ns[np.maximum(step[unknown], 0)])
    first = passes.begun_by(steps.host_start_ns[np.maximum(step, 0)]) if len(steps) else step
    phase = _phase(passes, issued, steps.host_end_ns[np.maximum(step, 0)] if len(steps) else issued)
    round_ = passes.begun_by(issued) - first
    found = Communication(chosen, start, end, issued, step, phase, round_, kinds, sizes, groups)
    return found.where(np.flatnonzero(inside)[np.argsort(start[inside], kind="stable")])


def host_rows(trace: Trace) -> Int64:
    """Ranges that last as long as a collective does, in the order in which they began."""
    lasting = (trace.ranges.kind == RangeKind.COLLECTIVE) & named(trace.names, trace.ranges.name, HOST_BACKENDS)
    rows = np.flatnonzero(lasting)
    return rows[np.argsort(trace.ranges.start_ns[rows], kind="stable")]


def kind_of(name: str) -> str:
    """The kind of collective that a kernel, range or operator is by its name; empty where it does not tell."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "")


def _phase(passes: BackwardPasses, issued: Int64, step_end: Int64) -> UInt8:
    if not len(passes):
        return np.full(len(issued), Phase.UNKNOWN, np.uint8)
    inside = passes.holding(issued) != MISSING
    follows = passes.begun_by(step_end) > passes.begun_by(issued)
    before = np.searchsorted(passes.end_ns, issued, side="right") == 0
    late = ~inside & ~follows & ~before
    return np.where(inside, Phase.BACKWARD, np.where(late, Phase.LATE, Phase.FORWARD)).astype(np.uint8)


def described(trace: Trace, chosen: Int64) -> tuple[npt.NDArray[np.str_], Int64]:
    """Kind and size in bytes of some rows of device work; an empty kind and -1 where the recording does not tell."""
    by_name = np.array([*(kind_of(name) for name in trace.names), ""], np.str_)
    told = np.array([*(one.kind for one in trace.collectives), ""], np.str_)[trace.device.collective[chosen]]
    sizes = np.array([*(one.size_bytes for one in trace.collectives), MISSING], np.int64)
    kinds = np.where(told == "", by_name[trace.device.name[chosen]], told)
    return kinds, sizes[trace.device.collective[chosen]]


def _issued_on_host(trace: Trace, chosen: Int64) -> tuple[Int64, npt.NDArray[np.str_], Int64]:
    """Return when the operators were called of which the backend's threads ran the ranges, their kinds and sizes.

    The backend works through its queue in order, so the i-th range of a kind is of the i-th operator of that kind.
    """
    ranges, ops = trace.ranges, trace.ops
    kinds = np.array([*map(kind_of, trace.names), ""], np.str_)[ranges.name[chosen]]
    called = np.flatnonzero(named(trace.names, ops.name, _HOST_OPS))
    op_kinds = np.array([*map(kind_of, trace.names), ""], np.str_)[ops.name[called]]
    issued, sizes = ranges.start_ns[chosen].copy(), np.full(len(chosen), MISSING, np.int64)
    for kind in np.unique(kinds).tolist():
        mine, theirs = np.flatnonzero(kinds == kind), called[op_kinds == kind]
        # Ranges of what was issued before the recording began come first.
        theirs = theirs[np.argsort(ops.start_ns[theirs], kind="stable")]
        count = min(len(mine), len(theirs))
        if count == 0 or (ops.start_ns[theirs[-count:]] > ranges.end_ns[chosen[mine[-count:]]]).any():
            continue
        issued[mine[-count:]] = ops.start_ns[theirs[-count:]]
        shapes = ops.shapes[theirs[-count:]].tolist()
        sizes[mine[-count:]] = [_elements(trace.texts[one]) * _FLOAT_BYTES if one >= 0 else MISSING for one in shapes]
    return issued, kinds, sizes


@lru_cache(maxsize=4096)
def _elements(text: str) -> int:
    """Return how many elements the first argument of an operator holds, a list of tensors: `[[[512], [512, 512]],
    []]`."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return 0
    tensors = entries[0] if isinstance(entries, list) and entries else []
    flat = [tensors] if tensors and not isinstance(tensors[0], list) else tensors
    return sum(prod(size for size in tensor if isinstance(size, int)) for tensor in flat if isinstance(tensor, list))
