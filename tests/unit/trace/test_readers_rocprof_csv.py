"""CSVs of rocprof, rocprofv2 and rocprofv3: whatever the generation calls its columns, they mean the same."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from diagnose.errors import NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import MISSING, CopyDirection, Int32, RangeKind, WorkKind

API = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
COPIES = (
    '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n'
)


def kernel(name: str, begin: int, end: int, correlation: int = 1, agent: str = "Agent 4", stream: int = 3) -> str:
    return (
        f'"KERNEL_DISPATCH","{agent}",1,{stream},908,1,10,"{name}",{correlation},{begin},{end},'
        "0,0,8,0,16,64,1,1,1024,1,1\n"
    )


def call(domain: str, name: str, begin: int, end: int, correlation: int = 1, tid: int = 908, pid: int = 908) -> str:
    return f'"{domain}","{name}",{pid},{tid},{correlation},{begin},{end}\n'


def opened(tmp_path: Path, **files: str) -> list[Trace]:
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return open_traces([tmp_path])


def names_of(trace: Trace, column: Int32) -> list[str]:
    return [trace.names[number] for number in column]


def test_the_files_of_a_run_are_one_recording_joined_by_correlation(tmp_path: Path) -> None:
    host = tmp_path / "out" / "myhost"
    host.mkdir(parents=True)
    (host / "908_kernel_trace.csv").write_text(
        KERNELS + kernel("gemm(float*, int)", 1550151853029637, 1550151853042437)
    )
    (host / "908_hip_api_trace.csv").write_text(
        API + call("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 1550151853000001, 1550151853010001)
    )
    (host / "908_memory_copy_trace.csv").write_text(
        COPIES
        + '"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",3,"Agent 4","Agent 0",2,1550151853050000,1550151853060000\n'
    )
    (host / "908_agent_info.csv").write_text(
        '"Node_Id","Logical_Node_Id","Agent_Type","Gpu_Id","Name","Vendor_Name","Product_Name"\n'
        '0,0,"CPU",0,"EPYC","CPU","AMD EPYC"\n4,4,"GPU",9,"gfx942","AMD","AMD Instinct MI300X"\n'
    )
    (trace,) = open_traces([tmp_path / "out"])
    assert trace.device.start_ns.tolist() == [1550151853029637, 1550151853050000]
    assert trace.device.end_ns.tolist() == [1550151853042437, 1550151853060000]
    assert trace.device.kind.tolist() == [WorkKind.KERNEL, WorkKind.COPY]
    assert trace.device.direction.tolist() == [CopyDirection.UNKNOWN, CopyDirection.DEVICE_TO_HOST]
    assert trace.device.size_bytes.tolist() == [MISSING, MISSING]
    assert trace.device.device.tolist() == [0, 0]
    assert trace.device.stream.tolist() == [3, 3]
    assert trace.device.correlation[0] == trace.calls.correlation[0] == 1
    assert names_of(trace, trace.calls.name) == ["hipLaunchKernel"]
    assert [(thread.pid, thread.tid) for thread in trace.threads] == [(908, 908)]
    assert trace.device_names == ("AMD Instinct MI300X",)
    assert trace.facts.device_name == "AMD Instinct MI300X"
    assert trace.rank is None
    assert trace.warnings == ()


def test_files_that_are_named_one_by_one_belong_together_too(tmp_path: Path) -> None:
    paths = [tmp_path / "7_kernel_trace.csv", tmp_path / "7_hip_api_trace.csv"]
    paths[0].write_text(KERNELS + kernel("gemm", 100, 200))
    paths[1].write_text(API + call("HIP_RUNTIME_API", "hipLaunchKernel", 10, 20))
    (trace,) = open_traces(paths)
    assert (len(trace.device), len(trace.calls)) == (1, 1)


def test_several_processes_are_ranks_in_the_order_of_their_ids(tmp_path: Path) -> None:
    traces = opened(
        tmp_path,
        **{
            "1000_kernel_trace": KERNELS + kernel("late", 300, 400),
            "999_kernel_trace": KERNELS + kernel("early", 100, 200),
        },
    )
    assert [(trace.rank, trace.names) for trace in traces] == [(0, ("early",)), (1, ("late",))]
    assert "2 processes are taken for ranks in the order of their ids (999, 1000)" in traces[0].warnings[0]


def test_processes_of_one_file_are_told_apart_by_their_guid(tmp_path: Path) -> None:
    with_guid = "\n".join(
        [
            '"Guid",' + API.strip(),
            '"aa",' + call("HIP_RUNTIME_API_EXT", "hipMalloc", 10, 20, pid=137).strip(),
            '"bb",' + call("HIP_RUNTIME_API_EXT", "hipMalloc", 10, 20, pid=138).strip(),
            "",
        ]
    )
    kernels = "\n".join(
        ['"Guid",' + KERNELS.strip(), '"bb",' + kernel("b", 30, 40).strip(), '"aa",' + kernel("a", 30, 40).strip(), ""]
    )
    traces = opened(tmp_path, out_hip_api_trace=with_guid, out_kernel_trace=kernels)
    assert [(trace.rank, names_of(trace, trace.device.name)) for trace in traces] == [(0, ["a"]), (1, ["b"])]


@pytest.mark.parametrize(
    "text",
    [
        # rocprof 1
        '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr","arch_vgpr",'
        '"accum_vgpr","sgpr","wave_size","sig","obj","DispatchNs","BeginNs","EndNs","CompleteNs","DurationNs"\n'
        '0,"gemm(int) [clone .kd]",2,5,0,908,908,256,256,0,0,16,0,128,32,"0x0","0x709f0b65d740",90,100,200,210,100\n',
        # the same without its header
        '0,"gemm(int) [clone .kd]",2,5,0,908,908,256,256,0,0,16,0,128,32,"0x0","0x709f0b65d740",90,100,200,210,100\n',
        # rocprofv2
        "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
        "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n"
        '1,2,5,908,908,256,256,0,0,16,0,128,64,"gemm(int).kd",100,200,0\n',
        # rocprofv3 of ROCm 6.2
        '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp",'
        '"Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
        '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
        '"KERNEL_DISPATCH",2,5,15,"gemm(int)",0,100,200,0,0,4,4,1,1024,1024,1\n',
        # of 6.3
        '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp"\n"KERNEL_DISPATCH",2,5,69,1,16,"gemm(int)",1451,100,200\n',
        # of 6.4 and later, whose streams are all 0 where HIP was not traced: the queue stands in
        KERNELS + kernel("gemm(int)", 100, 200, agent="Agent 2", stream=0).replace('"Agent 2",1', '"Agent 2",5'),
        # of the converter of rocpd, which spells some columns differently
        '"Guid","Kind","Agent_Id","Queue_Id","Stream_Id","Kernel_Name","Start_Timestamp","End_Timestamp",'
        '"Lds_Block_Size","Vgpr_Count"\n"0000ddb5","KERNEL_DISPATCH","Agent 2",5,0,"gemm(int)",100,200,0,8\n',
    ],
    ids=["v1", "v1 headerless", "v2", "6.2", "6.3", "6.4", "rocpd"],
)
def test_every_generation_says_the_same(text: str, tmp_path: Path) -> None:
    (trace,) = opened(tmp_path, results=text)
    device = trace.device
    assert names_of(trace, device.name) == ["gemm(int)"]
    assert (device.start_ns[0], device.end_ns[0], device.device[0], device.stream[0]) == (100, 200, 2, 5)
    assert trace.device_names == ()
    assert trace.warnings == ()


def test_roctx_is_ranges_and_hsa_is_calls(tmp_path: Path) -> None:
    (trace,) = opened(
        tmp_path,
        run_marker_api_trace=API
        + call("MARKER_CORE_API", "ProfilerStep#3", 100, 200)
        + call("MARKER_CORE_API", "warm-up", 10, 10),
        run_hsa_api_trace=API + call("HSA_CORE_API", "hsa_agent_get_info", 50, 60),
    )
    assert names_of(trace, trace.ranges.name) == ["warm-up", "ProfilerStep#3"]
    assert trace.ranges.kind.tolist() == [RangeKind.USER, RangeKind.STEP]
    assert names_of(trace, trace.calls.name) == ["hsa_agent_get_info"]


def test_rccl_says_what_a_kernel_communicates_whatever_its_name(tmp_path: Path) -> None:
    (trace,) = opened(
        tmp_path,
        run_rccl_api_trace=API
        + call("RCCL_API", "ncclAllReduce", 100, 200, correlation=50)
        + call("RCCL_API", "ncclGroupStart", 300, 301, correlation=51)
        + call("RCCL_API", "ncclSend", 310, 311, correlation=52)
        + call("RCCL_API", "ncclRecv", 320, 321, correlation=53)
        + call("RCCL_API", "ncclGroupEnd", 330, 400, correlation=54)
        + call("RCCL_API", "ncclCommGetAsyncError", 410, 411, correlation=55),
        run_hip_api_trace=API
        + call("HIP_RUNTIME_API", "hipExtLaunchKernel", 150, 160, correlation=60)
        + call("HIP_RUNTIME_API", "hipExtLaunchKernel", 350, 360, correlation=61)
        + call("HIP_RUNTIME_API", "hipLaunchKernel", 150, 160, correlation=62, tid=909)
        + call("HIP_RUNTIME_API", "hipMemsetAsync", 165, 166, correlation=63)
        + call("HIP_RUNTIME_API", "hipLaunchKernel", 500, 510, correlation=64),
        run_kernel_trace=KERNELS
        + kernel("ncclDevKernel_Generic_4(void)", 1000, 1100, correlation=60)
        + kernel("ncclDevKernel_Generic_4(void)", 1200, 1300, correlation=61)
        + kernel("gemm", 1300, 1400, correlation=62)
        + kernel("__amd_rocclr_fillBufferAligned.kd", 1400, 1500, correlation=63)
        + kernel("ncclDevKernel_Generic_4(void)", 1600, 1700, correlation=64)
        + kernel("ncclDevKernel_Generic_4(void)", 1800, 1900, correlation=50),
    )
    kinds = [trace.collectives[row].kind if row >= 0 else None for row in trace.device.collective.tolist()]
    assert kinds == ["all_reduce", "send_recv", None, None, None, "all_reduce"]
    assert names_of(trace, trace.ranges.name) == ["ncclAllReduce", "ncclSend", "ncclRecv"]
    assert set(trace.ranges.kind.tolist()) == {RangeKind.COLLECTIVE}
    assert "ncclCommGetAsyncError" in names_of(trace, trace.calls.name)


def test_kernels_beside_hardware_counters_are_read_with_a_warning(tmp_path: Path) -> None:
    text = "Index,KernelName,gpu-id,BeginNs,EndNs,SQ_WAVES,GRBM_COUNT\n0,gemm.kd,2,100,200,5,6\n"
    (trace,) = opened(tmp_path, pmc=text)
    assert len(trace.device) == 1
    assert "hardware counters were recorded too (SQ_WAVES, GRBM_COUNT" in trace.warnings[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"k",1,2,2,100\n', "statistics of rocprof"),
        ('"Dispatch_Id","Counter_Name","Counter_Value"\n1,"SQ_WAVES",4\n', "hardware counters"),
        ('"Sample_Timestamp","Exec_Mask","Dispatch_Id"\n1,2,3\n', "program-counter samples"),
        (KERNELS, "no row that could be read"),
    ],
)
def test_what_is_no_timeline_says_what_it_is(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text(text)
    with pytest.raises(NotATrace, match=says):
        open_traces([path])


def test_tables_beside_a_run_that_are_no_timelines_are_left_out_and_counted(tmp_path: Path) -> None:
    (trace,) = opened(
        tmp_path,
        **{
            "9_kernel_trace": KERNELS + kernel("gemm", 100, 200),
            "9_counter_collection": '"Dispatch_Id","Counter_Name","Counter_Value"\n1,"SQ_WAVES",4\n',
        },
    )
    assert "1 other CSVs of rocprof are no timelines and were left out" in trace.warnings[0]


def test_rows_that_are_broken_are_counted(tmp_path: Path) -> None:
    rows = kernel("a", 100, 200) + kernel("b", 400, 300) + kernel("c", 10**30, 300) + '"KERNEL_DISPATCH","Agent 4"'
    (trace,) = opened(tmp_path, x_kernel_trace=KERNELS + rows)
    assert trace.device.end_ns.tolist() == [200, 400]
    said = " ".join(trace.warnings)
    assert "1 rows of x_kernel_trace.csv are cut off" in said
    assert "1 events end before they begin" in said
    assert "1 events have no time" in said


def test_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_trace.csv.gz"
    path.write_bytes(gzip.compress((KERNELS + kernel("gemm", 100, 200)).encode()))
    (trace,) = open_traces([path])
    assert len(trace.device) == 1
