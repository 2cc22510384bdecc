"""The lines of source that the training thread went through, known of one step and carried over to the counted ones.

    followed = followed_lines(trace, tree, thread, steps)
    followed.of_op               # per operator, the stack (a place in `trace.stacks`) that called it; -1 unknown
    followed.shares(intervals)   # stack -> ns of some host time in the counted steps that passed in it

A watched run follows its lines in one step beside the counted ones, because that makes a step slow. A program does the
same thing in each step: operators and waits of a counted step are matched with those of the followed one, in order, by
name and, unless each step has its own, by shapes; what passes between two of them passes between the same two there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from diagnose.measure.steps.steps import StepSpans
from diagnose.measure.views.host_activity import waits_of
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Float64, Int64, Samples

_FEWEST_MATCHED = 0.8
"""A share of a step's operators: below it the step is another than the one that was followed (an evaluation, a
checkpoint)."""


@dataclass(frozen=True, eq=False)
class FollowedStep:
    """A counted step, laid beside the followed one: its moments, rising, and those that correspond to them there."""

    here_ns: Int64
    there_ns: Int64


@dataclass(frozen=True, eq=False)
class FollowedLines:
    """The traced lines of the counted steps; empty where no step was traced by line."""

    trace: Trace
    of_op: Int64
    """Per row of `trace.ops`, -1 unknown."""
    steps: tuple[FollowedStep, ...]
    """The counted steps that do what the followed step does."""

    def __bool__(self) -> bool:
        return len(self.steps) > 0

    def shares(self, intervals: Intervals) -> Counter[int]:
        """Time by stack, in ns of the counted steps; what lies outside the known ones is left out."""
        by_stack = np.zeros(len(self.trace.stacks))
        for step in self.steps:
            inside = intervals.within(int(step.here_ns[0]), int(step.here_ns[-1]))
            if len(inside):
                by_stack += self._of_step(step, inside)
        return Counter({stack: round(by_stack[stack]) for stack in np.flatnonzero(by_stack).tolist()})

    def _of_step(self, step: FollowedStep, inside: Intervals) -> Float64:
        times, stacks = self.trace.lines.time_ns, self.trace.lines.stack
        begins = np.interp(inside.starts, step.here_ns, step.there_ns).astype(np.int64)
        ends = np.interp(inside.ends, step.here_ns, step.there_ns).astype(np.int64)
        first = np.maximum(np.searchsorted(times, begins, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(times, ends, side="left") - 1, first)
        count = last - first + 1
        owner = np.repeat(np.arange(len(inside)), count)
        rows = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + first[owner]
        until = np.append(times[1:], times[-1])[rows]
        passed = np.maximum(np.minimum(until, ends[owner]) - np.maximum(times[rows], begins[owner]), 0) + 1e-3
        scale = inside.lengths_ns / np.bincount(owner, weights=passed, minlength=len(inside))
        by_stack = np.bincount(stacks[rows], weights=passed * scale[owner], minlength=len(self.trace.stacks))
        return np.asarray(by_stack, np.float64)


def followed_lines(trace: Trace, thread: int, steps: StepSpans) -> FollowedLines:
    """The lines of the counted steps, from the followed one."""
    ops, lines = trace.ops, trace.lines
    of_op = np.full(len(ops), MISSING, np.int64)
    if len(lines) < 2 or thread == MISSING:
        return FollowedLines(trace, of_op, ())
    mine = np.flatnonzero(ops.thread == thread)
    mine = mine[np.lexsort((-ops.end_ns[mine], ops.start_ns[mine]))]
    there = mine[_is_followed(lines, ops.start_ns[mine])]
    of_op[there] = lines.stack[np.searchsorted(lines.time_ns, ops.start_ns[there], side="right") - 1]
    # For each of these operators, a number that stands for its name and its shapes.
    shaped = np.full(len(trace.ops), MISSING, np.int64)
    shaped[mine] = trace.ops.name[mine].astype(np.int64) * (len(trace.texts) + 1) + trace.ops.shapes[mine]
    waits = np.flatnonzero(waits_of(trace) & ((trace.calls.thread == thread) | (trace.calls.thread == MISSING)))
    known = []
    for begin, end in zip(steps.host_start_ns.tolist(), steps.host_end_ns.tolist(), strict=True):
        own = mine[(ops.start_ns[mine] >= begin) & (ops.start_ns[mine] < end)]
        place = _matched(trace, shaped, own, there)
        found = place != MISSING
        if np.count_nonzero(found) < _FEWEST_MATCHED * max(len(own), 1):
            continue
        of_op[own[found]] = of_op[there[place[found]]]
        borders = np.array([begin, end]), lines.time_ns[[0, -1]]
        calls = _ends(ops.start_ns, ops.end_ns, own[found], there[place[found]])
        known.append(_side_by_side(borders, calls, _waits(trace, waits, begin, end)))
    return FollowedLines(trace, of_op, tuple(known))


def _side_by_side(*pairs: tuple[Int64, Int64]) -> FollowedStep:
    here, there = (np.concatenate(part) for part in zip(*pairs, strict=True))
    order = np.lexsort((there, here))
    # Where waits and operators contradict each other, time there stands still rather than run back.
    return FollowedStep(here[order], np.maximum.accumulate(there[order]))


def _is_followed(lines: Samples, moments: Int64) -> Bool:
    return np.asarray((moments >= lines.time_ns[0]) & (moments < lines.time_ns[-1]), np.bool_)


def _matched(trace: Trace, shaped: Int64, own: Int64, there: Int64) -> Int64:
    """Per operator of a counted step the place in `there` of its like; by names alone where shapes differ by step."""
    place = matched(shaped[own], shaped[there])
    if np.count_nonzero(place != MISSING) >= _FEWEST_MATCHED * len(own):
        return place
    return matched(trace.ops.name[own].astype(np.int64), trace.ops.name[there].astype(np.int64))


def _waits(trace: Trace, waits: Int64, begin: int, end: int) -> tuple[Int64, Int64]:
    """Begins and ends of the waits of one step, and of those of the followed one."""
    calls, lines = trace.calls, trace.lines
    start = calls.start_ns[waits]
    own = waits[(start >= begin) & (start < end)]
    there = waits[_is_followed(lines, start)]
    place = matched(calls.name[own].astype(np.int64), calls.name[there].astype(np.int64))
    found = place != MISSING
    return _ends(calls.start_ns, calls.end_ns, own[found], there[place[found]])


def _ends(start_ns: Int64, end_ns: Int64, here: Int64, there: Int64) -> tuple[Int64, Int64]:
    return np.concatenate((start_ns[here], end_ns[here])), np.concatenate((start_ns[there], end_ns[there]))


_MOST = 1500  # beyond it, in the stretch where two sequences differ, finding what they share takes longer than it tells


def matched(first: Int64, second: Int64) -> Int64:
    """Per element of `first` the place in `second` that corresponds to it, -1 without one; in order of both.

    What they begin and end with alike is matched as it stands, what lies between by its longest common stretches.
    """
    result = np.full(len(first), MISSING, np.int64)
    shorter = min(len(first), len(second))
    head = _common(first[:shorter], second[:shorter])
    tail = _common(first[head:][::-1][: shorter - head], second[head:][::-1][: shorter - head])
    result[:head] = np.arange(head)
    if tail:
        result[-tail:] = np.arange(len(second) - tail, len(second))
    ours, theirs = first[head : len(first) - tail], second[head : len(second) - tail]
    if 0 < len(ours) <= _MOST and 0 < len(theirs) <= _MOST:
        matcher = SequenceMatcher(None, ours.tolist(), theirs.tolist(), autojunk=False)
        for block in matcher.get_matching_blocks():
            result[head + block.a : head + block.a + block.size] = head + block.b + np.arange(block.size)
    return result


def _common(first: Int64, second: Int64) -> int:
    """Return how many elements two equally long sequences begin with alike."""
    unlike = np.flatnonzero(first != second)
    return int(unlike[0]) if len(unlike) else len(first)
