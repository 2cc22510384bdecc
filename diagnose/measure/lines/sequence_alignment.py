"""Which elements of two sequences belong together: those of two steps of one program."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np

from diagnose.trace.schema import MISSING, Int64

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
    """How many elements two equally long sequences begin with alike."""
    unlike = np.flatnonzero(first != second)
    return int(unlike[0]) if len(unlike) else len(first)
