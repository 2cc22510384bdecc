"""How short a step the loader's workers can keep up with, by what they compute for one.

    busy_loader_ns(measures)     # 36_000_000: workers that compute for 60 % of a 60 ms step

While the device is what the step waits for, workers rest now and then, and a recording shows no wait for them. Once the
device is faster they rest less, until they never do: a step is not shorter than what they compute for it, shared among
them and the cores. Read beside a live run (`host.workers_cpu`); waiting for disks is not counted, so that it may be
longer still.

Thresholds
    FEWEST (3) readings: means of about a second each.
"""

from __future__ import annotations

import numpy as np

from diagnose.measure.steps.timeline import Timeline
from diagnose.model import Site
from diagnose.trace import Trace

FEWEST = 3
_BUSY, _WORKERS = "host.workers_cpu", "host.workers"


def training_loaders(trace: Trace) -> list[Site]:
    """Return where the loaders were built that traced steps took batches from; all loaders where that was not seen.

    A program has others beside them, for validation, whose workers and lines say nothing about its training.
    """
    loaders = [site for site in trace.sites if site.kind == "DataLoader"]
    took = {(site.file, site.line) for site in trace.sites if site.kind == "trained from"}
    return [site for site in loaders if (site.file, site.line) in took] or loaders


def busy_loader_ns(measures: Timeline) -> int | None:
    """The least step, in ns; None where the program has no workers or nobody watched them."""
    loads_in_workers = any(site.arguments.get("num_workers") for site in training_loaders(measures.trace))
    busy, workers = (measures.trace.counter(name).value for name in (_BUSY, _WORKERS))
    if not loads_in_workers or len(busy) < FEWEST or not measures.step_count:
        return None
    cores = measures.trace.facts.cpu_count or float("inf")
    at_most = min(float(np.median(workers)), cores)
    share = float(np.median(busy)) / 100 / max(at_most, 1.0)
    return round(min(share, 1.0) * measures.total_ns / measures.step_count)
