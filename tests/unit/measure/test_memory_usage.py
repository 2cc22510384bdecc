"""Memory over time: what a history adds up to, what grows, what was kept, what was computed twice, what was retried."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.memory.history import alive, history
from diagnose.measure.memory.leaks import backward_begins, kept_by, places_by_stack
from diagnose.measure.memory.usage import Series, main_memory, memory_use
from diagnose.measure.roofline.saved_bytes import argument_bytes
from diagnose.measure.views.growth import growth, growth_between
from diagnose.model import Facts
from diagnose.plugins import load
from diagnose.trace import StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Counters, MemoryAction, MemoryEvents, Segments

ALLOC, REQUESTED, FREE = MemoryAction.ALLOC, MemoryAction.FREE_REQUESTED, MemoryAction.FREE
TAKE, RETURN = MemoryAction.SEGMENT_ALLOC, MemoryAction.SEGMENT_FREE


def recorded(*events: tuple[MemoryAction, int, int], held: tuple[int, int] | None = None, **more: Any) -> Trace:
    """A history of (action, address, bytes), one a nanosecond; `held`: allocated and reserved at its end."""
    action, address, size = zip(*events, strict=True)
    columns = {"time_ns": range(len(events)), "action": action, "address": address, "size_bytes": size}
    segments = {"address": [0], "size_bytes": [held[1]], "allocated_bytes": [held[0]]} if held else {}
    return Trace(
        source="",
        memory=MemoryEvents.build({**columns, "device": [0] * len(events), **more.pop("columns", {})}),
        segments=Segments.build({**segments, "device": [0]} if held else {}),
        **more,
    )


class TestHistory:
    def test_totals_end_with_what_the_snapshot_holds(self) -> None:
        past = history(recorded((ALLOC, 1, 10), (ALLOC, 2, 5), (REQUESTED, 1, 10), (FREE, 1, 10), held=(25, 40)), 0)
        assert past.allocated_bytes.tolist() == [30, 35, 25, 25]
        assert past.reserved_bytes.tolist() == [40, 40, 40, 40]

    def test_segments_that_were_taken_and_returned(self) -> None:
        past = history(recorded((TAKE, 0, 20), (ALLOC, 1, 10), (RETURN, 9, 30), held=(10, 50)), 0)
        assert past.reserved_bytes.tolist() == [80, 80, 50]

    def test_without_a_snapshot_totals_are_never_negative(self) -> None:
        assert history(recorded((FREE, 1, 10), (ALLOC, 2, 4)), 0).allocated_bytes.tolist() == [0, 4]

    def test_what_is_alive_at_the_end(self) -> None:
        trace = recorded((ALLOC, 1, 10), (FREE, 1, 10), (ALLOC, 1, 6), (ALLOC, 2, 5), (FREE, 3, 7))
        assert alive(trace, np.arange(5)).tolist() == [2, 3]

    def test_what_was_kept_of_a_stretch_and_who_asked(self) -> None:
        stacks = ((StackFrame("torch/nn/x.py", 1, "f", owned=False), StackFrame("model.py", 7, "forward")),)
        trace = recorded(
            (ALLOC, 1, 10),
            (ALLOC, 2, 30),
            (FREE, 2, 30),
            (ALLOC, 3, 10),
            columns={"stack": [0, 0, -1, 0]},
            stacks=stacks,
        )
        rows = kept_by(trace, 0, 0, 3)
        assert rows.tolist() == [0]
        assert [(place.file, place.line, place.share) for place in places_by_stack(trace, rows)] == [
            ("model.py", 7, 1.0)
        ]

    def test_backward_passes_begin_with_a_gradient_of_the_loss(self) -> None:
        stacks = ((StackFrame("torch/autograd/__init__.py", 100, "_make_grads"),), (StackFrame("model.py", 7, "f"),))
        trace = recorded((ALLOC, 1, 8), (ALLOC, 2, 4), (FREE, 2, 4), columns={"stack": [1, 0, -1]}, stacks=stacks)
        assert backward_begins(trace, 0).tolist() == [1]


class TestSeries:
    series = Series(np.array([10, 20, 30, 40]), np.array([5, 9, 2, 7]))

    def test_the_value_that_held(self) -> None:
        assert self.series.at(np.array([0, 10, 19, 35, 99])).tolist() == [5, 5, 5, 2, 7]

    def test_the_least_within(self) -> None:
        least = self.series.least_within(np.array([10, 20, 22, 41]), np.array([20, 30, 45, 50]))
        assert least.tolist() == [5, 9, 2, 7]


class TestMemoryUse:
    def test_counters_of_the_device_come_first(self) -> None:
        names = ("allocator.allocated_bytes", "allocator.peak_reserved_bytes")
        rows = {"time_ns": [1, 2, 3], "name": [0, 0, 1], "device": [1, 1, 1], "value": [5, 7, 30]}
        facts = Facts(device_memory_bytes=100, peak_memory_bytes=9)
        memory = memory_use(Trace(source="", names=names, counters=Counters.build(rows), facts=facts), 1)
        assert memory.allocated.value.tolist() == [5, 7]
        assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.capacity_bytes) == (9, 30, 100)

    def test_of_the_host_the_process_counts(self) -> None:
        rows = {"time_ns": [1], "name": [0], "device": [-1], "value": [5]}
        memory = memory_use(Trace(source="", names=("host.process_rss_bytes",), counters=Counters.build(rows)), -1)
        assert (memory.peak_allocated_bytes, memory.capacity_bytes) == (5, None)

    def test_nothing_recorded_is_unknown(self) -> None:
        memory = memory_use(Trace(source=""), 0)
        assert memory.peak_allocated_bytes is None
        assert memory.peak_reserved_bytes is None
        assert len(memory.allocated) == 0


@pytest.mark.parametrize(
    ("values", "per_step"),
    [
        ([10, 20, 30, 40], 10),
        ([10, 20, 30], None),  # two rises may be chance
        ([10, 90, 100, 110], None),  # the first step made what later ones keep
        ([10, 20, 15, 40], None),
        ([7] * 40, None),
        ([min(at, 12) for at in range(80)], None),
        ([at + 30 * (at % 3) for at in range(96)], 1),
        ([at * 77 % 50 for at in range(96)], None),
        ([round(1000 * (1 - 0.95**at)) for at in range(120)], None),  # a cache that fills ever more slowly
    ],
)
def test_growth(values: list[int], per_step: float | None) -> None:
    found = growth(np.array(values, np.int64))
    assert found == (None if per_step is None else pytest.approx(per_step, rel=0.1))


@pytest.mark.parametrize(
    ("steps", "values", "per_step"),
    [
        ([10, 15, 22, 40], [100, 150, 220, 400], 10),  # read at uneven distances
        ([10, 15, 22, 40], [100, 150, 150, 150], None),
        ([10, 15, 22], [100, 150, 220], None),
        (list(range(0, 200, 5)), [10 * at for at in range(0, 200, 5)], 10),
    ],
)
def test_growth_between_steps_that_were_read(steps: list[int], values: list[int], per_step: float | None) -> None:
    found = growth_between(np.array(steps, np.int64), np.array(values, np.int64))
    assert found == (None if per_step is None else pytest.approx(per_step, rel=0.1))


def test_bytes_of_arguments() -> None:
    shapes = {"o": ("[[4,8],[8],[]]", '["c10::BFloat16","float","Scalar"]'), "x": ("[[4]]", '["no such type"]')}
    trace = drawn("host: oo xx y", ops={"o": "aten::linear", "x": "aten::x", "y": "aten::y"}, shapes=shapes)
    assert argument_bytes(trace, np.arange(3)).tolist() == [4 * 8 * 2 + 8 * 4, 0, -1]


OPS = {
    "B": "autograd::engine::evaluate_function: MulBackward0",
    "D": "autograd::engine::evaluate_function: SumBackward0",
    "C": "autograd::engine::evaluate_function: CheckpointFunctionBackward",
    "x": "aten::mul",
    "y": "aten::sum",
    "n": "aten::neg",
}


class TestRecomputation:
    def spans(self, text: str, numbered: str = "xy", **more: Any) -> list[tuple[int, int]]:
        again = Measures(drawn(text, ops=OPS, numbered=numbered, unit_ns=1, **more)).recomputations
        return [(int(start), int(end)) for start, end in zip(again.time.starts, again.time.ends, strict=True)]

    def test_a_forward_pass_within_a_backward_operator(self) -> None:
        assert self.spans("host: xxyy BBBBBBDDDD\nhost:      xxyyn n n n") == [(5, 9)]

    def test_a_reentrant_checkpoint(self) -> None:
        assert self.spans("host: xxyy CCCCCCCCCC\nhost:      xxyyBBDD  ") == [(5, 9)]

    def test_backward_operators_that_are_differentiated_themselves(self) -> None:
        assert self.spans("host: xxyy BBBBBBDDDD\nhost:      xxyyn xxn ") == []

    def test_numbers_of_operators_that_the_forward_pass_does_not_know(self) -> None:
        assert self.spans("host: xxyy BBBBBBDDDD\nhost:      nnyyn n n n", numbered="xyn") == []

    def test_an_exchange_whose_derivative_is_an_exchange(self) -> None:
        ops = {"x": "_AllToAll", "B": "autograd::engine::evaluate_function: _AllToAllBackward"}
        trace = drawn("host: xx BBBB CCCC\nhost:     xx", ops=OPS | ops, numbered="x")
        assert len(Measures(trace).recomputations.ops) == 0

    def test_recorded_calls_tell_without_numbers_of_operators_around(self) -> None:
        frames = {"r": "torch/utils/checkpoint.py(1500): recompute_fn"}
        assert self.spans("host: xxyy xxyy\ncall:      rrrr", frames=frames) == [(5, 9)]


class TestRetries:
    def mostly_retried(self, text: str) -> bool:
        return Measures(drawn(text, repeat=5)).device_allocation.mostly_retried

    def test_memory_is_given_back_and_taken_within_an_operator(self) -> None:
        assert self.mostly_retried("host: oooooooo\nhost:  fffmm ol\ngpu :          kk\nstep:            |")

    def test_the_program_gives_it_back(self) -> None:
        assert not self.mostly_retried("host: fff ommmo ol\ngpu :            kk\nstep:              |")

    def test_memory_that_is_taken_in_every_step_and_never_given_back_grows(self) -> None:
        trace = drawn("host: mmol\ngpu :     kk\nstep:       |", repeat=5)
        assert Measures(trace).device_allocation.grows
        ceasing = drawn("host: mmol  mmol  ol  ol  ol\ngpu :     kk    kk  kk  kk  kk\nstep: |    |    |   |   |   |")
        assert not Measures(ceasing).device_allocation.grows


def test_a_device_may_have_the_highest_number_that_there_is() -> None:
    highest = int(np.iinfo(np.int32).max)
    trace = Trace(source="", segments=Segments.build({"address": [0, 1, 2], "device": [highest, 0, highest]}))
    tracemalloc.start()
    try:
        assert main_memory(trace) == highest
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("reserved", "told"), [(4 << 30, 1), (0, 0)])
def test_pieces_of_more_memory_than_there_is_are_no_finding(reserved: int, told: int) -> None:
    peak = SimpleNamespace(fragments_bytes=2 << 30, reserved_bytes=reserved)
    measures: Any = SimpleNamespace(memory_peak=peak, memory=None, has_device=False, idle={"allocator": None})
    measures.trace = Trace(source="")
    assert len(list(load().rules["fragmented-memory"].check(measures))) == told
