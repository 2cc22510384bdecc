"""Prediction errors of earlier trials, and the prediction interval that follows from them.

    interval_of(10_000_000, Confidence.MEASURED)   # (4_490_000, 22_300_000): nine of ten savings lie inside

The ledger holds every trial whose prediction and measured saving were written down (`benchmarks/RESULTS.md`); all of
them were kept. The interval is a split-conformal one: of `n` trials of a kind, the `ceil(0.9 (n + 1))`-th smallest of
|log(measured / predicted)| is the factor by which a further one exceeds or falls short with a probability of at most
10 %, whatever the distribution (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005; Lei et al.,
JASA 113, 2018). That takes nine trials; a kind with fewer has the widest factor of the others. A test leaves each trial
out once and counts how many lie inside the interval that the others give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from diagnose.model import Confidence

COVERAGE = 0.9
LEAST_TRIALS = 9
"""The fewest trials of which a factor can cover that much: with fewer, `ceil(0.9 (n + 1))` exceeds `n`."""


@dataclass(frozen=True)
class Trial:
    """One row of the ledger; times per step."""

    program: str
    fix: str
    prediction: Confidence
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        """The absolute logarithm of the ratio of measured to predicted saving."""
        return abs(math.log(self.measured_ms / self.predicted_ms))


_ESTIMATE, _BOUND, _HINT = Confidence.MEASURED, Confidence.BOUND, Confidence.HINT
LEDGER = (
    Trial("naive_gpt", "allow-tf32", _BOUND, 250.1, 210.8),
    Trial("naive_gpt", "defer-item", _ESTIMATE, 3.4, 5.1),
    Trial("naive_gpt", "fused-optimizer", _BOUND, 2.0, 2.4),
    Trial("naive_gpt", "seven at once", _BOUND, 318.0, 280.0),
    Trial("naive_gpt", "thirteen at once", _ESTIMATE, 327.0, 354.3),
    Trial("naive_gpt, batch 8 x 512", "autocast-bf16", _BOUND, 27.0, 26.6),
    Trial("cpu_contention", "set-num-threads", _HINT, 239.5, 399.1),
    Trial("gc_pause", "gc-schedule", _ESTIMATE, 107.1, 81.7),
    Trial("fp32_matmul", "allow-tf32, autocast-bf16", _ESTIMATE, 83.0, 88.4),
    Trial("input_bound_tokenizer", "loader-workers, loader-prefetch", _ESTIMATE, 51.2, 114.1),
    Trial("input_bound_images", "loader-workers, persistent-workers", _ESTIMATE, 38.5, 44.8),
    Trial("device_to_host_copies", "keep-on-device", _BOUND, 97.1, 105.0),
    Trial("device_to_host_copies", "channels-last", _HINT, 0.88, 7.68),
    Trial("recompiling", "mark-dynamic", _ESTIMATE, 192.5, 278.1),
    Trial("launch_bound_cells", "cuda-graphs", _ESTIMATE, 45.2, 49.9),
    Trial("misaligned_vocabulary", "fuse-linear-cross-entropy", _BOUND, 17.5, 17.2),
    Trial("debug_leftovers", "drop-debug", _BOUND, 23.6, 21.0),
    Trial("graph_breaks", "remove-graph-break, cuda-graphs", _HINT, 11.1, 14.8),
    Trial("unfused_attention", "use-sdpa", _BOUND, 35.6, 33.4),
    Trial("python_stall_metric", "guard-metric", _ESTIMATE, 6.9, 11.9),
    Trial("host_sync_masks", "weigh-masked", _ESTIMATE, 11.5, 14.0),
    Trial("exposed_copies", "state-on-device", _BOUND, 30.0, 25.7),
    Trial("unfused_pointwise", "native-norm, native-gelu, compile-model", _BOUND, 22.9, 24.3),
    Trial("unfused_loss", "fuse-linear-cross-entropy", _BOUND, 9.6, 10.3),
    Trial("layout_transposes", "channels-last", _ESTIMATE, 10.1, 9.4),
    Trial("slow_optimizer", "fused-optimizer", _BOUND, 5.5, 5.1),
    Trial("allocator_churn", "drop-empty-cache", _ESTIMATE, 3.5, 2.3),
    Trial("over_checkpointing", "checkpoint-fewer", _ESTIMATE, 9.0, 8.7),
    Trial("host_sync_logging", "defer-item", _ESTIMATE, 10.6, 9.9),
    Trial("host_sync_logging, tree 54140ef", "defer-item", _ESTIMATE, 16.7, 8.2),
    Trial("pageable_copies", "nonblocking-copies", _BOUND, 6.1, 3.9),
    Trial("periodic_checkpoint", "async-checkpoint", _ESTIMATE, 41.9, 44.4),
)
"""Predicted and measured savings from `benchmarks/RESULTS.md`, by what the prediction rested on."""


def interval_of(predicted_ns: int, prediction: Confidence) -> tuple[int, int]:
    """The savings between which nine of ten measured ones lie, in ns; the step's own length is no limit here."""
    factor = _factor(prediction)
    return math.floor(predicted_ns / factor), math.ceil(predicted_ns * factor)


@cache
def _factor(prediction: Confidence) -> float:
    return factor_of(prediction, LEDGER)


def factor_of(prediction: Confidence, ledger: Sequence[Trial]) -> float:
    """Return the factor by which a measured saving may miss a prediction either way, from a ledger of trials."""
    errors = {kind: sorted(one.error for one in ledger if one.prediction is kind) for kind in Confidence}
    enough = {kind: some for kind, some in errors.items() if len(some) >= LEAST_TRIALS}
    widest = {kind: some[math.ceil(COVERAGE * (len(some) + 1)) - 1] for kind, some in enough.items()}
    return math.exp(widest.get(prediction, max(widest.values())))
