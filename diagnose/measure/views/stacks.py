"""The activity that sampled Python stacks show: waiting for data, reading or writing files, compiling, or the user's
own Python.

A sample stands for the time around it, up to the middle between it and its neighbours, and never for more than
`REACH_NS` on either side: a sampler that was held up has not seen what happened meanwhile.
"""

from __future__ import annotations

import numpy as np

from diagnose.measure.views.loader_functions import makes_batches, not_launching
from diagnose.trace import StackFrame, Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import RangeKind

REACH_NS = 10_000_000  # twice the sampling interval at 200 Hz

Stack = tuple[StackFrame, ...]

_EXACT = {"input": RangeKind.INPUT, "compile": RangeKind.COMPILE, "io": RangeKind.CHECKPOINT}
_LOADER = ("torch/utils/data/", "torchdata/", "webdataset/", "nvidia/dali/", "/ffcv/", "/streaming/base/")
_FILES = ("torch/serialization.py", "safetensors/", "/pickle.py", "/gzip.py", "/shutil.py", "/socket.py", "/ssl.py")
_COMPILER = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/_aot_autograd/", "torch/fx/")
# Also on the stack while compiled code merely runs, where anomaly detection writes down the forward stack, and in
# programs that compile nothing: each step of torch's optimizers calls `graph_break`, which does nothing there.
_COMPILED_RUN = ("torch/_dynamo/eval_frame.py", "torch/_dynamo/decorators.py", "torch/fx/traceback.py")


def cause_of(stack: Stack) -> str | None:
    """The cause that a stack names: `input`, `io`, `compile`; None where it is ordinary Python or framework code."""
    files = [frame.file.replace("\\", "/") for frame in stack]
    # A program without a loader has a function of its own for it.
    if any(part in file for file in files for part in _LOADER) or _makes_batch(stack):
        return "input"
    if any(part in file for file in files for part in _FILES):
        return "io"
    if any(part in file for file in files for part in _COMPILER if not file.endswith(_COMPILED_RUN)):
        return "compile"
    return None


def saw_library_loader(trace: Trace) -> bool:
    """Whether a recorded Python call or a sample lies in a library that loads data."""
    called = (trace.names[name].replace("\\", "/") for name in np.unique(trace.frames.name).tolist() if name >= 0)
    sampled = (frame.file.replace("\\", "/") for stack in trace.stacks for frame in stack)
    return any(part in f"/{file}" for file in (*called, *sampled) for part in _LOADER)


def _makes_batch(stack: Stack) -> bool:
    return any(frame.owned and makes_batches(frame.function) for frame in stack)


def owned_frame(stack: Stack) -> StackFrame | None:
    """The innermost frame that lies in the user's own files."""
    return next((frame for frame in stack if frame.owned), None)


def sampled(trace: Trace, chosen: set[int]) -> Intervals:
    """The time that the samples with one of the `chosen` stacks stand for."""
    times = trace.samples.time_ns
    if len(times) == 0 or not chosen:
        return Intervals.empty()
    middle = times[:-1] + (times[1:] - times[:-1]) // 2
    begin = np.maximum(np.concatenate((times[:1] - REACH_NS, middle)), times - REACH_NS)
    end = np.minimum(np.concatenate((middle, times[-1:] + REACH_NS)), times + REACH_NS)
    mask = np.isin(trace.samples.stack, sorted(chosen))
    return Intervals.of(begin[mask], end[mask])


def making_batches(trace: Trace) -> Intervals:
    """Time between neighbouring samples that both saw a function of the program's own make a batch.

    Nothing where a loader's own marks tell: they are exact.
    """
    if (trace.ranges.kind == RangeKind.INPUT).any():
        return Intervals.empty()
    models = _running_models(trace)
    making = {index for index, stack in enumerate(trace.stacks) if _makes_batch(stack)}
    return _between_samples(trace, making - models)


def _between_samples(trace: Trace, chosen: set[int]) -> Intervals:
    times, seen = trace.samples.time_ns, np.isin(trace.samples.stack, sorted(chosen))
    sure = seen[:-1] & seen[1:] & (np.diff(times) <= 2 * REACH_NS)
    return Intervals.of(times[:-1][sure], times[1:][sure])


def _running_models(trace: Trace) -> set[int]:
    """Stacks in functions that are named for making batches but mostly launch kernels when seen: they run a model."""
    stacks: dict[tuple[str, str], set[int]] = {}
    for index, stack in enumerate(trace.stacks):
        for frame in stack:
            if frame.owned and makes_batches(frame.function):
                stacks.setdefault((frame.file, frame.function), set()).add(index)
    found = set()
    for chosen in stacks.values():
        stretches = _between_samples(trace, chosen)
        kept = not_launching(trace, stretches.starts, stretches.ends, Intervals.empty())
        lengths = stretches.ends - stretches.starts
        if 2 * int(lengths[kept].sum()) < stretches.total_ns:
            found |= chosen
    return found


def sampled_causes(trace: Trace) -> list[tuple[str, Intervals]]:
    """The time of every cause that samples name and that nothing recorded exactly.

    A sample stands for milliseconds around it: beside exact ranges of its cause it would claim what lies next to them.
    """
    exact = {cause for cause, kind in _EXACT.items() if (trace.ranges.kind == kind).any()}
    by_cause: dict[str, set[int]] = {}
    models = _running_models(trace)
    for index, stack in enumerate(trace.stacks):
        cause = None if index in models else cause_of(stack)
        if cause is not None and cause not in exact:
            by_cause.setdefault(cause, set()).add(index)
    return [(cause, sampled(trace, by_cause[cause])) for cause in sorted(by_cause)]
