"""What a sound recording never says: each violation in a small drawing, and none of them in its look-alikes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.steps.consistency import Violation, check
from diagnose.model import Confidence
from diagnose.plugins import Catalogue
from diagnose.rule import Claim, Rule
from diagnose.trace import Collective, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import DeviceWaits, DeviceWork, HostCalls, Ops, RangeKind, Ranges, WaitKind
from diagnose.units import NS_PER_S

ROOT = Path(__file__).resolve().parents[4] / "shared" / "traces"

SOUND = drawn(
    """
    host: ol  ol  ol  ol
    gpu :   kk  kk  kk  kk
    """
)


def violation(trace: Trace, name: str) -> Violation:
    (found,) = [one for one in check(trace) if one.name == name]
    return found


def device(trace: Trace, **columns: object) -> Trace:
    return replace(trace, device=replace(trace.device, **columns))  # type: ignore[arg-type]


def test_a_sound_recording_violates_nothing() -> None:
    assert check(SOUND) == ()
    assert check(Trace(source="nothing")) == ()


def test_graph_replays_and_work_launched_before_the_recording_are_sound() -> None:
    replay = drawn(
        """
        host: G   G
        gpu : kkk kkk
        """
    )
    assert check(replay) == ()
    early = drawn(
        """
        host:    l  l
        gpu : uu kk kk
        """
    )
    assert check(early) == ()


def test_a_kernel_before_its_launch_doubts_the_time_between() -> None:
    starts = SOUND.calls.start_ns.copy()
    starts[1] = SOUND.device.start_ns[1] + 400_000
    late = replace(SOUND, calls=replace(SOUND.calls, start_ns=starts, end_ns=np.maximum(starts, SOUND.calls.end_ns)))
    found = violation(late, "kernel-before-launch")
    assert (found.count, found.share) == (1, 0.25)
    assert found.doubt.total_ns == 400_000
    assert "400 µs" in found.sentence


def test_an_error_of_the_clocks_below_a_microsecond_is_none() -> None:
    starts = SOUND.device.start_ns + 900
    assert check(replace(SOUND, calls=replace(SOUND.calls, start_ns=starts, end_ns=starts + 5))) == ()


def test_work_without_a_launch_in_the_middle() -> None:
    correlation = SOUND.device.correlation.copy()
    correlation[2] = -1
    found = violation(device(SOUND, correlation=correlation), "work-without-launch")
    assert (found.count, found.share) == (1, 0.25)
    assert list(found.doubt) == [(8_000_000, 10_000_000)]


def test_a_launch_without_a_kernel_though_later_ones_have_theirs() -> None:
    dropped = replace(SOUND, device=SOUND.device.where([0, 1, 3]))
    found = violation(dropped, "launch-without-kernel")
    assert (found.count, found.share) == (1, 0.25)
    assert list(found.doubt) == [(8_000_000, 14_000_000)]


def test_a_recording_that_ended_before_its_last_kernel_is_sound() -> None:
    assert check(replace(SOUND, device=SOUND.device.where([0, 1, 2]))) == ()


def test_calls_with_one_id() -> None:
    twice = HostCalls.concatenate((SOUND.calls, SOUND.calls.where([1])))
    assert violation(replace(SOUND, calls=twice), "repeated-correlation").count == 1


def test_calls_with_one_id_and_work_that_takes_no_time() -> None:
    calls = replace(SOUND.calls, correlation=np.full_like(SOUND.calls.correlation, 7))
    instants = device(SOUND, end_ns=SOUND.device.start_ns, correlation=np.full_like(SOUND.device.correlation, 7))
    assert violation(replace(instants, calls=calls), "repeated-correlation").doubt.total_ns == 0


def test_a_kernel_that_is_there_twice() -> None:
    twice = DeviceWork.concatenate((SOUND.device, SOUND.device.where([1])))
    assert violation(replace(SOUND, device=twice), "several-kernels-of-a-launch").count == 1


def test_collectives_of_which_only_some_are_described() -> None:
    trace = drawn(
        """
        host: l l l l
        gpu :  c c c c
        """
    )
    assert check(trace) != ()  # the drawing's collectives have no size
    described = replace(trace, collectives=(Collective("all_reduce", size_bytes=4, group_size=2),))
    assert check(described) == ()
    collective = described.device.collective.copy()
    collective[2] = -1
    assert violation(device(described, collective=collective), "collective-without-description").count == 1
    collective[:] = -1
    assert check(device(described, collective=collective)) == ()  # profilers before 2023 describe none


def test_backward_operators_that_share_a_number() -> None:
    names = tuple(f"autograd::engine::evaluate_function: {kind}Backward0" for kind in ("Mm", "Add"))

    def backward(*kinds: int, thread: int = 1) -> Trace:
        count = len(kinds)
        times = np.arange(count) * 10
        columns = {"start_ns": times, "end_ns": times + 5, "name": kinds, "sequence": [7] * count}
        return Trace(source="", names=names, ops=Ops.build(columns | {"forward_thread": [thread] * count}))

    assert violation(backward(0, 1), "shared-sequence-number").count == 1
    assert check(backward(0, 0)) == ()


def waiting(kind: WaitKind, **columns: int) -> Trace:
    """The sound recording, whose second launch is an event's record, and a wait from 9 to 10 ms."""
    names = (*SOUND.names, "cudaEventRecord")
    name = SOUND.calls.name.copy()
    name[0] = len(SOUND.names)
    wait = {
        "start_ns": 9_000_000,
        "end_ns": 10_000_000,
        "kind": int(kind),
        "device": int(SOUND.device.device[0]),
    } | columns
    waits = DeviceWaits.build({column: [value] for column, value in wait.items()})
    return replace(SOUND, names=names, calls=replace(SOUND.calls, name=name), waits=waits)


def test_a_wait_for_an_event_of_which_nothing_is_known() -> None:
    found = violation(waiting(WaitKind.STREAM_FOR_EVENT), "wait-without-record")
    assert (found.count, found.share) == (1, 1.0)
    assert violation(waiting(WaitKind.HOST_FOR_EVENT), "wait-without-record").count == 1
    assert check(waiting(WaitKind.HOST_FOR_DEVICE)) == ()
    assert check(waiting(WaitKind.STREAM_FOR_EVENT, wait_on_stream=7)) == ()  # as profilers of 2023 wrote it
    assert check(waiting(WaitKind.STREAM_FOR_EVENT, start_ns=-5)) == ()  # perhaps recorded before the recording


def test_a_stream_that_waits_for_an_event_of_the_future() -> None:
    record = int(SOUND.calls.correlation[0])
    begin = int(SOUND.calls.start_ns[0])
    early = waiting(WaitKind.STREAM_FOR_EVENT, wait_on_correlation=record, start_ns=begin - 2_000)
    assert violation(early, "wait-for-later-record").count == 1
    for after in (-900, 0, 5_000):
        sound = waiting(WaitKind.STREAM_FOR_EVENT, wait_on_correlation=record, start_ns=begin + after)
        assert check(sound) == ()


def test_a_wait_for_a_stream_that_ends_before_its_work_does() -> None:
    stream, end = int(SOUND.device.stream[-1]), int(SOUND.device.end_ns[-1])
    begin = int(SOUND.device.start_ns[-1])
    early = waiting(WaitKind.HOST_FOR_STREAM, stream=stream, start_ns=begin, end_ns=end - 5_000)
    assert violation(early, "sync-before-end").count == 1
    assert check(waiting(WaitKind.HOST_FOR_STREAM, stream=stream, start_ns=begin, end_ns=end)) == ()
    assert check(waiting(WaitKind.HOST_FOR_STREAM, stream=stream + 1, start_ns=begin, end_ns=end - 5_000)) == ()


def test_a_hole_longer_than_all_the_rest() -> None:
    after = 3_600_000_000_000
    moved = replace(
        SOUND,
        device=DeviceWork.concatenate(
            (
                SOUND.device,
                replace(SOUND.device, start_ns=SOUND.device.start_ns + after, end_ns=SOUND.device.end_ns + after),
            )
        ),
    )
    found = violation(moved, "clock-jump")
    assert found.doubt.total_ns > 0.99 * after
    assert "longer than all the rest" in found.sentence


def collecting_garbage(*starts_ns: int) -> Ranges:
    ends_ns = [start + 1_000 for start in starts_ns]
    return Ranges.build({"start_ns": starts_ns, "end_ns": ends_ns, "kind": [RangeKind.GC] * len(starts_ns)})


def test_what_was_noted_before_the_recording_began_is_no_hole_in_it() -> None:
    """A live run notes garbage collections from its start on, and records everything else in a few steps."""
    begin = int(SOUND.device.start_ns.min())
    noted = collecting_garbage(begin - 31 * NS_PER_S, begin - 24 * NS_PER_S, begin + 1_000)
    assert check(replace(SOUND, ranges=noted)) == ()


def test_ranges_are_events_within_a_recording() -> None:
    after = 5 * NS_PER_S // 2
    later = replace(SOUND.device, start_ns=SOUND.device.start_ns + after, end_ns=SOUND.device.end_ns + after)
    apart = replace(SOUND, device=DeviceWork.concatenate((SOUND.device, later)))
    assert violation(apart, "clock-jump").count == 1
    begin = int(SOUND.device.start_ns.min())
    noted = collecting_garbage(begin + 4 * after // 10, begin + 7 * after // 10)
    assert not [one for one in check(replace(apart, ranges=noted)) if one.name == "clock-jump"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "pytorch__torchrec/examples/golden_training/log/resnet18/"
            "ip-172-31-16-248.us-east-2.compute.internal_85867.1698107929568240321.pt.trace.json.gz",
            {"kernel-before-launch"},
        ),
        (
            "facebookresearch__HolisticTraceAnalysis/tests/data/negative_queue_length_values_check/rank0.json.gz",
            {"work-without-launch"},
        ),
        ("pytorch__kineto/docs/traces/before_fix_trace.json", set()),
        ("pytorch__kineto/docs/traces/after_fix_trace.json", set()),
        ("facebookresearch__HolisticTraceAnalysis/tests/data/nccl_parser_config/nccl_data.json.gz", set()),
        ("NVIDIA__Megatron-LM/tp2/result/0/9c44bd29b3f0_1375.1724066820235157909.pt.trace.json.gz", set()),
    ],
    ids=["skewed clocks", "unseen launches", "no record seen", "known records", "sound", "sound too"],
)
def test_real_recordings(path: str, expected: set[str]) -> None:
    if not (ROOT / path).is_file():
        pytest.skip("this trace is not in the collection")
    (trace,) = open_traces([ROOT / path])
    found = check(trace)
    assert {one.name for one in found} == expected
    assert all(0 < one.share <= 1 and one.count > 0 and "\n" not in one.sentence for one in found)


def test_a_claim_to_doubtful_time_is_a_bound_and_the_user_is_told() -> None:
    late = drawn(
        """
        host: ol        ol        ol        ol
        gpu :   kk        kk        kk        kk
        step: |         |         |         |         |
        """
    )
    unseen = device(late, correlation=np.where(np.arange(4) % 2, -1, late.device.correlation))

    def whole(measures: Measures) -> list[Claim]:
        return [Claim("all idle time", measures.idle_of().total_ns, measures.idle_of())]

    rule = Rule("any-idle", whole)
    for trace, confidence in ((late, Confidence.MEASURED), (unseen, Confidence.BOUND)):
        (finding,) = diagnose([trace], Catalogue({"any-idle": rule}, {})).findings
        assert finding.confidence is confidence
    assert any("launch is not recorded" in warning for warning in diagnose([unseen], Catalogue({}, {})).warnings)


def test_a_job_says_which_ranks_are_missing() -> None:
    ranks = [replace(SOUND, rank=rank, world_size=4) for rank in (0, 2)]
    assert any(
        warning.startswith("ranks 1, 3 of 4 are missing") for warning in diagnose(ranks, Catalogue({}, {})).warnings
    )
    assert diagnose(ranks[:1], Catalogue({}, {})).warnings == diagnose([SOUND], Catalogue({}, {})).warnings


def test_a_wait_for_the_device_is_one_for_all_of_its_streams() -> None:
    begin, end = int(SOUND.device.start_ns[-1]), int(SOUND.device.end_ns.max())
    early = waiting(WaitKind.HOST_FOR_DEVICE, start_ns=begin, end_ns=end - 5_000)
    assert violation(early, "sync-before-end").count == 1
    assert check(waiting(WaitKind.HOST_FOR_DEVICE, start_ns=begin, end_ns=end)) == ()
    elsewhere = int(SOUND.device.device[0]) + 1
    assert check(waiting(WaitKind.HOST_FOR_DEVICE, device=elsewhere, start_ns=begin, end_ns=end - 5_000)) == ()
