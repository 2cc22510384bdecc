"""What stands beside Nsight's databases: reports that only nsys opens, and the tables of nsys stats and ncu."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from nsight_exports import NAMES, export, training

from diagnose.engine import diagnose
from diagnose.errors import InputError, NotATrace
from diagnose.plugins import load
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.nsight import nsight_report
from diagnose.trace.schema import CopyDirection, Memory, WorkKind

REPORT = b"\x00\x01\x02Tegra Profiler\x00\x03"


def put_nsys_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A program named nsys; its arguments are in `arguments`, where to write in `output`."""
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, shutil, sys, time\narguments = sys.argv[1:]\n"
        f"output = pathlib.Path(arguments[arguments.index('--output') + 1])\n{body}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_a_report_is_exported_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = export(tmp_path / "made.sqlite", NAMES, **training())
    put_nsys_on_the_path(tmp_path, monkeypatch, f"shutil.copy({str(made)!r}, output)")
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    (trace,) = open_traces([path])
    (same,) = open_traces([made])
    assert trace.source == str(path)
    assert trace.device.start_ns.tolist() == same.device.start_ns.tolist()
    assert trace.names == same.names


def test_without_nsys_a_report_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    with pytest.raises(NotATrace, match=r"nsys is not on the PATH.*nsys export --type sqlite run\.nsys-rep"):
        open_traces([path])


def test_a_failing_nsys_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_nsys_on_the_path(tmp_path, monkeypatch, "print('Unsupported\\nversion'); sys.exit(1)")
    path = tmp_path / "run.qdrep"
    path.write_bytes(REPORT)
    with pytest.raises(InputError, match=r"could not export it \(Unsupported version\)"):
        open_traces([path])


def test_a_hanging_nsys_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_nsys_on_the_path(tmp_path, monkeypatch, "time.sleep(600)")
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    with pytest.raises(InputError, match=r"did not export it within 0\.2 s"):
        nsight_report.read(path, seconds=0.2)


def test_an_export_without_work_is_refused_under_the_reports_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export(tmp_path / "made.sqlite", TARGET_INFO_GPU=[{"id": 0, "name": "G"}])
    put_nsys_on_the_path(tmp_path, monkeypatch, f"shutil.copy({str(made)!r}, output)")
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    with pytest.raises(NotATrace) as caught:
        open_traces([path])
    assert str(caught.value).startswith(f"{path}: is an export of Nsight Systems with no event")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.qdstrm", b"QDSTRM\0\x01", "unfinished Nsight Systems recording"),
        ("kernels.ncu-rep", b"NVR\0\x01", "ncu --import FILE --page raw --csv"),
        ("stats.txt", b"Generating SQLite file\n\n ** CUDA API Summary (cuda_api_sum):\n\n Time (%)", "console output"),
    ],
)
def test_other_files_of_nsight_say_what_to_do(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(NotATrace, match=words):
        open_traces([path])


GPU_TRACE = """\
Processing [run.sqlite] with [cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Strm,Name
1949099896,3552,142,,,,,0.038,10594.575,Pageable,Device,NVIDIA RTX A4500 (0),7,[CUDA memcpy Host-to-Device]
1949243354,512,155,,,,,0.000,500.000,Device,Pinned,NVIDIA RTX A4500 (0),7,[CUDA memcpy DtoH]
1959533099,71329,1759,336,1,1,256,,,,,NVIDIA RTX A4500 (0),13,"void gemm<float, 4>(float*)"
1964193548,2080,2373,,,,,0.011,5169.228,Device,,NVIDIA RTX A4500 (0),13,[CUDA memset]
soon,1,1,,,,,,,,,NVIDIA RTX A4500 (0),7,late

Time (%),Total Time (ns),Name
50.0,100,x
"""


def test_a_table_of_device_work_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(GPU_TRACE)
    (trace,) = open_traces([path])
    device = trace.device
    assert device.start_ns.tolist() == [1949099896, 1949243354, 1959533099, 1964193548]
    assert (device.end_ns - device.start_ns).tolist() == [3552, 512, 71329, 2080]
    assert device.kind.tolist() == [WorkKind.COPY, WorkKind.COPY, WorkKind.KERNEL, WorkKind.SET]
    assert device.direction.tolist()[:2] == [CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST]
    assert device.host_memory.tolist()[:2] == [Memory.PAGEABLE, Memory.PINNED]
    assert device.size_bytes.tolist() == [38_000, -1, -1, 11_000]
    assert device.stream.tolist() == [7, 7, 13, 13]
    assert device.correlation.tolist() == [142, 155, 1759, 2373]
    assert trace.names[device.name[2]] == "void gemm<float, 4>(float*)"
    assert trace.facts.device_name == "NVIDIA RTX A4500"
    assert trace.warnings == (f"{path}: 1 rows have no time that can be read and were left out",)


def test_other_units_of_time_become_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Start (us),Duration (us),Name\n1.5,0.25,a\n1e400,1,b\nnan,1,c\n2,-1,d\n")
    (trace,) = open_traces([path])
    assert (trace.device.start_ns.tolist(), trace.device.end_ns.tolist()) == ([1500], [1750])


RAW = """\
==PROF== Connected to process 1234
"ID","Process ID","Process Name","Host Name","Kernel Name","Device","CC","dram__bytes.sum","gpu__time_duration.sum"
"","","","","","","","byte","ns"
"0","1234","python","secret-host","gemm(float *)","0","9.0","2,000","1,500.5"
"1","1234","python","secret-host","relu","0","9.0","n/a","20"
"""
LONG = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","app","secret-host","gemm(float *)","SpeedOfLight","Memory Throughput","%","65,77"
"0","1","app","secret-host","gemm(float *)","SpeedOfLight","dram__bytes.sum","byte","27.595.520"
"0","1","app","secret-host","gemm(float *)","SpeedOfLight","","",""
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            RAW,
            [
                (0, "gemm(float *)", "dram__bytes.sum", "byte", 2000.0),
                (0, "gemm(float *)", "gpu__time_duration.sum", "ns", 1500.5),
                (1, "relu", "gpu__time_duration.sum", "ns", 20.0),
            ],
        ),
        (
            LONG,
            [
                (0, "gemm(float *)", "Memory Throughput", "%", 65.77),
                (0, "gemm(float *)", "dram__bytes.sum", "byte", 27595520.0),
            ],
        ),
    ],
    ids=["one row a launch", "one row a metric"],
)
def test_counters_of_kernels_are_read_in_both_forms(
    tmp_path: Path, text: str, expected: list[tuple[object, ...]]
) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    (trace,) = open_traces([path])
    table = trace.kernel_metrics
    columns = (table.launch, table.kernel, table.metric, table.unit, table.value)
    rows = [
        (launch, trace.names[kernel], trace.names[metric], trace.texts[unit], value)
        for launch, kernel, metric, unit, value in zip(*(column.tolist() for column in columns), strict=True)
    ]
    assert rows == expected
    assert "secret-host" not in repr(trace)
    assert not trace.has_device


def test_counters_beside_a_recording_belong_to_it(tmp_path: Path) -> None:
    export(tmp_path / "run.sqlite", NAMES, **training())
    (tmp_path / "ncu.csv").write_text(RAW)
    (trace,) = open_traces([tmp_path])
    assert len(trace.device) == 4
    assert {trace.names[name] for name in np.unique(trace.kernel_metrics.kernel)} == {"gemm(float *)", "relu"}


def test_counters_alone_are_no_timeline(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(RAW)
    found = diagnose(open_traces([path]), load())
    assert found.steps.count == 0
    assert found.findings == ()
    assert any("no step was found" in warning for warning in found.warnings)


def test_a_table_without_a_metric_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(RAW.splitlines()[1] + "\n")
    with pytest.raises(NotATrace, match="without any metric"):
        open_traces([path])
