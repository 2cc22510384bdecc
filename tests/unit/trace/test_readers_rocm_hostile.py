"""AMD's formats, mutated and cut: traces or one sentence, never another exception."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_readers_pftrace import NAMES, PROCESS, events
from test_readers_rocm_json import document, rocprof, times, tool
from test_readers_rocm_sqlite import ROCPROF, RPD, TRACED, database, rocpd
from test_readers_rocprof_csv import API, COPIES, KERNELS, call, kernel

from diagnose.errors import DiagnoseError, InputError
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.io import csv_rows
from diagnose.trace.readers.rocm import recording

PIECES = (
    b"",
    b'"',
    b"\\",
    b"\n",
    b",",
    b"\x00",
    b"\xff",
    b"[[[[",
    b"}",
    b"null",
    b"-1",
    b"1e999",
    b"9" * 30,
    b"\xff" * 9,
    b"\x0a\x80\x80",
)

SAMPLES = {
    "kernels.csv": (KERNELS + kernel("gemm", 100, 200) * 3).encode(),
    "calls.csv": (API + call("RCCL_API", "ncclAllReduce", 1, 2) + call("MARKER_CORE_API", "step", 3, 4)).encode(),
    "copies.csv": (COPIES + '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,"Agent 0","Agent 4",1,10,20\n').encode(),
    "results.json": document(tool()),
    "rocprof.json": rocprof(
        {"ph": "X", "name": "gemm", "pid": 8, "tid": 1, "ts": "1", "dur": "2", "args": times(1, 2)}
    ),
    "x.pftrace": NAMES + PROCESS + events(),
}

Cuts = list[tuple[int, int, bytes]]


def mutated(data: bytes, cuts: Cuts) -> bytes:
    for at, length, piece in cuts:
        place = at % (len(data) + 1)
        data = data[:place] + piece + data[place + length :]
    return data


def check(path: Path) -> None:
    try:
        traces = open_traces([path])
    except DiagnoseError as error:
        assert str(error).strip()
        assert "\n" not in str(error).removeprefix(str(path))
        return
    for trace in traces:
        for table in (trace.device, trace.calls, trace.ops, trace.ranges):
            assert (table.end_ns >= table.start_ns).all()
            assert ((table.name >= 0) & (table.name < len(trace.names))).all()


CUTS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 40), st.sampled_from(PIECES)), min_size=1, max_size=4)
RUNS = settings(max_examples=60)


@pytest.mark.parametrize("name", SAMPLES)
@RUNS
@given(cuts=CUTS)
def test_text_and_protobuf(name: str, cuts: Cuts, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(mutated(SAMPLES[name], cuts))
    check(path)


@pytest.mark.parametrize("script", [rocpd(), RPD, ROCPROF + TRACED], ids=["rocpd", "rpd", "rocprof"])
@RUNS
@given(cuts=CUTS)
def test_databases(script: str, cuts: Cuts, tmp_path: Path) -> None:
    path = tmp_path / "mutated.db"
    whole = tmp_path / "whole"
    if not whole.exists():
        database(whole, script)
    path.write_bytes(mutated(whole.read_bytes(), cuts))
    check(path)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_themselves_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(SAMPLES[name])
    assert open_traces([path])


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(b'{"rocprofiler-sdk-tool": [{"agents": ' + b"[" * 100_000)
    with pytest.raises(InputError, match="damaged"):
        open_traces([path])


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "LONGEST_LINE_BYTES", 1000)
    path = tmp_path / "endless_kernel_trace.csv"
    path.write_text(KERNELS + '"' + "x" * 5000)
    with pytest.raises(InputError, match="a line of more than 1000 bytes"):
        open_traces([path])


def test_more_processes_than_there_can_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_PROCESSES", 10)
    path = tmp_path / "x_hip_api_trace.csv"
    path.write_text(API + "".join(call("HIP_API", "hipMalloc", 1, 2, pid=pid) for pid in range(1, 20)))
    with pytest.raises(InputError, match="more than 10 processes"):
        open_traces([path])


def test_numbers_of_any_size_are_no_reason_to_fail(tmp_path: Path) -> None:
    whole = tool()
    for table in whole["buffer_records"].values():
        for row in table:
            row["thread_id"] = 2**63 - 1
            row["correlation_id"]["internal"] = -(2**63)
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [whole]}))
    check(path)
