"""Replays: unchanged they give the recording back, and what is taken out makes steps shorter as far as it can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import fused, recoverable_ns, scaled_ns, sped_up, without_waiting_ns
from diagnose.trace import Thread, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.intervals import Intervals
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import DeviceWork, HostCalls, RangeKind, Ranges

MS = 1_000_000
SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"
PUBLIC = Path(__file__).resolve().parents[4] / "shared" / "traces"
RESNET = PUBLIC / "pytorch__kineto" / "tb_plugin" / "samples"

HOST_BOUND = """
    load: wwww
    host:     ol  ol
    gpu :       kk  kkkk
    step:               |
"""
WAITING = """
    host: ol ssssss ol
    gpu :   kkkkkk    kkk
    step:                |
"""
AHEAD = """
    host: lololol sssss
    gpu :  kkkKKKkkkKKK
    step:              |
"""
TWO_STREAMS = """
    host  : lololol sss
    gpu   :  kkk   kk
    gpu 20:     ccc  cc
    step  :            |
"""


def measured(text: str, repeat: int = 4) -> Measures:
    return Measures(drawn(text, repeat=repeat, kernels={"K": "other_kernel"}, unit_ns=10_000))


@pytest.mark.parametrize("text", [HOST_BOUND, WAITING, AHEAD, TWO_STREAMS])
def test_nothing_changed_gives_every_moment_back(text: str) -> None:
    replay = measured(text).replay
    assert len(replay.graph) > 8
    assert replay.unchanged.tolist() == replay.graph.observed_ns.tolist()
    assert (replay.off, replay.graph.broken) == (0.0, 0)
    assert replay.saved_ns(Cut()) == 0


def test_without_the_wait_for_data_the_step_is_shorter_by_it() -> None:
    measures = measured(HOST_BOUND)
    assert measures.idle["input"].total_ns == 3 * 40_000  # the first mark begins the first counted step
    assert recoverable_ns(measures, measures.idle["input"]) == measures.idle["input"].total_ns
    assert measures.replay.step_ns(Cut(host=measures.idle["input"])) == measures.mean_ns - 40_000


def test_host_time_that_the_device_does_not_wait_for_gives_nothing_back() -> None:
    measures = measured("""
        host: lol       ssss
        load:     wwwwww
        gpu :  kkkkkkkKKKKKK
        step:               |
    """)
    inside = Intervals.of(measures.trace.ranges.start_ns, measures.trace.ranges.end_ns)
    assert measures.replay.saved_ns(Cut(host=inside)) == 0


def test_waits_that_return_at_once_let_the_host_run_ahead() -> None:
    measures = measured(WAITING)
    every = np.ones(len(measures.trace.calls), np.bool_)
    # Each step idles in three columns around its second launch; the first step's begin needs its own launch still.
    assert 0 < measures.replay.saved_ns(Cut(waits=every)) <= measures.idle_of().total_ns
    assert without_waiting_ns(measures, measures.idle_of()) == measures.replay.saved_ns(Cut(waits=every))


def test_a_wait_with_a_full_queue_behind_it_costs_nothing() -> None:
    measures = Measures(
        drawn(
            """
            host : ololc sss
            gpu  : uukkkkkkkKKKKKKKK
            gpu 7:       D
            step :                  |
            """,
            repeat=3,
            kernels={"K": "other_kernel"},
        )
    )
    assert measures.replay.saved_ns(Cut(waits=np.ones(len(measures.trace.calls), np.bool_))) == 0


def test_faster_work_shortens_the_step_only_as_far_as_the_host_keeps_up() -> None:
    ahead, bound = measured(AHEAD), measured(HOST_BOUND)
    # The device would be done after 6 of 12 columns, the host launches the last of four kernels in the 7th.
    assert scaled_ns(ahead, np.full(len(ahead.trace.device), 0.5)) == 3 * 45_000
    gain = scaled_ns(bound, np.full(len(bound.trace.device), 0.5))
    assert gain is not None
    assert gain < bound.busy.total_ns // 2


def test_a_backward_pass_on_its_own_thread_is_one_line_with_the_training_thread() -> None:
    measures = measured("""
        host  : olsss        ol
        host 1:      olppp ol
        gpu   :   kkk  k     k  k
        step  :                  |
    """)
    mine = measures.trace.calls.thread[measures.replay.graph.row[measures.replay.graph.on_training[1:]]]
    assert set(mine.tolist()) == {0, 1}
    python = Intervals.of([240_000], [270_000])
    assert measures.replay.saved_ns(Cut(host=python)) == 30_000


def test_work_that_begins_when_another_stream_ends_waited_for_it() -> None:
    measures = measured(TWO_STREAMS)
    without = np.where(measures.trace.device.stream == 20, 0.0, 1.0)
    # What waited for the other stream begins two columns sooner; the host's wait, begun in the 9th, is then over.
    assert scaled_ns(measures, without) == 3 * 30_000


def test_a_host_may_wait_for_an_event_amid_a_stream() -> None:
    """As DistributedDataParallel does that times its own first steps, and each hundredth: the optimizer follows."""
    measures = Measures(
        drawn(
            """
            host  : lololol sssssso  o
            gpu   :  kkk       KKKxxxx
            gpu 20:     ccccccc
            step  :                   |
            """,
            repeat=4,
            kernels={"K": "copy_out", "x": "optimizer"},
            unit_ns=100_000,
        )
    )
    without = np.where(measures.trace.device.stream == 20, 0.0, 1.0)
    # What the event follows begins when its launch returns, in the 6th column instead of the 12th.
    assert scaled_ns(measures, without) == 3 * 600_000


def test_work_that_found_the_device_full_began_when_others_left_room() -> None:
    measures = measured("""
        host  : lolol         ss
        gpu   :  kkkKKKKKKKKKK
        gpu 20:           ccc
        step  :                 |
    """)
    assert measures.replay.off == 0.0
    # It follows the first kernel, after which the second one had the device to itself.
    faster = np.where(measures.trace.device.stream == 7, 0.5, 1.0)
    assert scaled_ns(measures, faster) is not None
    assert measures.replay.unchanged.tolist() == measures.replay.graph.observed_ns.tolist()


@pytest.mark.parametrize("early_ns", [-15_000, 0])
def test_a_device_whose_clock_is_early_is_replayed(early_ns: int) -> None:
    trace = drawn(AHEAD, repeat=4, kernels={"K": "other_kernel"}, unit_ns=10_000)
    device = trace.device
    skewed = replace(device, start_ns=device.start_ns + early_ns, end_ns=device.end_ns + early_ns)
    measures = Measures(replace(trace, device=skewed))
    assert (measures.replay.off, measures.replay.graph.broken) == (0.0, 0)


def test_work_of_unknown_launch_can_be_what_another_stream_waited_for() -> None:
    measures = measured("""
        host  : lol            sss
        gpu   :  kuuuuuuuu
        gpu 20:           ccccc
        step  :                   |
    """)
    assert measures.replay.off == 0.0


def test_the_same_change_is_replayed_once() -> None:
    measures = measured(WAITING)
    every = np.ones(len(measures.trace.calls), np.bool_)
    assert Cut(waits=every).key == Cut(waits=every.copy()).key
    assert Cut(waits=every).key != Cut(waits=~every).key
    assert Cut(host=Intervals.of([1], [2])).key != Cut(host=Intervals.of([1], [3])).key
    assert (Cut(waits=every) | Cut()).key == Cut(waits=every).key


def test_idle_time_that_nothing_explains_makes_a_replay_a_bound() -> None:
    measures = measured("""
        host: lol sssssss
        gpu :  k       k
        step:            |
    """)
    assert not measures.replay.trusted
    assert scaled_ns(measures, np.ones(len(measures.trace.device))) is None
    assert recoverable_ns(measures, measures.idle_of()) == measures.idle_of().total_ns


def test_a_recording_without_a_device_has_no_replay() -> None:
    measures = measured("host: oooo\nstep:    |")
    assert measures.replay.off == 1.0
    assert Measures(Trace(source="nothing")).replay.off == 1.0


Program = list[tuple[str, int]]
programs = st.lists(
    st.tuples(st.sampled_from(["launch", "launch", "beside", "wait", "work"]), st.integers(1, 40)),
    min_size=4,
    max_size=60,
)


def run(program: Program, steps: int = 3) -> Trace:
    """What a host and a device of two streams, in order each, make of a program."""
    now, free = 0, {7: 0, 20: 0}
    calls: list[tuple[int, int, int, int]] = []
    work: list[tuple[int, int, int, int]] = []
    marks: list[int] = []
    for _ in range(steps):
        for what, length in [("launch", 5), *program]:
            if what in ("launch", "beside"):
                stream = 7 if what == "launch" else 20
                calls.append((now, now + 4_000, 0, len(work) + 1))
                start = max(now + 6_000, free[stream] + 1_000)
                work.append((start, start + length * 1_000, stream, len(work) + 1))
                free[stream] = start + length * 1_000
                now += 4_000
            elif what == "wait":
                done = max(now + 1_000, max(free.values()) + 2_000)
                calls.append((now, done, 1, -1))
                now = done
            now += length * 100
        marks.append(now)
    start, end, name, correlation = np.array(calls, np.int64).T
    begin, finish, stream_of, launched = np.array(sorted(work), np.int64).T
    return Trace(
        source="a program",
        names=("cudaLaunchKernel", "cudaDeviceSynchronize", "kernel", "Optimizer.step"),
        threads=(Thread(1, 1),),
        device_names=("NVIDIA H200",),
        calls=HostCalls.build(
            {"start_ns": start, "end_ns": end, "name": name, "thread": start * 0, "correlation": correlation}
        ),
        device=DeviceWork.build(
            {
                "start_ns": begin,
                "end_ns": finish,
                "name": begin * 0 + 2,
                "device": begin * 0,
                "stream": stream_of,
                "correlation": launched,
            }
        ),
        ranges=Ranges.build(
            {"start_ns": marks, "end_ns": marks, "kind": [RangeKind.OPTIMIZER] * steps, "name": [3] * steps,
             "thread": [0] * steps}
        ),
    )  # fmt: skip


@given(programs)
def test_any_run_is_replayed_as_it_was(program: Program) -> None:
    measures = Measures(run(program))
    replay = measures.replay
    assert replay.graph.broken == 0
    assert replay.unchanged.tolist() == replay.graph.observed_ns.tolist()
    assert replay.off == 0.0


@given(programs, st.data())
def test_taking_something_out_never_makes_steps_longer(program: Program, data: st.DataObject) -> None:
    measures = Measures(run(program))
    trace, replay = measures.trace, measures.replay
    ends = sorted(data.draw(st.lists(st.integers(0, int(trace.calls.end_ns.max())), min_size=2, max_size=8)))
    host = Intervals.of(ends[:-1:2], ends[1::2])
    waits = np.array(data.draw(st.lists(st.booleans(), min_size=len(trace.calls), max_size=len(trace.calls))))
    some = Cut(host=host, waits=waits)
    more = Cut(host=host, waits=np.ones(len(trace.calls), np.bool_), scale=np.full(len(trace.device), 0.5))
    assert replay.step_ns(more) <= replay.step_ns(some) <= replay.step_ns()


def test_a_cut_does_not_move_where_the_first_counted_step_begins() -> None:
    """Work launched before that step, on a stream beside, ends after the host has come to it."""
    measures = Measures(run([("launch", 7), ("beside", 4), ("work", 1), ("work", 1)]))
    begin = int(measures.steps.host_start_ns[0])
    assert measures.replay.step_ns(Cut(host=Intervals.of([0], [begin + 1]))) == measures.replay.step_ns()


@given(programs)
def test_without_any_host_time_the_device_still_has_its_work(program: Program) -> None:
    measures = Measures(run(program))
    everything = Cut(host=Intervals.of([0], [1 << 60]), waits=np.ones(len(measures.trace.calls), np.bool_))
    for stream in (7, 20):
        mine = measures.rows_within_steps(measures.trace.device.stream == stream)
        left = measures.replay.step_ns(everything) * measures.step_count
        busy = measures.trace.device.where(mine)
        length = busy.end_ns - busy.start_ns
        # A step may end with work of the other stream: what this one does around that lies on either side of its end.
        around = 2 * int(length.max(initial=0))
        assert left >= int(length.sum()) - around


@pytest.mark.parametrize("name", ["h200_expert_gpt", "h200_naive_gpt"])
def test_our_recordings_are_replayed_within_two_percent(name: str) -> None:
    measures = Measures(open_traces([SAMPLES / name])[0])
    assert measures.replay.off < 0.02


def test_reading_back_norms_of_gradients_costs_what_their_waits_do() -> None:
    measures = Measures(open_traces([SAMPLES / "h200_naive_gpt"])[0])
    claims = measures.idle["sync"] | measures.issue_gaps
    per_step = without_waiting_ns(measures, claims - measures.pageable_waits) / measures.step_count
    assert per_step == pytest.approx(5.1 * MS, rel=0.35)  # as measured; with what the profiler cost the host, 8.3 ms


@pytest.mark.skipif(not RESNET.is_dir(), reason="no collection of public traces lies beside the repository")
def test_a_loader_without_workers_costs_what_workers_gave_back() -> None:
    without, with_workers = (
        Measures(open_traces([RESNET / f"resnet50_autograd_api_num_workers_{count}" / "worker0.pt.trace.json.gz"])[0])
        for count in (0, 4)
    )
    assert without.replay.off < 0.02
    predicted = recoverable_ns(without, without.idle["input"]) / without.step_count
    saved = without.replay.base_ns / without.step_count - with_workers.replay.base_ns / with_workers.step_count
    assert predicted == pytest.approx(saved, rel=0.1)


def test_a_chain_that_is_fused_is_launched_once() -> None:
    """A host that takes as long for its launches as the device for its work gains nothing by shorter kernels alone."""
    measures = Measures(
        drawn(
            """
            host: aaalnnnlrrrlxxxl.
            gpu :    bbbbnnnnrrrrxxxx
            step:                    |
            """,
            repeat=4,
            ops={"a": "aten::mm", "n": "aten::batch_norm", "r": "aten::relu", "x": "aten::add"},
            kernels={"b": "gemm", "n": "batch_norm", "r": "relu", "x": "add"},
        )
    )
    chains = [np.arange(1, 4) + 4 * step for step in range(4)]
    assert measures.replay.saved_ns(sped_up(measures, np.concatenate(chains), 1 / 3)) == 0
    saved_ns = measures.replay.saved_ns(fused(measures, chains, [1 / 3] * 4))
    assert saved_ns == measures.step_count * 8 * MS
