"""Device work in the order in which the program asked for it, each piece under the name of what asked.

    order = measures.program_order
    order.rows                  # rows of trace.device within the counted steps, as they were launched
    order.word                  # per place the operator's name without its namespace: `bmm`, `_softmax`, `triton_poi_…`
    order.runs(mask)            # stretches of neighbours that a mask chooses
    order.within(pattern)       # per place, whether an operator around it has such a name

Rules that look for sequences (attention written out, a loss, a normalisation made of primitives) read it like a text.
Work without a known operator goes under the name of its kernel, as far as that tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diagnose.measure.steps.timeline import Timeline
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, CopyDirection, Int64, WorkKind

_NODE = re.compile(r"^autograd::engine::evaluate_function: ")
_NAMESPACE = re.compile(r"^aten::")
_EAGER_KERNEL = re.compile(r"at::native|softmax_warp_|cunn_SoftMax|^Memcpy DtoD")
# Kernels whose names tell the operator, for recordings without operators.
_KERNEL_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"LogSoftMaxForward|softmax_warp_forward<.*, true, (true|false)>"), "_log_softmax"),
    (re.compile(r"LogSoftMaxBackward|softmax_warp_backward<.*, true, (true|false)>"), "_log_softmax_backward_data"),
    (re.compile(r"softmax_?(warp_)?forward", re.I), "_softmax"),
    (re.compile(r"softmax_?(warp_)?backward", re.I), "_softmax_backward_data"),
    (re.compile(r"nll_loss_forward"), "nll_loss_forward"),
    (re.compile(r"nll_loss_backward"), "nll_loss_backward"),
)


@dataclass(frozen=True, eq=False)
class LaunchOrder:
    """Parallel arrays, one entry a piece of device work, in the order of the launches."""

    trace: Trace
    tree: OpTree
    rows: Int64
    """Rows of `trace.device`."""
    op: Int64
    """The innermost operator that launched it, a row of `trace.ops`; -1 where none is known."""
    kind: npt.NDArray[np.uint8]
    """The `KernelClass`."""
    length_ns: Int64

    def __len__(self) -> int:
        return len(self.rows)

    def mask(self, stretches: Iterable[tuple[int, int]]) -> Bool:
        """Return which places lie in stretches from a first to a last place."""
        found = np.zeros(len(self), np.bool_)
        for first, last in stretches:
            found[first : last + 1] = True
        return found

    @cached_property
    def word_index(self) -> Int64:
        """Per place, the place in `words` of its name."""
        trace = self.trace
        kernels = trace.device.name[self.rows]
        op_names = np.where(self.op == MISSING, MISSING, trace.ops.name[self.op]) if len(trace.ops) else kernels * 0 - 1
        return np.where(op_names == MISSING, kernels + len(trace.names), op_names).astype(np.int64)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The operation that each name stands for: all names as operators first, then all of them as kernels, then
        nothing.
        """
        operators = (_NAMESPACE.sub("", name).rstrip("_") for name in self.trace.names)
        return (*operators, *map(_kernel_word, self.trace.names), "")

    def says(self, pattern: re.Pattern[str]) -> Bool:
        """Return which places have a word that a pattern matches as a whole."""
        hits = np.array([pattern.fullmatch(word) is not None for word in self.words], np.bool_)
        return np.asarray(hits[self.word_index], np.bool_)

    def within(self, pattern: re.Pattern[str]) -> Bool:
        """Return which places were launched in an operator whose name a pattern finds, or in one inside of it.

        A backward pass counts as well where the operator that it differentiates lies in one.
        """
        ops = self.trace.ops
        if not len(ops):
            return np.zeros(len(self), np.bool_)
        inside = np.append(_inherited(self.tree, named(self.trace.names, ops.name, pattern)), False)
        ahead = np.append(self.tree.forward, MISSING)[self.node]
        return np.asarray(inside[self.op] | inside[ahead], np.bool_)

    @cached_property
    def node(self) -> Int64:
        """Per place, the autograd node whose evaluation launched it, a row of `trace.ops`; -1 in a forward pass."""
        ops = self.trace.ops
        if not len(ops):
            return np.full(len(self), MISSING, np.int64)
        nodes = named(self.trace.names, ops.name, _NODE)
        above = np.where(nodes, np.arange(len(ops)), MISSING)
        for level in self.tree.levels[1:]:
            own = above[level] != MISSING
            above[level] = np.where(own, above[level], above[self.tree.nesting.parent[level]])
        return np.where(self.op == MISSING, MISSING, above[self.op]).astype(np.int64)

    @cached_property
    def backward(self) -> Bool:
        """Whether a kernel belongs to a backward pass, by its operators or, without them, by its own name."""
        backward = self.tree.backward if len(self.trace.ops) else np.zeros(0, np.bool_)
        known = self.op != MISSING
        by_op = np.where(known, backward[self.op], False) if len(backward) else known
        return np.asarray((self.node != MISSING) | by_op | self.says(_BACKWARD_WORD), np.bool_)

    @cached_property
    def product(self) -> Bool:
        """Matrix products and convolutions, and what a library fused around them."""
        return np.isin(self.kind, (KernelClass.MATMUL, KernelClass.CONVOLUTION))

    @cached_property
    def eager(self) -> Bool:
        """Launched by an operator of PyTorch's own, one at a time: no generated, no hand-made kernel."""
        own = np.array([*(name.startswith("aten::") for name in self.trace.names), False], np.bool_)
        names = np.where(self.op == MISSING, MISSING, self.trace.ops.name[self.op]) if len(self.trace.ops) else self.op
        kernels = np.array([*(_EAGER_KERNEL.search(name) is not None for name in self.trace.names), False], np.bool_)
        unknown = (self.op == MISSING) & kernels[self.trace.device.name[self.rows]]
        return np.asarray(own[names] | unknown, np.bool_)

    def runs(self, chosen: Bool) -> list[tuple[int, int]]:
        """Begin and end (exclusive) of every longest stretch of chosen neighbours."""
        borders = np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8))
        return list(zip(np.flatnonzero(borders == 1).tolist(), np.flatnonzero(borders == -1).tolist(), strict=True))


_BACKWARD_WORD = re.compile(r".*[bB]ackward.*|.*_bwd.*|.*_grad_.*")


def program_order(measures: Timeline) -> LaunchOrder:
    """The work of the busiest device within the counted steps, without collectives and copies to or from the host."""
    trace, device, launches = measures.trace, measures.trace.device, measures.launches
    away = np.isin(device.direction, (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST))
    own = ~away & (device.kind != WorkKind.SET) & (measures.classes != KernelClass.COLLECTIVE)
    rows = measures.rows_within_steps(np.asarray(own, np.bool_))
    # Work of one graph has one launch: it keeps the order in which the device began it.
    rows = rows[np.argsort(launches.start_ns[rows], kind="stable")]
    return LaunchOrder(
        trace=trace,
        tree=measures.op_tree,
        rows=rows,
        op=measures.op_of_work[rows],
        kind=measures.classes[rows],
        length_ns=np.asarray(device.end_ns[rows] - device.start_ns[rows], np.int64),
    )


def _inherited(tree: OpTree, chosen: Bool) -> Bool:
    """Return which operators are chosen, or lie in one that is."""
    inside = chosen.copy()
    for level in tree.levels[1:]:
        inside[level] |= inside[tree.nesting.parent[level]]
    return inside


def _kernel_word(name: str) -> str:
    return next((word for pattern, word in _KERNEL_WORDS if pattern.search(name)), name)
