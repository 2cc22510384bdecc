"""Where backward passes begin and end, by the numbers of their operators or by annotations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.measure.steps.backward_passes import backward_passes
from diagnose.trace import Thread, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Ops

MS = 1_000_000


def of_ops(numbers: Sequence[int], threads: Sequence[int]) -> Trace:
    """Operators of the backward pass, a millisecond apart, by their number and the thread of their forward pass."""
    count = len(numbers)
    return Trace(
        source="test",
        names=("autograd::engine::evaluate_function: MmBackward0",),
        threads=(Thread(1, 1),),
        ops=Ops.build(
            {
                "start_ns": np.arange(count) * MS,
                "end_ns": np.arange(count) * MS + MS // 2,
                "name": [0] * count,
                "thread": [0] * count,
                "sequence": numbers,
                "forward_thread": threads,
            }
        ),
    )


def test_a_backward_pass_begins_with_a_number_higher_than_all_before() -> None:
    passes = backward_passes(of_ops([9, 8, -1, 6, 7, 5, 19, 18, -1, 15], [1] * 10))
    assert passes.start_ns.tolist() == [0, 6 * MS]
    assert passes.end_ns.tolist() == [5 * MS + MS // 2, 9 * MS + MS // 2]
    assert passes.begun_by(np.array([-1, 0, 3 * MS, 7 * MS])).tolist() == [0, 1, 1, 2]
    assert passes.holding(np.array([-1, 3 * MS, 5 * MS + MS // 2, 7 * MS])).tolist() == [-1, 0, -1, 1]


def test_what_checkpointing_recomputes_begins_no_pass() -> None:
    passes = backward_passes(of_ops([9, 8, 50, 51, 7, 6], [1, 1, 2, 2, 1, 1]))
    assert len(passes) == 1


def test_annotations_tell_of_passes_where_no_operators_do() -> None:
    assert len(backward_passes(drawn("bwd : .BB.BB", repeat=2))) == 4
    assert len(backward_passes(Trace(source="nothing"))) == 0
