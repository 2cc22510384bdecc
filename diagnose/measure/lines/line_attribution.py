"""Which lines of source some stretches of time belong to: from sampled stacks, else from recorded Python calls.

Nothing is invented: where neither tells, there is no place.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection

import numpy as np

from diagnose.measure.views.host_activity import on_threads
from diagnose.measure.views.stacks import Stack, cause_of, owned_frame
from diagnose.model import Place
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Int64

_FEWEST_SAMPLES = 5  # samples below which lines are not told; chosen, not measured
_MOST_PLACES = 5  # lines that a finding names; chosen, not measured
_SMALLEST_SHARE = 0.05  # of the samples: a line with fewer is not named; chosen, not measured
_FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)$")
_INSTALLED = re.compile(
    r"site-packages/|dist-packages/|^<|/lib/python3|/lib64/python3|torchinductor_\w*/"
    r"|/diagnose/(?:collect/inside|graph|kernels)/"  # around or within the calls of a watched program
)
_LIBRARIES = frozenset(
    {
        "PIL", "accelerate", "cv2", "datasets", "deepspeed", "diffusers", "einops", "lightning", "numpy", "pandas",
        "peft", "pytorch_lightning", "scipy", "tensorboard", "timm", "torch", "torchaudio", "torchdata", "torchtext",
        "torchvision", "tqdm", "transformers", "triton", "wandb",
    }
)  # fmt: skip


def places_of(trace: Trace, intervals: Intervals, cause: str | None, threads: Collection[int]) -> tuple[Place, ...]:
    """The lines that `intervals` belong to, the biggest share first; empty where nothing tells.

    With too few samples inside them, samples of the whole recording that show the same `cause` are used.
    """
    if len(trace.samples):
        within = intervals.contains(trace.samples.time_ns)
        inside = trace.samples.stack[within]
        if len(inside) < _FEWEST_SAMPLES and cause is not None:
            alike = {index for index, stack in enumerate(trace.stacks) if _shows(stack, cause)}
            if cause == "python":
                alike -= _elsewhere(trace, within)
            inside = trace.samples.stack[np.isin(trace.samples.stack, sorted(alike))]
        places = ranked_places(Counter({index: int(count) for index, count in _counts(inside)}), trace)
        if places:
            return places
    return _framed(trace, intervals, threads)


def is_library(file: str) -> bool:
    """Whether a recorded path belongs to Python itself or to an installed package, as far as the path tells."""
    first = file.lstrip("/").split("/", 1)[0].removesuffix(".py")
    return bool(_INSTALLED.search(file)) or first in sys.stdlib_module_names or first in _LIBRARIES


def _shows(stack: Stack, cause: str) -> bool:
    if cause == "python":
        return bool(stack) and stack[0].owned and cause_of(stack) is None
    return cause_of(stack) == cause


def _elsewhere(trace: Trace, within: Bool) -> set[int]:
    """Stacks that samples of the recorded window show outside of what is asked about more often than in it.

    A call that waits for the device looks like the user's own Python as well.
    """
    if trace.window_ns is None:
        return set()
    times, stacks = trace.samples.time_ns, trace.samples.stack
    recorded = (times >= trace.window_ns[0]) & (times < trace.window_ns[1])
    count = len(trace.stacks)
    beside = np.bincount(stacks[recorded & ~within], minlength=count)
    return set(np.flatnonzero(beside > np.bincount(stacks[within], minlength=count)).tolist())


def _counts(stacks: np.typing.NDArray[np.int32]) -> list[tuple[int, int]]:
    values, counts = np.unique(stacks, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


def ranked_places(samples: Counter[int], trace: Trace) -> tuple[Place, ...]:
    """The innermost owned lines of some stacks by how much each counts, the biggest share first."""
    total = sum(samples.values())
    lines: Counter[tuple[str, int, str]] = Counter()
    for index, count in samples.items():
        frame = owned_frame(trace.stacks[index])
        if frame is not None:
            lines[frame.file, frame.line, frame.function] += count
    return _places(lines, total)


def _framed(trace: Trace, intervals: Intervals, threads: Collection[int]) -> tuple[Place, ...]:
    """From recorded calls: the innermost owned function around each stretch, by time; the line defines the function."""
    owned = np.array([*(_is_owned_call(name) for name in trace.names), False], np.bool_)[trace.frames.name]
    rows = np.flatnonzero(owned & on_threads(trace.frames.thread, threads))
    if len(rows) == 0 or len(intervals) == 0:
        return ()
    innermost = _innermost(trace, rows, intervals)
    lines: Counter[tuple[str, int, str]] = Counter()
    for row, length in zip(innermost.tolist(), intervals.lengths_ns.tolist(), strict=True):
        match = _FRAME.match(trace.names[trace.frames.name[row]]) if row >= 0 else None
        if match is not None:
            lines[match["file"], int(match["line"]), match["function"]] += length
    return _places(lines, intervals.total_ns)


def _is_owned_call(name: str) -> bool:
    match = _FRAME.match(name)
    return match is not None and not is_library(match["file"])


def _innermost(trace: Trace, rows: Int64, intervals: Intervals) -> Int64:
    """Per interval the shortest of the calls `rows` that is open at its middle, or -1."""
    middle = intervals.starts + (intervals.ends - intervals.starts) // 2
    starts, ends = trace.frames.start_ns[rows], trace.frames.end_ns[rows]
    order = np.lexsort((-ends, starts))
    starts, ends, rows = starts[order], ends[order], rows[order]
    result = np.full(len(intervals), -1, np.int64)
    open_calls: list[int] = []
    upcoming = 0
    for index, moment in enumerate(middle.tolist()):
        while upcoming < len(rows) and starts[upcoming] <= moment:
            open_calls.append(upcoming)
            upcoming += 1
        while open_calls and ends[open_calls[-1]] <= moment:
            open_calls.pop()
        # Calls nest, save where the recording cut one short: those below the top may have ended as well.
        result[index] = next((rows[call] for call in reversed(open_calls) if ends[call] > moment), -1)
    return result


def _places(lines: Counter[tuple[str, int, str]], total: int) -> tuple[Place, ...]:
    counts: Counter[tuple[str, int]] = Counter()
    functions: dict[tuple[str, int], str] = {}
    for (file, line, function), count in lines.items():
        counts[file, line] += count
        # Of a line with a generator expression or a lambda: the function that they are written in.
        functions[file, line] = min(function, functions.get((file, line), function), key=lambda name: (len(name), name))
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple(
        Place(file, line, function=functions[file, line], share=count / total)
        for (file, line), count in ranked[:_MOST_PLACES]
        if count >= _SMALLEST_SHARE * total
    )
