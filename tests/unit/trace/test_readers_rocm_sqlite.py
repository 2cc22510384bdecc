"""The databases of rocprofv3 (rocpd), of rocmProfileData (.rpd) and of rocprof 1."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import MISSING, CopyDirection, RangeKind, WorkKind

GUID = "00000a10_7bc0_7bc0_a1ef_6b94d43555c0"

ROCPD = """
CREATE TABLE rocpd_string{g} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_process{g} (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, command TEXT, environment TEXT);
CREATE TABLE rocpd_info_thread{g} (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, tid INTEGER);
CREATE TABLE rocpd_info_agent{g}
    (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, type_index INTEGER, name TEXT, product_name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{g} (id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT, display_name TEXT);
CREATE TABLE rocpd_event{g} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER, extdata TEXT);
CREATE TABLE rocpd_arg{g} (id INTEGER PRIMARY KEY, event_id INTEGER, name TEXT, value TEXT);
CREATE TABLE rocpd_region{g} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start BIGINT, "end" BIGINT,
    name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_track{g} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, name_id INTEGER);
CREATE TABLE rocpd_sample{g} (id INTEGER PRIMARY KEY, track_id INTEGER, timestamp BIGINT, event_id INTEGER);
CREATE TABLE rocpd_kernel_dispatch{g} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, agent_id INTEGER,
    kernel_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT, "end" BIGINT, grid_size_x INTEGER,
    event_id INTEGER);
CREATE TABLE rocpd_memory_copy{g} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start BIGINT, "end" BIGINT,
    name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, stream_id INTEGER, event_id INTEGER);

INSERT INTO rocpd_string{g} (id, string) VALUES (1, 'HIP_RUNTIME_API_EXT'), (2, 'MARKER_CORE_API'), (3, 'RCCL_API'),
    (4, 'KERNEL_DISPATCH'), (5, 'hipLaunchKernel'), (6, 'roctxRangePushA'), (7, 'ncclAllReduce'),
    (8, 'MEMORY_COPY_DEVICE_TO_HOST'), (9, 'MEMORY_COPY');
INSERT INTO rocpd_info_process{g} (id, pid, command, environment) VALUES (71, {pid}, 'run --token=SECRET', 'A=SECRET');
INSERT INTO rocpd_info_thread{g} (id, pid, tid) VALUES (81, 71, 909);
INSERT INTO rocpd_info_agent{g} (id, type, type_index, name, product_name) VALUES
    (0, 'CPU', 0, 'EPYC', 'AMD EPYC'), (2, 'GPU', 0, 'gfx942', 'AMD Instinct MI300X'),
    (3, 'GPU', 1, 'gfx942', 'AMD Instinct MI300X');
INSERT INTO rocpd_info_kernel_symbol{g} (id, kernel_name, display_name) VALUES (8, 'gemm.kd', 'gemm'), (9, 'n.kd', '');
INSERT INTO rocpd_event{g} (id, category_id, stack_id, extdata) VALUES (1, 1, 41, '{{}}'), (2, 4, 41, '{{}}'),
    (3, 9, 42, '{{}}'), (4, 2, 43, '{{"message": "ProfilerStep#2"}}'), (5, 3, 44, '{{}}'), (6, 4, 44, '{{}}'),
    (7, 2, 45, '{{"message": "mark"}}');
INSERT INTO rocpd_arg{g} (event_id, name, value) VALUES (5, 'count', '1000'), (5, 'datatype', 'ncclBfloat16');
INSERT INTO rocpd_region{g} (pid, tid, start, "end", name_id, event_id) VALUES
    (71, 81, 100, 200, 5, 1), (71, 81, 50, 900, 6, 4), (71, 81, 300, 400, 7, 5);
INSERT INTO rocpd_track{g} VALUES (1, 71, 81, 2);
INSERT INTO rocpd_sample{g} VALUES (1, 1, 60, 7);
INSERT INTO rocpd_kernel_dispatch{g} (pid, tid, agent_id, kernel_id, queue_id, stream_id, start, "end", event_id) VALUES
    (71, 81, 3, 8, 1, 2, 9007199254740993, 9007199254740999, 2), (71, 81, 3, 9, 1, 2, 500, 600, 6);
INSERT INTO rocpd_memory_copy{g}
    (pid, tid, start, "end", name_id, dst_agent_id, src_agent_id, size, stream_id, event_id)
    VALUES (71, 81, 700, 800, 8, 0, 3, 4096, 2, 3);
"""

RPD = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string VARCHAR);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, start INTEGER, "end" INTEGER,
    description_id INTEGER, opType_id INTEGER);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, "end" INTEGER,
    apiName_id INTEGER, args_id INTEGER);
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER, size INTEGER);
CREATE TABLE ext_autogradapi (api_ptr_id INTEGER, autogradName_id INTEGER, seq INTEGER, sizes TEXT);
INSERT INTO rocpd_string VALUES (1, ''), (2, 'hipLaunchKernel'), (3, 'KernelExecution'), (4, 'gemm.kd'),
    (5, 'CopyHostToDevice'), (6, 'hipMemcpyAsync'), (7, 'UserMarker'), (8, 'my range'), (9, 'aten::mm'),
    (10, 'Barrier');
INSERT INTO rocpd_api VALUES (4294967297, 908, 909, 100, 110, 2, 1), (4294967298, 908, 909, 200, 210, 6, 1),
    (3, 908, 909, 10, 20, 7, 8), (4, 908, 909, 90, 120, 7, 9);
INSERT INTO rocpd_op VALUES (1, 2, 0, 3489389203444239, 3489389203447647, 4, 3), (2, 2, 0, 300, 400, 1, 5),
    (3, 2, 0, 400, 500, 1, 10), (4, 2, 0, 600, 700, 4, 3);
INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (4294967297, 1), (4294967298, 2);
INSERT INTO rocpd_copyapi VALUES (4294967298, 65536);
INSERT INTO ext_autogradapi VALUES (4, 9, '', '[[2, 3]]');
"""

ROCPROF = """
CREATE TABLE KERN ("Index" INTEGER, KernelName TEXT, "gpu-id" INTEGER, "queue-id" INTEGER, pid INTEGER, tid INTEGER,
    grd INTEGER, BeginNs INTEGER, EndNs INTEGER);
INSERT INTO KERN VALUES (0, '"gemm [clone .kd]"', 8, 1, 908, 908, 256, 1915914098849134, 1915914099980017);
"""
TRACED = """
CREATE TABLE HIP (BeginNs INTEGER, EndNs INTEGER, pid INTEGER, tid INTEGER, Name TEXT, args TEXT, "Index" INTEGER);
CREATE TABLE HSA (BeginNs INTEGER, EndNs INTEGER, pid INTEGER, tid INTEGER, Name TEXT, args TEXT, "Index" INTEGER);
CREATE TABLE rocTX (BeginNs INTEGER, EndNs INTEGER, pid INTEGER, tid INTEGER, Name TEXT);
CREATE TABLE OPS (BeginNs INTEGER, EndNs INTEGER, "dev-id" INTEGER, "queue-id" INTEGER, Name TEXT, pid INTEGER,
    tid INTEGER, "stream-id" INTEGER, "Index" INTEGER);
CREATE TABLE COPY (BeginNs INTEGER, EndNs INTEGER, "dev-id" INTEGER, "queue-id" INTEGER, Name TEXT, pid INTEGER,
    tid INTEGER, "stream-id" INTEGER, "Index" INTEGER);
INSERT INTO HIP VALUES (100, 110, 908, 909, 'hipLaunchKernel', '(token SECRET)', 1),
    (200, 210, 908, 909, 'hipMemcpy', '', 2);
INSERT INTO HSA VALUES (105, 106, 908, 909, 'hsa_signal_create', '', 1);
INSERT INTO rocTX VALUES (90, 300, 908, 909, 'epoch 1');
INSERT INTO OPS VALUES (120, 150, 0, 3, 'gemm', 908, 909, 1, 1);
INSERT INTO COPY VALUES (220, 250, 0, 3, 'CopyDeviceToHost', 908, 909, 1, 2);
"""


def database(path: Path, *scripts: str) -> Path:
    with sqlite3.connect(path) as connection:
        for script in scripts:
            connection.executescript(script)
    connection.close()
    return path


def rocpd(guid: str = GUID, pid: int = 908, separator: str = "_") -> str:
    return ROCPD.format(g=separator + guid, pid=pid)


def names_of(trace: Trace, numbers: Iterable[int]) -> list[str]:
    return [trace.names[number] for number in numbers]


@pytest.mark.parametrize("separator", ["_", ""], ids=["with _", "without"])
def test_rocpd_is_read_from_its_tables(separator: str, tmp_path: Path) -> None:
    (trace,) = open_traces([database(tmp_path / "908_results.db", rocpd(separator=separator))])
    device = trace.device
    assert names_of(trace, device.name) == ["n", "MEMORY_COPY_DEVICE_TO_HOST", "gemm"]
    assert device.start_ns.tolist() == [500, 700, 9007199254740993]
    assert device.end_ns.tolist() == [600, 800, 9007199254740999]
    assert device.kind.tolist() == [WorkKind.KERNEL, WorkKind.COPY, WorkKind.KERNEL]
    assert device.device.tolist() == [1, 1, 1]
    assert device.stream.tolist() == [2, 2, 2]
    assert device.correlation.tolist() == [44, 42, 41]
    assert device.size_bytes.tolist() == [MISSING, 4096, MISSING]
    assert device.direction[1] == CopyDirection.DEVICE_TO_HOST
    assert names_of(trace, trace.calls.name) == ["hipLaunchKernel"]
    assert trace.calls.correlation.tolist() == [41]
    assert names_of(trace, trace.ranges.name) == ["ProfilerStep#2", "mark", "ncclAllReduce"]
    assert trace.ranges.kind.tolist() == [RangeKind.STEP, RangeKind.USER, RangeKind.COLLECTIVE]
    collective = trace.collectives[device.collective[0]]
    assert (collective.kind, collective.size_bytes, collective.dtype) == ("all_reduce", 2000, "bfloat16")
    assert device.collective.tolist()[1:] == [MISSING, MISSING]
    assert [(thread.pid, thread.tid) for thread in trace.threads] == [(908, 909)]
    assert trace.facts.device_name == "AMD Instinct MI300X"
    assert trace.warnings == ()


def test_the_environment_and_the_command_line_are_not_kept(tmp_path: Path) -> None:
    for name, script in (("a.db", rocpd()), ("b.db", ROCPROF + TRACED)):
        assert "SECRET" not in repr(open_traces([database(tmp_path / name, script)]))


def test_two_processes_merged_into_one_rocpd_are_ranks(tmp_path: Path) -> None:
    other = GUID.replace("a10", "b20")
    traces = open_traces([database(tmp_path / "merged.db", rocpd(pid=12), rocpd(other, pid=11))])
    assert [(trace.rank, trace.threads[0].pid) for trace in traces] == [(0, 11), (1, 12)]
    assert "2 processes are taken for ranks" in traces[0].warnings[0]


def test_rpd_joins_work_with_calls_and_knows_operators_from_markers(tmp_path: Path) -> None:
    (trace,) = open_traces([database(tmp_path / "trace.rpd", RPD)])
    device = trace.device
    assert names_of(trace, device.name) == ["CopyHostToDevice", "gemm", "gemm"]
    assert device.start_ns.tolist() == [300, 600, 3489389203444239]
    assert device.correlation.tolist() == [4294967298, MISSING, 4294967297]
    assert device.size_bytes.tolist() == [65536, MISSING, MISSING]
    assert device.device.tolist() == [2, 2, 2]
    assert names_of(trace, trace.calls.name) == ["hipLaunchKernel", "hipMemcpyAsync"]
    assert names_of(trace, trace.ranges.name) == ["my range"]
    assert names_of(trace, trace.ops.name) == ["aten::mm"]
    assert trace.texts[trace.ops.shapes[0]] == "[[2, 3]]"


def test_a_compressed_rpd_is_read(tmp_path: Path) -> None:
    plain = database(tmp_path / "trace", RPD)
    path = tmp_path / "trace.rpd.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    (trace,) = open_traces([path])
    assert len(trace.device) == 3


def test_rocprof_1_with_kernels_alone(tmp_path: Path) -> None:
    (trace,) = open_traces([database(tmp_path / "results.db", ROCPROF)])
    assert names_of(trace, trace.device.name) == ["gemm"]
    assert (trace.device.start_ns[0], trace.device.end_ns[0]) == (1915914098849134, 1915914099980017)
    assert (trace.device.device[0], trace.device.stream[0], trace.device.correlation[0]) == (8, 1, MISSING)


def test_rocprof_1_with_hip_traced_takes_each_kernel_once(tmp_path: Path) -> None:
    (trace,) = open_traces([database(tmp_path / "results.db", ROCPROF, TRACED)])
    device = trace.device
    assert names_of(trace, device.name) == ["gemm", "CopyDeviceToHost"]
    assert device.correlation.tolist() == [1, 2]
    by_name = dict(zip(names_of(trace, trace.calls.name), trace.calls.correlation.tolist(), strict=True))
    assert by_name["hipLaunchKernel"] == 1
    assert by_name["hsa_signal_create"] not in (1, 2)
    assert names_of(trace, trace.ranges.name) == ["epoch 1"]
    assert "hold the same kernels" in trace.warnings[0]


def test_a_run_of_rocprof_1_without_kernels_says_so(tmp_path: Path) -> None:
    path = database(tmp_path / "results.db", 'CREATE TABLE KERN ("Index" INTEGER, KernelName TEXT)')
    with pytest.raises(NotATrace, match="no kernel and no call was recorded"):
        open_traces([path])


HOSTILE = {
    "a table that is a view": "CREATE TABLE rocpd_api (id); CREATE VIEW rocpd_op AS WITH RECURSIVE endless(id) AS "
    "(SELECT 1 UNION ALL SELECT id + 1 FROM endless) SELECT id FROM endless;",
    "columns that are missing": "CREATE TABLE rocpd_op (id); CREATE TABLE rocpd_api (id);",
    "rocpd without its columns": f"CREATE TABLE rocpd_kernel_dispatch_{GUID} (id);"
    f"INSERT INTO rocpd_kernel_dispatch_{GUID} VALUES (1);",
    "a name that quotes": 'CREATE TABLE "rocpd_info_agent""; DROP TABLE x; --" (id);',
    "times that are text": ROCPROF + "UPDATE KERN SET BeginNs = 'soon', EndNs = x'00ff';",
    "times beyond reason": ROCPROF + f"UPDATE KERN SET BeginNs = {2**63 - 1}, EndNs = 1e300;",
    "a trigger": ROCPROF + "CREATE TRIGGER t AFTER UPDATE ON KERN BEGIN DELETE FROM KERN; END;",
    "an indexed expression": RPD + "CREATE INDEX i ON rocpd_op (abs(start));",
    "processes that are text": rocpd() + f"UPDATE rocpd_kernel_dispatch_{GUID} SET pid = 'one', agent_id = 'two';",
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_database_of_any_shape_is_read_or_refused_in_one_sentence(script: str, tmp_path: Path) -> None:
    path = database(tmp_path / "hostile.db", script)
    before = path.read_bytes()
    try:
        traces = open_traces([path])
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert all((trace.device.end_ns >= trace.device.start_ns).all() for trace in traces)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["hostile.db"]


def test_a_truncated_database_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = database(tmp_path / "whole.db", rocpd()).read_bytes()
    path = tmp_path / "cut.db"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        open_traces([path])
