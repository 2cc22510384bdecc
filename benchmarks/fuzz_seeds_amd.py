"""Small recordings of AMD's profilers: what `fuzz_seeds` makes files of."""

from __future__ import annotations

from typing import Any

ROCPD = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
INSERT INTO rocpd_string VALUES (1, 'HIP_RUNTIME_API'), (2, 'MARKER_CORE_API'), (3, 'RCCL_API'), (4,
    'KERNEL_DISPATCH'),
    (5, 'hipLaunchKernel'), (6, 'roctxRangePushA'), (7, 'ncclAllReduce'), (8, 'MEMORY_COPY_DEVICE_TO_HOST'),
    (9, 'MEMORY_COPY');
CREATE TABLE rocpd_info_process (id INTEGER PRIMARY KEY, pid INTEGER, command TEXT, environment TEXT);
INSERT INTO rocpd_info_process VALUES (71, 908, 'PRIVATE', 'PRIVATE');
CREATE TABLE rocpd_info_thread (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER);
INSERT INTO rocpd_info_thread VALUES (81, 71, 909);
CREATE TABLE rocpd_info_agent (id INTEGER PRIMARY KEY, type TEXT, type_index INTEGER, name TEXT, product_name TEXT);
INSERT INTO rocpd_info_agent VALUES (0, 'CPU', 0, 'EPYC', 'EPYC'), (2, 'GPU', 0, 'gfx942', 'MI300X');
CREATE TABLE rocpd_info_kernel_symbol (id INTEGER PRIMARY KEY, kernel_name TEXT, display_name TEXT);
INSERT INTO rocpd_info_kernel_symbol VALUES (8, 'gemm.kd', 'gemm');
CREATE TABLE rocpd_event (id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER, extdata TEXT);
INSERT INTO rocpd_event VALUES (1, 1, 41, '{}'), (2, 4, 41, '{}'), (3, 9, 42, '{}'),
    (6, 4, 44, '{}'), (4, 2, 43, '{"message": "ProfilerStep#2"}'), (5, 3, 44, '{}');
CREATE TABLE rocpd_arg (id INTEGER PRIMARY KEY, event_id INTEGER, name TEXT, value TEXT);
INSERT INTO rocpd_arg VALUES (1, 5, 'count', '1000'), (2, 5, 'datatype', 'ncclBfloat16');
CREATE TABLE rocpd_region (id INTEGER PRIMARY KEY, pid, tid, start, "end", name_id, event_id);
INSERT INTO rocpd_region VALUES (1, 71, 81, 100, 200, 5, 1), (2, 71, 81, 50, 900, 6, 4), (3, 71, 81, 300, 400, 7, 5);
CREATE TABLE rocpd_kernel_dispatch (id INTEGER PRIMARY KEY, pid, tid, agent_id, kernel_id, queue_id, stream_id,
    start, "end",
    event_id);
INSERT INTO rocpd_kernel_dispatch VALUES (1, 71, 81, 2, 8, 1, 2, 210, 400, 2), (2, 71, 81, 2, 8, 1, 2, 410, 500, 6);
CREATE TABLE rocpd_memory_copy (id INTEGER PRIMARY KEY, pid, tid, start, "end", name_id, dst_agent_id,
    src_agent_id, size,
    stream_id, event_id);
INSERT INTO rocpd_memory_copy VALUES (1, 71, 81, 700, 800, 8, 0, 2, 4096, 2, 3)
"""

RPD = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string VARCHAR);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId, queueId, start, "end", description_id, opType_id);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid, tid, start, "end", apiName_id, args_id);
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id, op_id);
CREATE TABLE rocpd_copyapi (api_ptr_id, size);
CREATE TABLE ext_autogradapi (api_ptr_id, autogradName_id, seq, sizes);
INSERT INTO rocpd_string VALUES (1, ''), (2, 'hipLaunchKernel'), (3, 'KernelExecution'), (4, 'gemm.kd'),
    (5, 'CopyHostToDevice'), (6, 'hipMemcpyAsync'), (7, 'UserMarker'), (8, 'ProfilerStep#1'), (9, 'aten::mm');
INSERT INTO rocpd_api VALUES (1, 908, 909, 100, 110, 2, 1), (2, 908, 909, 200, 210, 6, 1), (3, 908, 909, 10,
    20, 7, 8),
    (4, 908, 909, 90, 120, 7, 9);
INSERT INTO rocpd_op VALUES (1, 2, 0, 3489389203444239, 3489389203447647, 4, 3), (2, 2, 0, 300, 400, 1, 5);
INSERT INTO rocpd_api_ops VALUES (1, 1, 1), (2, 2, 2);
INSERT INTO rocpd_copyapi VALUES (2, 65536);
INSERT INTO ext_autogradapi VALUES (4, 9, '', '[[2, 3]]')
"""

ROCPROF = """
CREATE TABLE KERN ("Index", KernelName, "gpu-id", "queue-id", pid, tid, grd, BeginNs, EndNs);
INSERT INTO KERN VALUES (0, '"gemm [clone .kd]"', 8, 1, 908, 908, 256, 1915914098849134, 1915914099980017);
CREATE TABLE HIP (BeginNs, EndNs, pid, tid, Name, args, "Index");
CREATE TABLE rocTX (BeginNs, EndNs, pid, tid, Name);
CREATE TABLE OPS (BeginNs, EndNs, "dev-id", "queue-id", Name, pid, tid, "stream-id", "Index");
CREATE TABLE COPY (BeginNs, EndNs, "dev-id", "queue-id", Name, pid, tid, "stream-id", "Index");
INSERT INTO HIP VALUES (100, 110, 908, 909, 'hipLaunchKernel', '(PRIVATE)', 1), (200, 210, 908, 909,
    'hipMemcpy', '', 2);
INSERT INTO rocTX VALUES (90, 300, 908, 909, 'ProfilerStep#1');
INSERT INTO OPS VALUES (120, 150, 0, 3, 'gemm', 908, 909, 1, 1);
INSERT INTO COPY VALUES (220, 250, 0, 3, 'CopyDeviceToHost', 908, 909, 1, 2)
"""

ROCPROF_CSV = {
    "908_kernel_trace.csv": '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 4",1,3,908,"gemm(float*, int)",1,200,300,1024\n',
    "908_hip_api_trace.csv": '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp"\n"HIP_RUNTIME_API","hipLaunchKernel",908,908,1,100,110\n'
    '"MARKER_CORE_API","ProfilerStep#1",908,908,2,90,400\n"RCCL_API","ncclAllReduce",908,908,4,95,160\n',
    "908_memory_copy_trace.csv": '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id",'
    '"Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,"Agent 0","Agent 4",3,310,320\n',
    "908_agent_info.csv": '"Node_Id","Logical_Node_Id","Agent_Type","Gpu_Id","Name","Vendor_Name","Product_Name"\n'
    '4,4,"GPU",9,"gfx942","AMD","AMD Instinct MI300X"\n',
    "results.csv": '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","DispatchNs",'
    '"BeginNs",'
    '"EndNs","CompleteNs","DurationNs"\n0,"gemm [clone .kd]",2,0,0,908,909,512,64,100,110,210,220,100\n',
}  # fmt: skip

_INDEX = {"pid": "9", "Index": "11", "queue-id": "0"}
ROCPROF_JSON = {
    "traceEvents": [
        {},
        {"args": {"name": "GPU2"}, "ph": "M", "pid": 8, "name": "process_name", "sort_index": 8},
        {"args": {"name": "CPU HIP API"}, "ph": "M", "pid": 2, "name": "process_name", "sort_index": 2},
        {"args": {"name": "COPY"}, "ph": "M", "pid": 1, "name": "process_name", "sort_index": 1},
        {"args": {"name": "Markers and Ranges"}, "ph": "M", "pid": 3, "name": "process_name", "sort_index": 3},
        *(
            {"ph": "X", "name": name, "pid": pid, "tid": 1, "ts": "1", "dur": "2", "args": times}
            for name, pid, times in (
                ("gemm", 8, {"BeginNs": "1000", "EndNs": "3000", "dev-id": "2", "stream-id": "6", **_INDEX}),
                (
                    "CopyHostToDevice",
                    1,
                    {"BeginNs": "3000", "EndNs": "4000", "dev-id": "2", "stream-id": "6", **_INDEX},
                ),
                ("hipLaunchKernel", 2, {"BeginNs": "500", "EndNs": "600", "tid": "9", **_INDEX}),
                ("ProfilerStep#1", 3, {"BeginNs": "400", "EndNs": "5000", "pid": "9", "tid": "9"}),
            )
        ),
    ],
    "otherData": {"CMD": "PRIVATE"},
}


def rocprofv3() -> dict[str, Any]:
    def record(kind: int, operation: int, begin: int, end: int, number: int, **more: Any) -> dict[str, Any]:
        of = {"kind": kind, "operation": operation, "thread_id": 908, "start_timestamp": begin, "end_timestamp": end}
        return {**of, "correlation_id": {"internal": number, "external": 0}, **more}

    gpu, cpu = {"handle": 7002}, {"handle": 7000}
    dispatch = {"agent_id": gpu, "queue_id": {"handle": 16}, "kernel_id": 8, "grid_size": {"x": 512}}
    tool = {
        "metadata": {"pid": 908, "command": ["PRIVATE"]},
        "agents": [
            {"id": cpu, "type": 1, "product_name": "EPYC", "logical_node_type_id": 0},
            {"id": gpu, "type": 2, "product_name": "MI350X", "logical_node_type_id": 3,
             "mem_banks": [{"size_in_bytes": 9}]},
        ],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel"]},
                {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
                {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
                {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
            ],
            "marker_api": [{"key": 30, "value": "ProfilerStep#1"}],
        },
        "kernel_symbols": [{"kernel_id": 8, "kernel_name": "gemm.kd", "formatted_kernel_name": "gemm"}],
        "buffer_records": {
            "kernel_dispatch": [record(11, 2, 200, 300, 1, dispatch_info=dispatch, stream_id={"handle": 5})],
            "hip_api": [record(1, 1, 100, 110, 1)],
            "marker_api": [record(3, 1, 90, 400, 30)],
            "rccl_api": [record(4, 0, 95, 160, 40)],
            "memory_copy": [record(2, 1, 310, 320, 2, dst_agent_id=gpu, src_agent_id=cpu, bytes=4096)],
        },
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [tool]}


def perfetto() -> bytes:
    def varint(value: int) -> bytes:
        out = bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes((*out, value))

    def field(number: int, value: int | bytes) -> bytes:
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def packet(*parts: bytes) -> bytes:
        return field(1, b"".join(parts) + field(10, 2))

    def begin(category: int, name: int, **values: int | bytes) -> bytes:
        noted = [
            field(4, field(10, key.encode()) + (field(3, value) if isinstance(value, int) else field(6, value)))
            for key, value in values.items()
        ]
        return packet(field(11, field(9, 1) + field(3, category) + field(10, name) + b"".join(noted)))

    names = {
        1: (b"hip_api", b"kernel_dispatch", b"memory_copy", b"marker_api", b"rccl_api"),
        2: (b"hipLaunchKernel", b"gemm.kd", b"MEMORY_COPY_HOST_TO_DEVICE", b"ProfilerStep#1", b"ncclAllReduce"),
    }
    interned = [
        field(kind, field(1, number) + field(2, name))
        for kind, listed in names.items()
        for number, name in enumerate(listed, start=1)
    ]
    end = packet(field(11, field(9, 2)))
    return b"".join(
        [
            packet(field(13, 1), field(12, b"".join(interned))),
            packet(field(60, field(1, 77) + field(3, field(1, 908) + field(2, b"PRIVATE")))),
            begin(1, 1, begin_ns=100, end_ns=200, tid=909, corr_id=5) + end,
            begin(2, 2, begin_ns=210, end_ns=300, corr_id=5, agent=b"Agent-4", queue=1, stream_ID=6) + end,
            begin(3, 3, begin_ns=310, end_ns=400, dst_agent=b"Agent-4", src_agent=b"Agent-0", copy_bytes=64) + end,
            begin(4, 4, begin_ns=50, end_ns=900, tid=909) + end,
            begin(5, 5, begin_ns=90, end_ns=205, tid=909, corr_id=9) + end,
        ]
    )
