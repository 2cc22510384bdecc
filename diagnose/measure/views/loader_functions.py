"""Functions that make or fetch the next batch, told by what programs call them and by what they do.

    makes_batches("get_batch")                  # True, as are `next_batch`, `batch_iterator`, `fetch_samples`, …
    batch_frames(trace)                         # per recorded Python call

A program that reads its data without a `DataLoader` has no mark of a loader: it has a function, and calls it so. One
that mostly launches kernels is called like a loader but runs a model: it draws from a policy, or generates text.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Int64

_FETCH = r"get|next|load|fetch|read|prepare|iter(?:ate)?|assemble"
_MAKE = r"sample|draw|make|build|generate|create"
_OF = r"(?:a_|an_|the_|one_|new_|next_|random_|train(?:ing)?_|eval_|valid(?:ation)?_|val_|test_|input_)"
_BATCH = r"(?:mini_?)?batch(?:es)?|data"
_FUNCTION = (
    # What generates samples is a model more often than not.
    rf"_*(?:(?:{_FETCH})_?{_OF}*(?:{_BATCH}|samples?|examples?)|(?:{_MAKE})_?{_OF}*(?:{_BATCH}))(?:_samples|_data)?"
    r"|_*(?:mini_?)?batch(?:es|_?(?:iterator|iter|generator|loader|stream|source))"
    # `train_generator` is half of a training step with an adversary.
    r"|_*(?:infinite|endless|cycle|data)_?(?:data_?)?(?:loader|generator|iterator|stream)"
    r"|_*train_?(?:data_?)?(?:loader|iterator|stream)|collate(?:_\w+)?|__next__"
)
_NAMED = re.compile(_FUNCTION, re.IGNORECASE)
_FRAME = re.compile(rf"^(?!(?:.*[/\\])?torch[/\\](?!utils[/\\]data)).+\.py\(\d+\): (?:{_FUNCTION})$", re.IGNORECASE)
"""The frames of torch's own files that count are only the loader's: its other iterators hand out parameters and
modules."""

_LAUNCHES = re.compile(r"^(cuda|hip|cu)(Ext|Module|Graph)*Launch")
_PER_LAUNCH_NS = 100_000
"""Issuing one operator takes 5 to 50 µs from Python, and about twice that under a profiler that records stacks."""


def makes_batches(function: str) -> bool:
    """Whether a function of this name makes or fetches a batch."""
    return _NAMED.fullmatch(function) is not None


def batch_frames(trace: Trace) -> Bool:
    """Per recorded Python call, whether its function is named for making or fetching a batch."""
    return named(trace.names, trace.frames.name, _FRAME)


def not_launching(trace: Trace, starts: Int64, ends: Int64, waits: Intervals, thread: int | None = None) -> Bool:
    """Per stretch of time whether launching, by one thread or (None) by any, leaves most of it, but for the waits."""
    launches = named(trace.names, trace.calls.name, _LAUNCHES)
    if thread is not None:
        launches &= trace.calls.thread == thread
    launched_ns = trace.calls.start_ns[launches]
    count = np.searchsorted(launched_ns, ends) - np.searchsorted(launched_ns, starts)
    return np.asarray(2 * count * _PER_LAUNCH_NS <= ends - starts - waits.covered(starts, ends), np.bool_)
