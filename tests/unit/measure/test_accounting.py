"""Every nanosecond once: the classes sum to the step, whatever the trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.steps.idle import CAUSES
from diagnose.model import Accounting
from diagnose.trace import StackFrame, Thread, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import DeviceWork, HostCalls, Ops, RangeKind, Ranges, Samples, StepLog

MS = 1_000_000
NAMES = (
    "kernel", "ncclDevKernel_AllReduce", "Memcpy HtoD", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc",
    "aten::mm", "Optimizer.step#SGD.step", "c10d::allreduce_",
)  # fmt: skip

moments = st.integers(0, 60)
lengths = st.one_of(st.just(0), st.integers(0, 30))


@st.composite
def tables(draw: st.DrawFn, columns: dict[str, st.SearchStrategy[int]], most: int = 14) -> dict[str, list[int]]:
    count = draw(st.integers(0, most))
    starts = [draw(moments) for _ in range(count)]
    table = {"start_ns": starts, "end_ns": [start + draw(lengths) for start in starts]}
    for name, values in columns.items():
        table[name] = [draw(values) for _ in range(count)]
    return table


threads = st.integers(-1, 2)
device_work = tables(
    {
        "kind": st.integers(0, 2),
        "name": st.integers(-1, 2),
        "device": st.integers(-1, 1),
        "stream": st.integers(0, 3),
        "correlation": st.integers(-1, 9),
        "direction": st.integers(0, 3),
        "host_memory": st.integers(0, 2),
    }
)
host_calls = tables({"name": st.integers(3, 5), "thread": threads, "correlation": st.integers(-1, 9)})
operators = tables({"name": st.sampled_from([6, 8]), "thread": threads})
ranges = tables({"kind": st.integers(0, 8), "name": st.just(7), "thread": threads})


@st.composite
def traces(draw: st.DrawFn, *, device: bool = True) -> Trace:
    """Any recording: overlap on one stream, disorder, duplicates, no length, no launch, several devices and threads."""
    stacks = (
        (StackFrame("train.py", 1, "main"),),
        (StackFrame("torch/utils/data/dataloader.py", 2, "__next__", False),),
    )
    times = draw(st.lists(moments, max_size=6, unique=True).map(sorted))
    logged = draw(st.lists(moments, max_size=4, unique=True).map(sorted))
    return Trace(
        source="generated",
        names=NAMES,
        threads=(Thread(1, 1), Thread(1, 2), Thread(1, 3)),
        stacks=stacks,
        window_ns=draw(st.sampled_from([None, (0, 100)])),
        device=DeviceWork.build(draw(device_work) if device else None),
        calls=HostCalls.build(draw(host_calls)),
        ops=Ops.build(draw(operators)),
        ranges=Ranges.build(draw(ranges)),
        samples=Samples.build({"time_ns": times, "stack": [draw(st.integers(0, 1)) for _ in times]}),
        step_log=StepLog.build({"end_ns": logged, "input_ns": [3 for _ in logged]}),
    )


def check_sums(trace: Trace) -> None:
    measures = Measures(trace)
    steps = measures.steps
    assert (steps.length_ns > 0).all()
    assert np.array_equal(steps.start_ns[1:], steps.end_ns[:-1])
    for step, accounting in enumerate(measures.accountings):
        parts = [accounting.compute, accounting.exposed_comm, accounting.exposed_copy, *accounting.idle.values()]
        assert min(parts) >= 0
        assert sum(parts) == accounting.total_ns == int(steps.length_ns[step])
    assert measures.accounting.total_ns == measures.total_ns
    assert tuple(measures.accounting.idle) == CAUSES


@settings(max_examples=300)
@given(traces())
def test_the_classes_sum_to_each_step_and_to_all(trace: Trace) -> None:
    check_sums(trace)


@settings(max_examples=150)
@given(traces(device=False))
def test_the_classes_sum_without_a_device(trace: Trace) -> None:
    check_sums(trace)


@settings(max_examples=150)
@given(traces(), st.sampled_from([0, 1, 1_790_000_000_000_000_001]))
def test_shifting_all_times_changes_nothing(trace: Trace, by: int) -> None:
    before, after = Measures(trace), Measures(shifted(trace, by))
    assert after.accountings == before.accountings
    assert (after.steps.start_ns - by).tolist() == before.steps.start_ns.tolist()


def _is_repeated(values: Any) -> Any:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return count[place] > 1


@settings(max_examples=150)
@given(traces(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(trace: Trace, random: Any) -> None:
    """Of several calls with one correlation the first counts; of two that begin at once it is either, and so it is of
    work without length that begins and ends with other work."""
    launches = list(zip(trace.calls.correlation.tolist(), trace.calls.start_ns.tolist(), strict=True))
    assume(len(set(launches)) == len(launches))
    device = trace.device
    assume(not (_is_repeated(device.start_ns) & (device.start_ns == device.end_ns)).any())

    def shuffle(table: Any) -> Any:
        rows = list(range(len(table)))
        random.shuffle(rows)
        return table.where(np.array(rows, np.int64))

    shuffled = replace(
        trace,
        device=shuffle(trace.device),
        calls=shuffle(trace.calls),
        ops=shuffle(trace.ops),
        ranges=shuffle(trace.ranges),
    )
    assert Measures(shuffled).accountings == Measures(trace).accountings


@settings(max_examples=150)
@given(traces(), st.floats(0, 1))
def test_device_work_in_two_pieces_is_the_same_work(trace: Trace, share: float) -> None:
    work = trace.device
    cut = work.start_ns + ((work.end_ns - work.start_ns) * share).astype(np.int64)
    first, second = replace(work, end_ns=cut), replace(work, start_ns=cut)
    whole = (cut == work.start_ns) | (cut == work.end_ns)
    pieces = DeviceWork.concatenate([work.where(whole), first.where(~whole), second.where(~whole)])
    before, after = Measures(trace), Measures(replace(trace, device=pieces))
    assert (after.compute, after.comm, after.copies) == (before.compute, before.comm, before.copies)
    # Steps that nothing marks are found by how work repeats, which pieces may change.
    assume(after.steps.start_ns.tolist() == before.steps.start_ns.tolist())
    assume(after.steps.end_ns.tolist() == before.steps.end_ns.tolist())
    # Causes of idle time rest on which launch a row belongs to, of which pieces of one have the same.
    assert [classes(one) for one in after.accountings] == [classes(one) for one in before.accountings]


def classes(accounting: Accounting) -> tuple[int, ...]:
    return accounting.compute, accounting.exposed_comm, accounting.exposed_copy, accounting.idle_ns


def shifted(trace: Trace, by: int) -> Trace:
    def move(table: Any) -> Any:
        times = {name: getattr(table, name) + by for name in ("start_ns", "end_ns", "time_ns") if hasattr(table, name)}
        return replace(table, **times)

    window = trace.window_ns and (trace.window_ns[0] + by, trace.window_ns[1] + by)
    names = ("device", "calls", "ops", "frames", "ranges", "samples", "step_log")
    return replace(trace, window_ns=window, **{name: move(getattr(trace, name)) for name in names})


def test_compute_hides_communication_and_communication_hides_copies() -> None:
    accounting = Measures(
        drawn("""
        gpu  : kkkk
        gpu 7:   cccc
        gpu 8:     HHHH
        gpu 9:         .k
        """)
    ).accounting
    assert (accounting.compute, accounting.exposed_comm, accounting.exposed_copy) == (5 * MS, 2 * MS, 2 * MS)
    assert accounting.idle_ns == MS


def test_overlap_on_one_stream_counts_once() -> None:
    trace = drawn("gpu : kkkkkk")
    doubled = replace(trace, device=DeviceWork.concatenate([trace.device, trace.device]))
    assert Measures(doubled).accounting.compute == 6 * MS


def test_busy_time_does_not_depend_on_links() -> None:
    trace = drawn("gpu : kk.kk.kk")
    unlinked = replace(trace, calls=HostCalls.build(), ops=Ops.build())
    assert Measures(unlinked).accounting.compute == Measures(trace).accounting.compute == 6 * MS


def test_the_busiest_device_is_accounted_for() -> None:
    trace = drawn("gpu : kk kkkk")
    device = replace(trace.device, device=np.array([0, 1], np.int32))
    assert Measures(replace(trace, device=device)).accounting.compute == 4 * MS


def test_a_recording_of_nothing_has_no_steps() -> None:
    measures = Measures(Trace(source="nothing"))
    assert (measures.step_count, measures.total_ns, measures.accounting.total_ns) == (0, 0, 0)
    assert measures.steps.found_by == "none"


def test_optimizer_ranges_without_work_make_steps_of_python() -> None:
    measures = Measures(
        drawn(
            """
        load: ww
        host:    oo
        opt :      OO
        """,
            repeat=3,
        )
    )
    assert measures.step_count == 2
    assert measures.accounting_of(0).idle["input"] == 2 * MS
    assert (measures.trace.ranges.kind == RangeKind.OPTIMIZER).sum() == 3
