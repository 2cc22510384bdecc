"""Classes and bytes of kernels against what Nsight Compute counted: what is matched with what, and what counts."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import kernel_classes

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
COUNTED_ADD = (
    "void at::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>, std::array<char *, 3>>(int, T2, T3)"
)
NUMBERS = 16 << 20
US = 1.0


def recording(path: Path) -> Path:
    """Three profiled steps, each with a sum of two tensors on 1320 blocks that takes 60 µs."""
    device = {"id": 0, "name": "NVIDIA H200", "numSms": 132}
    events = []
    for step in range(3):
        at = 1000 * US * step
        op = {
            "External id": step + 1,
            "Input Dims": [[NUMBERS], [NUMBERS], []],
            "Input type": ["float", "float", "Scalar"],
        }
        launch = {"External id": step + 1, "correlation": step + 1}
        kernel = launch | {"device": 0, "stream": 7, "grid": [1320, 1, 1], "block": [128, 1, 1], "blocks per SM": 10.0}
        kernel["warps per SM"] = 40.0
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 900 * US, {}),
            event("cpu_op", "aten::add", at + 100, 20 * US, op),
            event("cuda_runtime", "cudaLaunchKernel", at + 105, 5 * US, launch),
            event("kernel", ADD, at + 120, 60 * US, kernel),
        ]
    path.write_bytes(gzip.compress(json.dumps({"deviceProperties": [device], "traceEvents": events}).encode()))
    return path


def event(kind: str, name: str, start_us: float, length_us: float, args: Mapping[str, object]) -> dict[str, object]:
    """One event of torch.profiler's."""
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": length_us, "args": args}


def counters(path: Path, moved_bytes: int, memory_busy: float) -> Path:
    """Nsight Compute's table of two launches of that kernel, on its grid and on another one."""
    metrics = ("dram__bytes.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "gpu__time_duration.sum")
    header = ["ID", "Process ID", "Kernel Name", *metrics, "launch__grid_size"]
    units = ["", "", "", "byte", "%", "ns", ""]
    rows: list[list[object]] = [
        [launch, "7", COUNTED_ADD, moved_bytes, memory_busy, 61_000, blocks] for launch, blocks in enumerate((1320, 99))
    ]
    table: list[list[object]] = [[*header], [*units], *rows]
    lines = [",".join(f'"{cell}"' for cell in row) for row in table]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_kernel_is_compared_with_its_like(tmp_path: Path) -> None:
    moved = 3 * 4 * NUMBERS
    (one,) = kernel_classes.compared(recording(tmp_path / "trace.json.gz"), counters(tmp_path / "ncu.csv", moved, 84.0))
    assert (one.blocks, one.counted_class, one.predicted_class) == (1320, "memory", "memory")
    assert one.error == 0


def test_what_differs_counts_against_it(tmp_path: Path) -> None:
    trace, table = recording(tmp_path / "trace.json.gz"), counters(tmp_path / "ncu.csv", 6 * 4 * NUMBERS, 5.0)
    (one,) = kernel_classes.compared(trace, table)
    assert not one.is_right
    assert one.error == 0.5
    said = kernel_classes.table([one])
    assert "1 kernels, 0 in the right class (0%)" in said
    assert "bytes of those that move more than the cache holds: 1 known, 50.0% off in the median" in said
