"""What the profiler's own records cost, as far as a recording shows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose import plugins
from diagnose.analysis.doubt import doubtful_ns, hidden_ns
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.replay.overhead import MOST, SPREAD, SPREAD_OF_COMPILED, scale_of, spread_of
from diagnose.measure.replay.profiler_overhead import FRAME_NS, LAUNCH_NS, OP_NS, SHAPES_NS, ProfilerRecords, records_of
from diagnose.measure.replay.replay import Cut
from diagnose.measure.views.launches import launches_of
from diagnose.measure.views.op_tree import op_tree
from diagnose.model import Confidence, Facts, Severity
from diagnose.rule import Claim
from diagnose.trace import Thread, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import DeviceWork, Frames, HostCalls, Int64, Ops, RangeKind, Ranges

US = 1_000


def traced(gap_ns: int, *, parent: str = "aten::linear", shapes: bool = False, device: bool = True) -> Trace:
    """30 operators of 10 µs, each with three others in it that lie `gap_ns` apart, and each launching a kernel."""
    outer = np.arange(30, dtype=np.int64) * 20 * US
    inner = outer[:, None] + US + np.arange(3) * (US + gap_ns)
    start = np.concatenate((outer, inner.ravel()))
    end = np.concatenate((outer + 10 * US, inner.ravel() + US))
    order = np.argsort(start, kind="stable")
    names = np.concatenate((np.zeros(30), np.ones(90)))
    ops = Ops.build({
        "start_ns": start[order], "end_ns": end[order], "name": names[order], "thread": np.zeros(120),
        "shapes": np.full(120, 0 if shapes else -1),
    })  # fmt: skip
    calls = HostCalls.build({
        "start_ns": outer + 8 * US, "end_ns": outer + 9 * US, "name": np.full(30, 2), "thread": np.zeros(30),
        "correlation": np.arange(1, 31),
    })  # fmt: skip
    work = DeviceWork.build({
        "start_ns": outer + 10 * US, "end_ns": outer + 12 * US, "name": np.full(30, 3), "device": np.zeros(30),
        "stream": np.full(30, 7), "correlation": np.arange(1, 31),
    })  # fmt: skip
    marks = np.arange(6, dtype=np.int64) * 100 * US
    steps = Ranges.build({
        "start_ns": marks, "end_ns": marks + 100 * US, "kind": np.full(6, RangeKind.STEP), "name": np.full(6, 4),
        "thread": np.zeros(6),
    })  # fmt: skip
    return Trace(
        source="told",
        names=(parent, "aten::mm", "cudaLaunchKernel", "kernel", "ProfilerStep#1"),
        threads=(Thread(1, 1, "python"),),
        texts=("[]",),
        ops=ops,
        calls=calls,
        device=work if device else DeviceWork.build(),
        ranges=steps,
    )


def records(trace: Trace) -> ProfilerRecords:
    launches = launches_of(trace)
    return records_of(trace, launches, op_tree(trace, launches).nesting, {0})


def at(*times_ns: int) -> Int64:
    return np.array(times_ns, np.int64)


def test_the_cost_of_a_stretch_is_that_of_what_began_in_it() -> None:
    one = records(traced(560))
    assert one.between(at(0, 20 * US, 0), at(20 * US, 60 * US, 0)).tolist() == [
        4 * OP_NS + LAUNCH_NS, 2 * (4 * OP_NS + LAUNCH_NS), 0
    ]  # fmt: skip


def test_shapes_and_frames_cost_besides() -> None:
    trace = traced(830, shapes=True)
    frames = Frames.build({"start_ns": at(0, 5), "end_ns": at(10, 9), "name": at(0, 0), "thread": at(0, 0)})
    trace = Trace(**{**vars(trace), "frames": frames})
    assert records(trace).between(at(0), at(20 * US)).tolist() == [4 * (OP_NS + SHAPES_NS) + LAUNCH_NS + 2 * FRAME_NS]


def test_what_frames_of_compiled_code_cost_is_known_least() -> None:
    eager = traced(560)
    one = Frames.build({"start_ns": at(0), "end_ns": at(10), "name": at(0), "thread": at(0)})
    compiled = replace(eager, names=("triton_poi_fused_0", *eager.names[1:]))
    assert spread_of(records(eager)) == spread_of(records(compiled)) == spread_of(records(replace(eager, frames=one)))
    assert spread_of(records(replace(compiled, frames=one))) == SPREAD_OF_COMPILED > SPREAD


def test_gaps_between_operators_in_one_tell_how_fast_the_host_is() -> None:
    scales = [records(traced(gap_ns)).scale for gap_ns in (100, 420, 560, 740, 840, 5 * US + 1)]
    assert scales == pytest.approx([2 / 3, 1.0, 1.0, 1.0, 1.125, 1.5])
    assert records(traced(830, shapes=True)).scale == 1.0


def test_a_clock_of_whole_microseconds_leaves_the_usual_cost() -> None:
    assert [records(traced(gap_ns)).scale for gap_ns in (0, US, 5 * US)] == [1.0, 1.0, 1.0]


def test_gaps_in_python_tell_nothing() -> None:
    assert records(traced(560, parent="Optimizer.step#AdamW.step")).scale == 0.0


def test_no_more_than_the_time_of_a_stretch_is_the_recordings() -> None:
    one = records(traced(560))
    assert one.within(Intervals.of(at(0, 100 * US), at(20 * US, 100 * US + 400)), 1.0) == 4 * OP_NS + LAUNCH_NS + 400
    assert one.within(Intervals.of(at(0), at(20 * US)), 0.0) == 0


def test_a_step_is_told_what_its_records_cost() -> None:
    measures = Measures(traced(560))
    # Four-fifths of the host's time are the most that is believed.
    assert measures.recording_ns.tolist() == [5 * (4 * OP_NS + LAUNCH_NS)] * measures.step_count
    assert Measures(traced(560, device=False)).recording_ns.sum() == 0


def test_by_how_much_records_lengthened_the_steps_is_said_and_taken_off() -> None:
    trace = traced(560)
    measures = Measures(trace)
    # Between two launches lie 20 µs of the host, of which four operators and a launch call cost 6 µs.
    assert measures.replay.base_ns / measures.step_count == pytest.approx(70 * US, rel=0.02)
    said = [text for text in diagnose([trace], plugins.load_rules()).warnings if "the profiler made steps" in text]
    assert len(said) == 1
    assert said[0].startswith("the profiler made steps about 1.4")


def test_what_the_host_costs_is_a_bound_where_records_may_have_cost_much_of_it() -> None:
    (finding,) = diagnose([traced(560)], plugins.load_rules()).findings
    assert (finding.rule, finding.confidence) == ("launch-bound", Confidence.BOUND)


def test_a_host_that_is_ahead_without_its_records_is_healthy() -> None:
    trace = traced(560)
    device = trace.device
    busy = replace(trace, device=replace(device, end_ns=device.start_ns + 18 * US))
    assert [one.rule for one in diagnose([busy], plugins.load_rules()).findings if one.severity != Severity.NOTE] == []


def test_of_a_claim_is_in_doubt_what_a_faster_host_would_not_lose_to_it() -> None:
    replay = Measures(traced(560)).replay
    outer = np.arange(30, dtype=np.int64) * 20 * US
    nothing, between = Intervals.of(at(), at()), Intervals.of(outer + 10 * US, outer + 20 * US)
    # A host without work of its own takes no time whatever its records cost: all that these may have cost is in doubt.
    assert replay.doubtful_of(Cut(host=Intervals.of(at(0), at(600 * US)))) == replay.doubtful_ns > 0
    assert 0 < replay.doubtful_of(Cut(host=between)) < replay.doubtful_ns
    assert replay.doubtful_of(Cut(host=nothing)) == 0


def test_a_host_that_its_records_slowed_hides_what_faster_kernels_would_save() -> None:
    """Kernels of 18 µs, each launched 20 µs after the one before: without its records, the host is ahead."""
    trace = traced(560)
    device = trace.device
    measures = Measures(replace(trace, device=replace(device, end_ns=device.start_ns + 18 * US)))
    halved, unchanged = (Cut(scale=np.full(30, left)) for left in (0.5, 1.0))
    assert measures.replay.hidden_of(halved) > 0 == measures.replay.hidden_of(unchanged)
    saved_ns = measures.replay.saved_ns(halved)
    assert saved_ns + measures.replay.hidden_of(halved) <= 9 * US * len(device)
    faster = Claim("slow kernels", saved_ns, measures.compute, cut=halved)
    assert hidden_ns(faster, measures) == measures.replay.hidden_of(halved)
    assert doubtful_ns(faster, measures) == 0
    waits = Claim("late launches", saved_ns, measures.counted - measures.busy)
    assert hidden_ns(waits, measures) == 0 < doubtful_ns(waits, measures)


ISSUING = """
    host: olololol
    gpu :   k k k k
    step:          |
"""


def test_what_the_profiler_costs_is_told_by_steps_that_nobody_traced() -> None:
    traced = drawn(ISSUING, repeat=6, unit_ns=10_000)
    assert Measures(traced).replay.recording_scale == 0
    watched = replace(traced, facts=Facts(step_ns_watched=75_000))
    replay = Measures(watched).replay
    # Each step is 15 µs too long, and has 4 operators (2 µs) and 4 launches (16 µs) of which the device waits for most.
    assert 0.8 <= replay.recording_scale <= 1.2
    assert replay.base_ns == pytest.approx(5 * 75_000, rel=0.01)
    assert replay.off == 0.0


def test_steps_that_were_no_shorter_without_the_profiler_leave_nothing_to_take_off() -> None:
    replay = Measures(drawn(ISSUING, repeat=6, unit_ns=10_000, facts=Facts(step_ns_watched=90_000))).replay
    assert (replay.recording_scale, replay.base_ns) == (0, 5 * 90_000)


def test_no_record_is_said_to_cost_more_than_one_can() -> None:
    assert scale_of(lambda scale: round(1_000 - 100 * scale), 1.0, 100) == pytest.approx(MOST, rel=0.05)


def test_steps_as_long_as_those_watched_leave_a_record_its_usual_cost() -> None:
    assert scale_of(lambda _: 1_000, 1.2, 990) == 1.2


def test_a_host_that_writes_records_faster_than_usual_is_found() -> None:
    assert scale_of(lambda scale: round(1_000 - 100 * scale), 1.0, 950) == pytest.approx(0.5, abs=0.01)


def test_steps_shorter_than_the_work_of_the_device_do_not_tell_what_the_profiler_costs() -> None:
    replay = Measures(drawn(ISSUING, repeat=6, unit_ns=10_000, facts=Facts(step_ns_watched=10_000))).replay
    assert (replay.recording_scale, replay.base_ns) == (0, 5 * 90_000)


def test_a_live_run_knows_how_late_the_host_is_and_not_where() -> None:
    """Records that cost more where the device waits, and less elsewhere, leave more for faster kernels to save."""
    picture = """
        host: ol ol ol ol ol
        gpu :   kk kk kk kk kk
        step:                 |
    """
    measures = Measures(drawn(picture, repeat=6, unit_ns=8_000, facts=Facts(step_ns_watched=90_000)))
    halved, unchanged = (Cut(scale=np.full(len(measures.trace.device), left)) for left in (0.5, 1.0))
    assert measures.replay.doubtful_ns == measures.replay.saved_ns(halved) == 0
    assert measures.replay.hidden_of(unchanged) == 0 < measures.replay.hidden_of(halved) <= measures.busy.total_ns / 2
