"""Memory-bound work of eager operators, as chains that one pass over memory could do.

    chains = measures.memory_chains
    chains[0].kinds              # {"batch normalisation": 310_000, "ReLU": 150_000}: ns by what it computes
    chains[0].needed_ns          # what generated kernels would take for it

A chain is a stretch of neighbours in the order of launches, forward or backward, without a product between them. Where
a kernel passes a tensor on to the next one, a fused kernel neither writes nor reads it: two passes over that tensor are
saved. What a chain reads first, writes last, or reads twice because a sum must be known before it is used, stays.

Thresholds
    GENERATED 0.75: of the memory's ceiling, by kernels that a compiler writes. On an H200 those that Inductor wrote for
    the blocks of a GPT reached 0.61 to 0.91 of the data sheet; PyTorch's own, elementwise, reach 0.9.
    FAR 0.1: of the memory's ceiling; a kernel that stays below waits for something else (`kernel-hotspot`).
    ALIKE 0.5: two neighbours hand on a tensor if the smaller of their largest tensors is this part of the other's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.roofline.ceilings import Ceilings
from diagnose.measure.roofline.kernel_bounds import Bound, KernelBounds
from diagnose.measure.roofline.roofline import MATRIX_CLASSES
from diagnose.measure.views.operands import NotRecorded, operands
from diagnose.trace.schema import MISSING, Bool, Float64, Int64
from diagnose.units import NS_PER_S

GENERATED = 0.75
FAR = 0.1
ALIKE = 0.5

KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("batch normalisation", re.compile(r"batch_?norm", re.I)),
    ("layer normalisation", re.compile(r"layer_?norm", re.I)),
    ("normalisation", re.compile(r"(group|rms|instance)_?norm", re.I)),
    ("ReLU", re.compile(r"relu|clamp_min|threshold|hardtanh", re.I)),
    ("GELU", re.compile(r"gelu", re.I)),
    ("SiLU", re.compile(r"silu|sigmoid|swish", re.I)),
    ("dropout", re.compile(r"dropout|bernoulli", re.I)),
    ("softmax", re.compile(r"soft_?max", re.I)),
    ("pooling", re.compile(r"pool|upsample|interpolate", re.I)),
    ("losses", re.compile(r"_loss|cross_entropy", re.I)),
    ("lookups", re.compile(r"embedding|index|gather|scatter", re.I)),
    (
        "copies and changes of format",
        re.compile(r"^aten::(copy_?|_to_copy|to|contiguous|clone|cat|stack|fill_|zero_)$"),
    ),
    ("sums of two tensors", re.compile(r"^aten::(add|sub|rsub)_?$")),
    ("reductions", re.compile(r"^aten::(sum|mean|var|std|norm|max|min|amax|amin|linalg_vector_norm)$")),
)
"""What a kernel computes, by the name of its operator; the first that matches."""
OTHER = "other elementwise operators"


@dataclass(frozen=True)
class MemoryChain:
    """One chain; its rows are of `trace.device`."""

    rows: Int64
    backward: bool
    kinds: Mapping[str, int]
    """Nanoseconds by what is computed."""
    length_ns: int
    needed_ns: int
    """What one pass over memory would take, at GENERATED of the ceiling; never more than it took."""


def memory_chains(order: LaunchOrder, bounds: KernelBounds, ceilings: Ceilings, taken: Bool) -> tuple[MemoryChain, ...]:
    """Chains of eager, memory-bound work whose bytes are known and that nobody else explains (`taken`)."""
    kind = bounds.kind[order.rows]
    eager = order.eager & ~np.isin(order.kind, MATRIX_CLASSES) & ~taken
    near = bounds.memory_ns[order.rows] >= FAR * order.length_ns  # False where unknown
    counted = eager & (kind == Bound.MEMORY) & near
    # What is small passes nothing on and holds nothing up.
    passable = eager & (kind == Bound.LATENCY)
    largest, kinds = _largest_tensors(order), _kinds(order)
    found = []
    for begin, end in order.runs(counted | passable):
        turns = np.flatnonzero(np.diff(order.backward[begin:end].astype(np.int8)) != 0) + begin + 1
        for start, stop in pairwise((begin, *turns.tolist(), end)):
            places = np.arange(start, stop)[counted[start:stop]]
            if len(places):
                found.append(_chain(order, bounds, ceilings, largest, kinds, places))
    return tuple(found)


def _chain(
    order: LaunchOrder,
    bounds: KernelBounds,
    ceilings: Ceilings,
    largest: Float64,
    all_kinds: list[str],
    places: Int64,
) -> MemoryChain:
    rows = order.rows[places]
    length = order.length_ns[places]
    moved = float(bounds.bytes[rows].sum())
    kinds: Counter[str] = Counter()
    names = [all_kinds[place] for place in places.tolist()]
    for name, time in zip(names, length.tolist(), strict=True):
        kinds[name] += time
    sizes, ops = largest[places], order.op[places]
    for at in range(len(places) - 1):
        moved -= _handed_on(sizes[at], sizes[at + 1], names[at], names[at + 1], same=bool(ops[at] == ops[at + 1]))
    whole = int(length.sum())
    needed = int(max(moved, 0.0) / (GENERATED * ceilings.bytes_per_s) * NS_PER_S)
    return MemoryChain(rows, bool(order.backward[places[0]]), kinds, whole, min(needed, whole))


def _handed_on(one: float, other: float, name: str, following: str, *, same: bool) -> float:
    """Bytes that a fused kernel would not move between two neighbours; 0.0 where they share no tensor."""
    smaller, larger = min(one, other), max(one, other)
    if not smaller >= ALIKE * larger:  # also where one is unknown
        return 0.0
    # A sum that is normalised is read again by the next sum of a residual network: it is written all the same. And two
    # kernels of one operator read the same tensor.
    written = same or (name == "sums of two tensors" and "normalisation" in following)
    return smaller * (1 if written else 2)


def _largest_tensors(order: LaunchOrder) -> Float64:
    """Per place, the bytes of the largest tensor among its operator's arguments; NaN where it is not recorded."""
    ops = order.trace.ops
    result = np.full(len(order), np.nan)
    known = np.flatnonzero(order.op != MISSING)
    if not len(known) or not len(ops):
        return result
    texts = np.stack((ops.shapes[order.op[known]], ops.dtypes[order.op[known]])).astype(np.int64)
    pairs, which = np.unique(texts, axis=1, return_inverse=True)
    sizes = [
        _largest(order.trace.texts[shapes], order.trace.texts[dtypes]) if min(shapes, dtypes) >= 0 else np.nan
        for shapes, dtypes in pairs.T.tolist()
    ]
    result[known] = np.asarray(sizes)[which.ravel()]
    return result


@lru_cache(maxsize=65536)
def _largest(shapes: str, dtypes: str) -> float:
    try:
        given = operands(shapes, dtypes)
        sizes = [given.bytes(place) for place in given.tensors]
    except NotRecorded:
        return np.nan
    lists = [sum(map(prod, shapes)) * 4 for shapes in given.lists if shapes]
    return float(max(sizes + lists, default=np.nan))


def _kinds(order: LaunchOrder) -> list[str]:
    """Per place what it computes, a backward one by the node that it differentiates, else by its kernel's name."""
    trace, names = order.trace, order.trace.names
    kernels = trace.device.name[order.rows].astype(np.int64)
    op_names = np.append(trace.ops.name, MISSING).astype(np.int64)  # the last is for what has no operator
    ops, nodes = op_names[order.op], op_names[order.node]
    keys = np.stack((np.where(ops == MISSING, kernels, ops), nodes))
    different, which = np.unique(keys, axis=1, return_inverse=True)
    kinds = [kind_of(tuple(names[name] for name in pair if name >= 0)) for pair in different.T.tolist()]
    return [kinds[place] for place in which.ravel().tolist()]


@lru_cache(maxsize=65536)
def kind_of(names: tuple[str, ...]) -> str:
    """Return the kind of computation that the names of an operator, of the node around it, or of a kernel tell."""
    return next((kind for kind, pattern in KINDS if any(pattern.search(name) for name in names)), OTHER)
