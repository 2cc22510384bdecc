"""Python of the framework's own, between its operators: it belongs to issuing work, not to the user's program.

    framework_python(trace, thread, stretches)     # the part of some time on the training thread

Where Python calls are recorded, the innermost one tells that is neither built in nor of the standard library; so does
the innermost frame of a sampled stack. Without calls, two kinds of time are known all the same: calls of the optimizer,
which the profiler marks, and the start of a backward pass, from the gradient of the loss (`aten::ones_like`) to the
first operator of the autograd engine.
"""

from __future__ import annotations

import re
import sys

import numpy as np

from diagnose.measure.views.host_activity import on_threads
from diagnose.measure.views.names import named
from diagnose.measure.views.nesting import nested
from diagnose.measure.views.stacks import Stack
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool

_FILE = re.compile(r"^(?P<file>.+\.py)\(\d+\): ")
_FRAMEWORK = re.compile(
    r"(^|[/\\])torch[/\\](?!utils[/\\](data|tensorboard)[/\\]|serialization\.py|hub\.py|multiprocessing[/\\])"
)
"""Loading, logging and saving are what a program does beside issuing work, though torch has functions for them."""
_STANDARD = re.compile(r"/lib(64)?/python3[^/]*/(?!(site|dist)-packages/)|^<frozen ")
_OPTIMIZER = re.compile(
    r"^Optimizer\.(zero_grad#|step#(Ada(delta|factor|grad|m|max|mW)|ASGD|LBFGS|Muon|[NR]Adam|RMSprop|Rprop|SGD|SparseAdam)\.)"
)
"""The frames of a step of PyTorch's own optimizers: the Python of another optimizer is the program's."""
_ENGINE = re.compile(r"^autograd::engine::evaluate_function")
_LONGEST_NS = 20_000_000
"""Preparing an optimizer of 260 parameters took 2.4 ms under a profiler that recorded stacks. In what takes much longer
without an operator, the thread was held up, and not by the framework."""
_SEED = re.compile(r"^aten::ones_like$")


def framework_python(trace: Trace, thread: int, stretches: Intervals) -> Intervals:
    """The part of `stretches` in which the training thread ran the framework's Python, as far as anything tells."""
    if len(stretches) == 0:
        return stretches
    frames, threads = trace.frames, {thread} - {MISSING}
    mine = on_threads(frames.thread, threads)
    if mine.any():
        found = _innermost_in(trace, mine & (stretches.covered(frames.start_ns, frames.end_ns) > 0), stretches)
    else:
        ranges = trace.ranges
        known = named(trace.names, ranges.name, _OPTIMIZER) & on_threads(ranges.thread, threads)
        optimizer = Intervals.of_rows(ranges, known)
        found = stretches & (optimizer | _backward_starts(trace, thread)) | _sampled_in(trace, stretches)
    return found - found.at_least(_LONGEST_NS)


def _innermost_in(trace: Trace, near: Bool, stretches: Intervals) -> Intervals:
    """Time in which the innermost call, of those that tell, is the framework's."""
    used = np.unique(trace.frames.name[near])
    tells, torch = np.zeros(len(trace.names) + 1, np.bool_), np.zeros(len(trace.names) + 1, np.bool_)
    for index in used[used != MISSING].tolist():
        match = _FILE.match(trace.names[index])
        torch[index] = match is not None and _FRAMEWORK.search(match["file"]) is not None
        tells[index] = torch[index] or (match is not None and not _is_standard(match["file"]))
    rows = np.flatnonzero(near & tells[trace.frames.name])
    tree = nested(trace.frames.start_ns[rows], trace.frames.end_ns[rows], trace.frames.thread[rows])
    # When a call begins, it is the innermost; when it ends, the one around it is.
    times = np.concatenate((tree.start_ns, tree.end_ns))
    then = np.concatenate((np.arange(len(rows)), tree.parent))
    is_end = np.arange(len(times)) >= len(rows)
    depth = np.where(is_end, -np.tile(tree.depth, 2), np.tile(tree.depth, 2))  # of equal ends, the outermost comes last
    order = np.lexsort((depth, ~is_end, times))
    times, then = times[order], then[order]
    own = np.where(then == MISSING, False, torch[trace.frames.name[rows]][then]) if len(rows) else then[:0] > 0
    begins = times[:-1][own[:-1]]
    return stretches & Intervals.of(begins, times[1:][own[:-1]])


def _sampled_in(trace: Trace, stretches: Intervals) -> Intervals:
    """Whole stretches in which every sample saw the framework's Python; without a sample nothing is known."""
    times = trace.samples.time_ns
    inside = [index for index, stack in enumerate(trace.stacks) if _is_in_framework(stack)]
    torch = np.concatenate(([0], np.cumsum(np.isin(trace.samples.stack, inside))))
    first, last = np.searchsorted(times, stretches.starts), np.searchsorted(times, stretches.ends)
    only = (last > first) & (torch[last] - torch[first] == last - first)
    return Intervals(stretches.starts[only], stretches.ends[only])


def _is_in_framework(stack: Stack) -> bool:
    file = next((frame.file for frame in stack if not _STANDARD.search(frame.file)), "")
    return _FRAMEWORK.search(file) is not None


def _is_standard(file: str) -> bool:
    """Whether a recorded path belongs to Python's own library; most profilers leave out what all paths begin with."""
    first = file.lstrip("/").split("/", 1)[0].removesuffix(".py")
    return first in sys.stdlib_module_names or _STANDARD.search(file) is not None


def _backward_starts(trace: Trace, thread: int) -> Intervals:
    """From the gradient of each loss to the first operator of the engine, or of this thread if that comes sooner."""
    ops = trace.ops
    mine = on_threads(ops.thread, {thread} - {MISSING})
    seeds = np.sort(ops.end_ns[mine & named(trace.names, ops.name, _SEED)])
    engine = np.sort(ops.start_ns[named(trace.names, ops.name, _ENGINE)])
    if not len(seeds) or not len(engine):
        return Intervals.empty()
    after = np.searchsorted(engine, seeds)
    seeds, after = seeds[after < len(engine)], after[after < len(engine)]
    own = np.append(np.sort(ops.start_ns[mine]), np.iinfo(np.int64).max)
    return Intervals.of(seeds, np.minimum(engine[after], own[np.searchsorted(own, seeds)]))
