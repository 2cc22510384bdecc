"""Real recordings of AMD's profilers, compared with a plain reading.

The recordings are no part of this repository; the tests are skipped where they are not beside it.
`test_public_recordings` opens all of them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import CopyDirection, WorkKind

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="no collection of public traces lies beside the repository")

LLAMA = TRACES / "JoursBleu__llama.cpp"
VIEWER = TRACES / "jimw567__rocprof-unified-viewer/tests/fixtures"
RPD = TRACES / "ROCm__rocmProfileData"


def needs(path: Path) -> Path:
    if not path.exists():
        pytest.skip("this recording is not in the collection")
    return path


def plain_name(name: str) -> str:
    return re.sub(r"( \[clone \.kd\]|\.kd)$", "", name.strip('"'))


Rows = Iterable[tuple[int, int, str]]


def summary(rows: Rows) -> dict[str, Any]:
    listed = list(rows)
    return {
        "rows": len(listed),
        "start": sum(start for start, _, _ in listed),
        "end": sum(end for _, end, _ in listed),
        "names": Counter(name for _, _, name in listed),
    }


def of_table(trace: Trace, table: Any, kind: WorkKind | None = None) -> dict[str, Any]:
    chosen = table if kind is None else table.where(table.kind == kind)
    names = [trace.names[number] for number in chosen.name]
    return summary(zip(chosen.start_ns.tolist(), chosen.end_ns.tolist(), names, strict=True))


@pytest.mark.parametrize(
    ("path", "name", "begin", "end"),
    [
        (LLAMA / "results.csv", "KernelName", "BeginNs", "EndNs"),
        (VIEWER / "prefill_kernel_trace.csv", "Kernel_Name", "Start_Timestamp", "End_Timestamp"),
        (
            TRACES / "ROCm__rocprofiler-sdk/source/docs/data/kernel_trace.blob-a39956ff.csv",  # ROCm 6.2
            "Kernel_Name",
            "Start_Timestamp",
            "End_Timestamp",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_kernels_of_a_csv_equal_a_plain_reading(path: Path, name: str, begin: str, end: str) -> None:
    with needs(path).open(newline="") as file:
        rows = [(int(row[begin]), int(row[end]), plain_name(row[name])) for row in csv.DictReader(file)]
    (trace,) = open_traces([path])
    assert of_table(trace, trace.device) == summary(rows)
    assert (trace.device.kind == WorkKind.KERNEL).all()


def test_the_csvs_of_a_run_are_one_recording_whose_kernels_know_their_launches() -> None:
    paths = [needs(VIEWER / "decode_kernel_trace.csv"), VIEWER / "decode_hip_api_trace.csv"]
    (trace,) = open_traces(paths)
    with paths[1].open(newline="") as file:
        calls = list(csv.DictReader(file))
    with paths[0].open(newline="") as file:
        kernels = list(csv.DictReader(file))
    called = {row["Correlation_Id"] for row in calls}
    linked = sum(1 for row in kernels if row["Correlation_Id"] in called)
    assert (len(trace.device), len(trace.calls)) == (len(kernels), len(calls)) == (144, 920)
    known = set(trace.calls.correlation.tolist())
    assert sum(1 for number in trace.device.correlation.tolist() if number in known) == linked > 0
    assert {thread.pid for thread in trace.threads} == {2684120}


def test_three_files_of_one_run_of_rocprof_say_the_same() -> None:
    traces = [open_traces([needs(LLAMA / name)])[0] for name in ("results.csv", "results.db", "results.json.gz")]
    tables = [of_table(trace, trace.device) for trace in traces]
    assert tables[0] == tables[1] == tables[2]
    assert [set(trace.device.device.tolist()) for trace in traces] == [{2}, {2}, {2}]


def test_rocpd_equals_its_own_view_of_kernels() -> None:
    path = needs(LLAMA / "R9700-Workstation-SH/32432_results.db")
    with sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True) as database:
        rows = database.execute('SELECT start, "end", name, stream_id FROM kernels').fetchall()
    (trace,) = open_traces([path])
    assert of_table(trace, trace.device) == summary(row[:3] for row in rows)
    assert Counter(trace.device.stream.tolist()) == Counter(row[3] for row in rows)
    assert trace.facts.device_name == "AMD Radeon AI PRO R9700"
    assert set(trace.device.device.tolist()) == {0}


@pytest.mark.parametrize(
    "name", ["raptor/tests/mytrace.rpd.gz", "examples/rocm-profile-data/results/matmul_result.rpd"]
)
def test_rpd_equals_its_own_views(name: str, tmp_path: Path) -> None:
    path = needs(RPD / name)
    plain = tmp_path / "trace.rpd"
    plain.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    with sqlite3.connect(plain) as database:
        work = database.execute('SELECT start, "end", description, opType FROM op').fetchall()
        copied = database.execute("SELECT sum(size) FROM copyop WHERE typeof(size) = 'integer'").fetchone()[0]
        calls = database.execute('SELECT start, "end", apiName FROM api WHERE apiName != "UserMarker"').fetchall()
        markers = database.execute("SELECT count(*) FROM api WHERE apiName = 'UserMarker'").fetchone()[0]
    (trace,) = open_traces([path])
    kernels = [row[:3] for row in work if row[3] in ("KernelExecution", "Task")]
    copies = [(start, end, kind) for start, end, _, kind in work if kind.startswith("Copy")]
    assert of_table(trace, trace.device, WorkKind.KERNEL) == summary(kernels)
    assert of_table(trace, trace.device, WorkKind.COPY) == summary(copies)
    assert of_table(trace, trace.calls) == summary(calls)
    assert len(trace.ops) + len(trace.ranges) == markers
    sizes = trace.device.size_bytes
    assert int(sizes[sizes > 0].sum()) == copied
    to_host = trace.device.direction == CopyDirection.DEVICE_TO_HOST
    assert int(to_host.sum()) == sum(1 for row in copies if row[2] == "CopyDeviceToHost")


def test_rocprofv3_json_equals_a_plain_reading() -> None:
    path = needs(TRACES / "AMD-AGI__TraceLens/tests/rocprof/908_results.json.gz")
    (tool,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    symbols = {one["kernel_id"]: one["formatted_kernel_name"] for one in tool["kernel_symbols"]}
    records = tool["buffer_records"]["kernel_dispatch"]
    rows = [
        (row["start_timestamp"], row["end_timestamp"], symbols[row["dispatch_info"]["kernel_id"]]) for row in records
    ]
    (trace,) = open_traces([path])
    assert of_table(trace, trace.device) == summary(rows)
    assert trace.facts.device_name == "AMD Instinct MI350X"
    assert trace.facts.device_memory_bytes == 309220868096
    assert len(trace.device_names) == 8
    assert set(trace.device.device.tolist()) == {0}
    assert Counter(trace.device.stream.tolist()) == Counter(row["stream_id"]["handle"] for row in records)


def test_a_perfetto_file_has_the_events_that_its_annotations_name() -> None:
    path = needs(TRACES / "D-W-Chiang__JACC.jl/faraday.ftpn.ornl.gov/3648722_results.pftrace")
    (trace,) = open_traces([path])
    # Counted once with a decoder of its own: 1,520 calls of HSA and 1,125 of HIP, 15 kernels launched by the latter.
    assert (len(trace.calls), len(trace.device)) == (2645, 15)
    called = dict(zip(trace.calls.correlation.tolist(), trace.calls.name.tolist(), strict=True))
    launches = Counter(trace.names[called[number]] for number in trace.device.correlation.tolist())
    assert launches == {"hipModuleLaunchKernel": 11, "hipMemcpyWithStream": 4}
    assert {thread.pid for thread in trace.threads} == {3648722}
    assert "traces/jacc" not in repr(trace)  # the command line


def test_a_cut_line_is_counted_and_the_rest_is_read() -> None:
    path = needs(TRACES / "_derived_malformed/rocprofv3_cut_line_kernel_trace.csv")
    whole = list(csv.reader(io.StringIO(path.read_text())))
    (trace,) = open_traces([path])
    assert len(trace.device) == sum(1 for row in whole[1:] if len(row) == len(whole[0]))
    assert any("1 rows" in warning and "cut off" in warning for warning in trace.warnings)
