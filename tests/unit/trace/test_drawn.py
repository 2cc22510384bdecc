"""A drawing says what happened; these tests say what a drawing means."""

from __future__ import annotations

import pytest

from diagnose.model import Facts
from diagnose.trace import StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import MISSING, CopyDirection, Memory, RangeKind, WorkKind

MS = 1_000_000


def spans(trace: Trace, table: str) -> list[tuple[str, int, int]]:
    """Name, start and end in milliseconds of each row."""
    rows = getattr(trace, table)
    return [
        (trace.names[name], int(start) // MS, int(end) // MS)
        for name, start, end in zip(rows.name, rows.start_ns, rows.end_ns, strict=True)
    ]


def test_equal_neighbours_are_one_event_and_a_column_is_a_millisecond() -> None:
    trace = drawn("""
        load: www   ww
        gpu :    kk   k
    """)
    assert spans(trace, "device") == [("kernel", 3, 5), ("kernel", 8, 9)]
    assert spans(trace, "ranges") == [("DataLoader.__next__", 0, 3), ("DataLoader.__next__", 6, 8)]
    assert trace.ranges.kind.tolist() == [RangeKind.INPUT, RangeKind.INPUT]
    assert trace.window_ns == (0, 9 * MS)
    assert trace.device_names == ("NVIDIA H200",)


def test_an_operator_spans_the_calls_inside_its_run() -> None:
    trace = drawn("""
        host: ool o  s
        gpu :   kk
    """)
    assert spans(trace, "ops") == [("aten::op", 0, 3), ("aten::op", 4, 5)]
    assert spans(trace, "calls") == [("cudaLaunchKernel", 2, 3), ("cudaStreamSynchronize", 7, 8)]


def test_device_work_takes_launches_in_order() -> None:
    trace = drawn(
        """
        host: lol  c
        gpu :   kKK h
    """,
        kernels={"K": "second"},
    )
    launched = dict(zip(trace.calls.correlation.tolist(), trace.calls.start_ns // MS, strict=True))
    assert [int(launched[row]) for row in trace.device.correlation.tolist()] == [0, 2, 5]


def test_without_a_drawn_launch_work_is_launched_just_in_time() -> None:
    trace = drawn("gpu : ..kk")
    assert spans(trace, "calls") == [("cudaLaunchKernel", 2, 2)]
    assert trace.device.correlation.tolist() == trace.calls.correlation.tolist()


def test_nobody_launched_a_u() -> None:
    trace = drawn("gpu : uu")
    assert trace.device.correlation.tolist() == [-1]
    assert len(trace.calls) == 0


def test_a_graph_launch_serves_all_work_until_the_next_one() -> None:
    trace = drawn("""
        host: G     G
        gpu :  k kk  k
    """)
    first, second = trace.calls.correlation.tolist()
    assert trace.device.correlation.tolist() == [first, first, second]


def test_copies_know_their_direction_and_memory() -> None:
    trace = drawn("""
        gpu  : h d z
        gpu 7:  H t
    """)
    kinds = [(row.name) for row in map(WorkKind, trace.device.kind.tolist())]
    assert kinds == ["COPY", "COPY", "COPY", "COPY", "SET"]
    assert trace.device.stream.tolist() == [0, 7, 0, 7, 0]
    assert trace.device.direction.tolist()[:3] == [
        CopyDirection.HOST_TO_DEVICE,
        CopyDirection.HOST_TO_DEVICE,
        CopyDirection.DEVICE_TO_HOST,
    ]
    assert trace.device.host_memory.tolist()[:3] == [Memory.PAGEABLE, Memory.PINNED, Memory.PAGEABLE]
    assert trace.device.size_bytes[0] == 10_000_000


def test_repeat_tiles_the_picture_and_marks_lie_on_borders() -> None:
    trace = drawn(
        """
        gpu : kk.
        step:    |
    """,
        repeat=3,
    )
    assert spans(trace, "device") == [("kernel", 0, 2), ("kernel", 3, 5), ("kernel", 6, 8)]
    assert [end for _, _, end in spans(trace, "ranges")] == [3, 6, 9]


def test_a_sample_a_column_with_the_stack_of_its_letter() -> None:
    trace = drawn("line: a.b", stacks={"a": [("train.py", 41, "main")], "b": [StackFrame("io.py", 7, "read", False)]})
    assert trace.samples.time_ns.tolist() == [MS // 2, 2 * MS + MS // 2]
    assert [trace.stacks[index][0].line for index in trace.samples.stack.tolist()] == [41, 7]


def test_what_else_is_known_becomes_fields_of_the_trace() -> None:
    trace = drawn("host: oo", facts=Facts(cpu_count=2), rank=3, unit_ns=1000, ops={"o": "aten::mm"})
    assert (trace.rank, trace.facts.cpu_count, trace.has_device) == (3, 2, False)
    assert trace.device_names == ()
    assert trace.names == ("aten::mm",)
    assert trace.ops.end_ns.tolist() == [2000]


@pytest.mark.parametrize(
    "picture", ["", "tpu : kk", "gpu: k\nload: w", "gpu : ?", "host:  l\ngpu : k", "host: l\ngpu : k k", "host: ?"]
)
def test_a_picture_that_says_nothing_is_refused(picture: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        drawn(picture)


def test_operators_carry_the_shapes_that_their_letter_has() -> None:
    trace = drawn(
        "host: al ol\ngpu :  kk kk",
        ops={"a": "aten::mm", "o": "aten::op"},
        shapes={"a": ("[[2, 3], [3, 4]]", '["float", "float"]')},
    )
    assert [trace.texts[place] for place in (trace.ops.shapes[0], trace.ops.dtypes[0])] == [
        "[[2, 3], [3, 4]]",
        '["float", "float"]',
    ]
    assert trace.ops.shapes[1] == trace.ops.dtypes[1] == MISSING
