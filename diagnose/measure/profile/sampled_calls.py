"""The samples of the training thread's stacks as the boxes of a flame graph.

<module>                        10 samples
main                   7 | load  3
forward 4 | step 3 |
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diagnose.measure.views.counters import after_warm_up
from diagnose.model import SampledCall
from diagnose.trace import StackFrame, Trace

MOST_CALLS = 600
"""Boxes kept, the largest first: about what is wider than two pixels, and 60 kB in a journal."""
_DEEPEST = 40
"""Innermost frames are left out beyond it."""


@dataclass
class _Call:
    samples: int = 0
    inner: dict[StackFrame, _Call] = field(default_factory=dict)


def sampled_calls(trace: Trace) -> tuple[SampledCall, ...]:
    """By depth, then from the left, the largest first; empty where no stacks were sampled."""
    chosen = trace.samples.stack[after_warm_up(trace, trace.samples.time_ns)]
    stacks, counts = np.unique(chosen[(chosen >= 0) & (chosen < len(trace.stacks))], return_counts=True)
    root = _Call()
    for stack, count in zip(stacks.tolist(), counts.tolist(), strict=True):
        call = root
        for frame in reversed(trace.stacks[stack][-_DEEPEST:]):
            call = call.inner.setdefault(frame, _Call())
            call.samples += count
    found = [*_boxes(root)]
    if len(found) > MOST_CALLS:
        least = sorted((one.samples for one in found), reverse=True)[MOST_CALLS]
        found = [one for one in found if one.samples > least]
    return tuple(sorted(found, key=lambda one: (one.depth, one.begin)))


def _boxes(root: _Call) -> list[SampledCall]:
    found = []
    waiting = [(root, 0, 0)]
    while waiting:
        call, depth, begin = waiting.pop()
        for frame, inner in sorted(call.inner.items(), key=lambda item: -item[1].samples):
            found.append(SampledCall(depth, begin, inner.samples, frame.function, frame.file, frame.line, frame.owned))
            waiting.append((inner, depth + 1, begin))
            begin += inner.samples
    return found
