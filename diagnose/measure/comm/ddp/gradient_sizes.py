"""The gradients that the buckets of a backward pass are made of: the size of each, and when it became ready.

    sizes, ready = gradient_pieces(measures, measures.gradient_buckets, measures.gradient_rounds)

Autograd accumulates one gradient after the other, and DistributedDataParallel fills its buckets in that order: where
shapes were recorded, each bucket is a row of these calls. Where they do not add up to the buckets (no shapes, several
formats), the gradients of a bucket are taken to become ready evenly; a tied embedding, a seventh of a language model's
gradients, is in truth ready last as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from diagnose.measure.comm.ddp.gradient_buckets import GradientBucket, GradientRounds
from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.views.names import named
from diagnose.measure.views.shapes import parsed_shapes
from diagnose.trace.schema import Int64

_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")

_EVENLY = 64
"""Pieces where single gradients are not known."""
_WIDEST_BYTES = 8  # of an element: float64


def gradient_pieces(
    measures: RankCollectives, buckets: Sequence[GradientBucket], rounds: GradientRounds | None
) -> tuple[Int64, Int64]:
    """Bytes in the order in which they become ready, and when they do: in ns on the buckets' clock."""
    return _of_parameters(measures, buckets, rounds) or evenly(buckets)


def evenly(buckets: Sequence[GradientBucket]) -> tuple[Int64, Int64]:
    """About `_EVENLY` pieces: within a bucket, gradients became ready evenly one by one."""
    total = sum(bucket.size_bytes for bucket in buckets)
    sizes: list[int] = []
    ready: list[int] = []
    since = 0
    for bucket in buckets:
        parts = max(1, round(_EVENLY * bucket.size_bytes / max(total, 1)))
        edges = np.linspace(0, bucket.size_bytes, parts + 1).astype(np.int64)
        sizes += np.diff(edges).tolist()
        ready += np.linspace(since, max(bucket.ready_ns, since), parts + 1)[1:].astype(np.int64).tolist()
        since = max(bucket.ready_ns, since)
    return np.asarray(sizes, np.int64), np.asarray(ready, np.int64)


def _of_parameters(
    measures: RankCollectives, buckets: Sequence[GradientBucket], rounds: GradientRounds | None
) -> tuple[Int64, Int64] | None:
    """Return the sizes by autograd's calls; None where they are not the buckets'."""
    if rounds is None or rounds.passes is None:
        return None
    trace, ops, passes = measures.trace, measures.trace.ops, measures.backward_passes
    calls = np.flatnonzero(named(trace.names, ops.name, _ACCUMULATES))
    calls = calls[np.argsort(ops.start_ns[calls], kind="stable")]
    texts, same = np.unique(ops.shapes[calls], return_inverse=True)
    elements = np.array([_elements(trace.texts[text]) if text >= 0 else 0 for text in texts.tolist()], np.int64)
    elements = elements[same.reshape(-1)] if len(calls) else np.empty(0, np.int64)
    first = np.searchsorted(ops.start_ns[calls], passes.start_ns[rounds.passes])
    last = np.searchsorted(ops.start_ns[calls], passes.end_ns[rounds.passes])
    sizes, ready = None, []
    for begin, end, since in zip(first.tolist(), last.tolist(), rounds.begin_ns.tolist(), strict=True):
        mine = _bytes(elements[begin:end], buckets)
        if mine is not None and (sizes is None or np.array_equal(mine, sizes)):
            sizes = mine
            ready.append(rounds.ready_ns(measures, ops.end_ns[calls[begin:end]]) - since)
    if sizes is None:
        return None
    # What a bucket waits for is known to have been ready when it was sent.
    by_bucket = np.searchsorted(np.cumsum([one.size_bytes for one in buckets]), np.cumsum(sizes))
    latest = np.maximum.accumulate([one.ready_ns for one in buckets])[by_bucket]
    return sizes, np.minimum(np.median(ready, axis=0).astype(np.int64), latest)


def _bytes(elements: Int64, buckets: Sequence[GradientBucket]) -> Int64 | None:
    """The gradients in bytes, where each bucket is some of them in a row."""
    total = sum(one.size_bytes for one in buckets)
    if not len(elements) or elements.min() <= 0 or total % int(elements.sum()):
        return None
    sizes = elements * (total // int(elements.sum()))
    ends = np.cumsum([one.size_bytes for one in buckets])
    fits = total // int(elements.sum()) <= _WIDEST_BYTES and np.isin(ends, np.cumsum(sizes)).all()
    return sizes if fits else None


def _elements(text: str) -> int:
    """Elements of the gradient that a call accumulates; 0 where its shape is not known."""
    shapes = parsed_shapes(text)
    return prod(shapes[0]) if shapes and shapes[0] is not None else 0
