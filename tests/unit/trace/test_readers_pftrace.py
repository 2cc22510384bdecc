"""Perfetto's protobuf as rocprofv3 writes it, encoded here by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.errors import NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.io.protobuf_wire import Malformed, fields
from diagnose.trace.schema import MISSING, CopyDirection


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def packet(*parts: bytes, sequence: int = 2) -> bytes:
    return field(1, b"".join(parts) + field(10, sequence))


CLEARED = field(13, 1)


def interned(kind: int, **names: int) -> bytes:
    """Categories (1), event names (2) or annotation names (3), each by its number."""
    return b"".join(field(kind, field(1, number) + field(2, name)) for name, number in names.items())


def begin(category: int, name: int, **annotations: int | str) -> bytes:
    parts = [field(9, 1), field(3, category), field(10, name)]
    for key, value in annotations.items():
        parts.append(field(4, field(10, key) + (field(3, value) if isinstance(value, int) else field(6, value))))
    return field(11, b"".join(parts))


END = packet(field(11, field(9, 2)))
PROCESS = packet(field(60, field(1, 77) + field(3, field(1, 908) + field(2, "./train --token=SECRET"))))
NAMES = packet(
    CLEARED,
    field(
        12,
        interned(1, hip_api=1, kernel_dispatch=2, memory_copy=3, marker_api=4)
        + interned(2, hipLaunchKernel=1, **{"gemm.kd": 2, "MEMORY_COPY_HOST_TO_DEVICE": 3, "ProfilerStep#1": 4}),
    ),
)
FIRST = 131542961211562


def events() -> bytes:
    times = {"begin_ns": FIRST, "end_ns": FIRST + 11440, "corr_id": 575}
    return b"".join(
        [
            packet(begin(1, 1, begin_ns=100, end_ns=200, tid=909, corr_id=575)),
            END,
            packet(begin(2, 2, **times, agent="Agent-4", queue=1, stream_ID=6)),
            END,
            packet(begin(3, 3, begin_ns=300, end_ns=400, dst_agent="Agent-4", src_agent="Agent-0", copy_bytes=64)),
            packet(begin(4, 4, begin_ns=50, end_ns=900, tid=909)),
        ]
    )


def opened(path: Path, data: bytes) -> list[Trace]:
    path.write_bytes(data)
    return open_traces([path])


def test_kernels_copies_calls_and_ranges_are_read_from_their_annotations(tmp_path: Path) -> None:
    (trace,) = opened(tmp_path / "908_results.pftrace", NAMES + PROCESS + events())
    device = trace.device
    assert [trace.names[number] for number in device.name] == ["MEMORY_COPY_HOST_TO_DEVICE", "gemm"]
    assert device.start_ns.tolist() == [300, FIRST]
    assert device.end_ns.tolist() == [400, FIRST + 11440]
    assert device.device.tolist() == [4, 4]
    assert device.stream.tolist() == [MISSING, 6]
    assert device.correlation.tolist() == [MISSING, 575]
    assert device.size_bytes.tolist() == [64, MISSING]
    assert device.direction[0] == CopyDirection.HOST_TO_DEVICE
    assert trace.calls.correlation.tolist() == [575]
    assert [trace.names[number] for number in trace.ranges.name] == ["ProfilerStep#1"]
    assert [(thread.pid, thread.tid) for thread in trace.threads] == [(908, 909)]
    assert trace.warnings == ()
    assert "SECRET" not in repr(trace)


def test_names_belong_to_their_sequence_and_are_forgotten_when_it_says_so(tmp_path: Path) -> None:
    other = packet(CLEARED, field(12, interned(1, hip_api=1) + interned(2, hipFree=1)), sequence=3)
    again = packet(CLEARED, field(12, interned(1, hip_api=1) + interned(2, hipMalloc=1)))
    one = {"end_ns": 200, "tid": 9, "corr_id": 1}
    data = NAMES + other + packet(begin(1, 1, begin_ns=10, **one)) + packet(begin(1, 1, begin_ns=20, **one), sequence=3)
    (trace,) = opened(tmp_path / "x.pftrace", data + again + packet(begin(1, 1, begin_ns=30, **one)))
    assert [trace.names[number] for number in trace.calls.name] == ["hipLaunchKernel", "hipFree", "hipMalloc"]


def test_a_file_without_events_is_said_to_be_an_empty_run(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match=r"without any event \(2 packets\): the run recorded nothing"):
        opened(tmp_path / "empty.pftrace", NAMES + PROCESS)


def test_a_trace_of_another_program_is_said_to_be_one(tmp_path: Path) -> None:
    names = packet(CLEARED, field(12, interned(1, sched=1)))
    with pytest.raises(NotATrace, match="not of rocprofv3"):
        opened(tmp_path / "android.pftrace", names + packet(begin(1, 1)))


def test_a_file_that_ends_in_the_middle_gives_what_came_before(tmp_path: Path) -> None:
    (trace,) = opened(tmp_path / "cut.pftrace", (NAMES + PROCESS + events())[:-10])
    assert (len(trace.device), len(trace.ranges)) == (2, 0)
    assert any("ends in the middle" in warning for warning in trace.warnings)


def test_a_packet_that_makes_no_sense_is_counted(tmp_path: Path) -> None:
    broken = field(1, field(10, 2) + field(11, b"\x0b\x0b"))
    (trace,) = opened(tmp_path / "broken.pftrace", NAMES + broken + events())
    assert len(trace.device) == 2
    assert any("1 packets make no sense" in warning for warning in trace.warnings)


def test_the_protobuf_of_jax_is_refused(tmp_path: Path) -> None:
    plane = field(1, field(1, 1) + field(2, "/device:GPU:0") + field(3, field(2, "XLA Ops") + field(10, "x")))
    with pytest.raises(NotATrace, match="XPlane"):
        opened(tmp_path / "host.xplane.pb", plane)


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x0a" + b"\xff" * 12, b"\x0b", b"\x09\x01"])
def test_what_is_no_message_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(fields(data, 0, len(data)))
