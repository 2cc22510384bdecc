"""Nsight Systems' databases: what each table becomes, whatever of it is missing."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from nsight_exports import EPOCH_NS, NAMES, export, global_tid, training

from diagnose.engine import diagnose
from diagnose.errors import InputError, NotATrace
from diagnose.plugins import load
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.nsight import nsight_sqlite
from diagnose.trace.schema import CopyDirection, Memory, RangeKind, WorkKind

ON_DEVICE: dict[str, object] = {"deviceId": 0, "streamId": 7, "correlationId": 1, "globalPid": global_tid(100)}


def read(path: Path) -> Trace:
    (trace,) = open_traces([path])
    return trace


def names(trace: Trace, column: np.ndarray) -> list[str]:
    return [trace.names[name] for name in column]


def test_kernels_calls_and_steps_of_a_training_run(tmp_path: Path) -> None:
    trace = read(export(tmp_path / "run.sqlite", NAMES, **training(steps=3)))
    assert trace.device.start_ns.tolist() == [EPOCH_NS + t for t in (1_010_000, 2_010_000, 3_010_000)]
    assert names(trace, trace.device.name) == ["void gemm<float>(float*)"] * 3
    assert (trace.device.kind == WorkKind.KERNEL).all()
    assert names(trace, trace.calls.name) == ["cudaLaunchKernel"] * 3
    assert trace.calls.correlation.tolist() == trace.device.correlation.tolist() == [1, 2, 3]
    assert (trace.ranges.kind == RangeKind.STEP).all()
    assert [(thread.pid, thread.tid) for thread in trace.threads] == [(100, 100)]
    assert trace.window_ns == (EPOCH_NS + 1_000_000, EPOCH_NS + 3_950_000)
    assert trace.warnings == ()


def test_a_training_run_is_diagnosed_by_its_marks(tmp_path: Path) -> None:
    found = diagnose([read(export(tmp_path / "run.sqlite", NAMES, **training(steps=5)))], load())
    assert found.steps.count == 5
    assert found.steps.median_ns == 1_000_000
    assert found.steps.found_by == "nvtx"


def test_without_operators_a_stall_of_the_host_is_not_called_python(tmp_path: Path) -> None:
    tables = training(steps=6)
    short = [{**row, "end": int(str(row["start"])) + 50_000} for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"]]
    path = export(tmp_path / "run.sqlite", NAMES, **{**tables, "CUPTI_ACTIVITY_KIND_KERNEL": short})
    diagnosis = diagnose([read(path)], load())
    assert "python-stall" not in {finding.rule for finding in diagnosis.findings}
    (unknown,) = (one for one in diagnosis.cannot_tell if one.rule == "python-stall")
    assert "what the host does while the device idles for" in unknown.needs
    assert "--pytorch=autograd-nvtx" in unknown.needs


def test_a_compressed_database_is_read_too(tmp_path: Path) -> None:
    plain = export(tmp_path / "run.sqlite", NAMES, **training())
    squeezed = tmp_path / "run.sqlite.gz"
    squeezed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(squeezed).device.start_ns.tolist() == read(plain).device.start_ns.tolist()


@pytest.mark.parametrize("column", ["correlationId", "globalPid", "demangledName", "deviceId", "streamId"])
def test_any_column_of_kernels_may_be_missing(tmp_path: Path, column: str) -> None:
    tables = training()
    kernels = [{k: v for k, v in row.items() if k != column} for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"]]
    trace = read(export(tmp_path / "run.sqlite", NAMES, **{**tables, "CUPTI_ACTIVITY_KIND_KERNEL": kernels}))
    assert len(trace.device) == len(trace.calls) == 4


@pytest.mark.parametrize("table", list(training()))
def test_any_table_may_be_missing(tmp_path: Path, table: str) -> None:
    tables = {name: rows for name, rows in training().items() if name != table}
    trace = read(export(tmp_path / "run.sqlite", NAMES, **tables))
    assert trace.window_ns is not None


def test_without_strings_work_is_unnamed(tmp_path: Path) -> None:
    trace = read(export(tmp_path / "run.sqlite", (), **training()))
    assert set(names(trace, trace.device.name)) == {"(unnamed)"}


def test_copies_say_where_from_and_to(tmp_path: Path) -> None:
    kinds = [(1, 0, 2), (1, 1, 2), (2, 2, 1), (8, 2, 2), (10, 2, 2), (99, 1, 2), (99, 7, 7)]
    copies = [
        {
            "start": i,
            "end": i + 1,
            **ON_DEVICE,
            "bytes": 100 + i,
            "copyKind": kind,
            "srcKind": source,
            "dstKind": target,
        }
        for i, (kind, source, target) in enumerate(kinds, start=1)
    ]
    device = read(export(tmp_path / "run.sqlite", NAMES, CUPTI_ACTIVITY_KIND_MEMCPY=copies)).device
    assert [CopyDirection(one).name for one in device.direction] == [
        *("HOST_TO_DEVICE", "HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE", "PEER_TO_PEER", "HOST_TO_DEVICE"),
        "UNKNOWN",
    ]
    assert [Memory(one).name for one in device.host_memory] == [
        *("PAGEABLE", "PINNED", "PINNED", "UNKNOWN", "UNKNOWN", "PINNED"),
        "UNKNOWN",
    ]
    assert device.size_bytes.tolist() == [101, 102, 103, 104, 105, 106, 107]
    assert (device.kind == WorkKind.COPY).all()


def test_sets_carry_their_size(tmp_path: Path) -> None:
    sets = [{"start": 5, "end": 9, **ON_DEVICE, "bytes": 4096}, {"start": 10, "end": 11, **ON_DEVICE, "bytes": None}]
    device = read(export(tmp_path / "run.sqlite", CUPTI_ACTIVITY_KIND_MEMSET=sets)).device
    assert device.kind.tolist() == [WorkKind.SET] * 2
    assert device.size_bytes.tolist() == [4096, -1]


def test_a_graph_recorded_as_a_whole_keeps_the_device_busy(tmp_path: Path) -> None:
    graphs = [{"start": 1000 * i, "end": 1000 * i + 990, **ON_DEVICE, "graphId": 12} for i in range(1, 5)]
    trace = read(export(tmp_path / "run.sqlite", CUPTI_ACTIVITY_KIND_GRAPH_TRACE=graphs))
    assert trace.device.graph.tolist() == [12] * 4
    assert names(trace, trace.device.name) == ["CUDA graph 12"] * 4
    assert any("--cuda-graph-trace=node" in warning for warning in trace.warnings)


def test_kernels_of_a_graph_name_it_in_new_and_in_old_files(tmp_path: Path) -> None:
    kernel = {"start": 5, "end": 9, **ON_DEVICE, "demangledName": 1}
    old = [{**kernel, "graphNodeId": (3 << 32) + 17}, {**kernel, "graphNodeId": None}]
    assert read(export(tmp_path / "old.sqlite", NAMES, CUPTI_ACTIVITY_KIND_KERNEL=old)).device.graph.tolist() == [3, -1]
    new = [{**kernel, "graphNodeId": (3 << 32) + 17, "graphId": 8}]
    assert read(export(tmp_path / "new.sqlite", NAMES, CUPTI_ACTIVITY_KIND_KERNEL=new)).device.graph.tolist() == [8]


def nvtx(*texts: str, **more: object) -> list[dict[str, object]]:
    return [
        {"start": 100 * i, "end": 100 * i + 90, "eventType": 59, "globalTid": global_tid(100, 1), "text": text, **more}
        for i, text in enumerate(texts, start=1)
    ]


def test_operators_that_torch_marks_are_operators(tmp_path: Path) -> None:
    marks = nvtx(
        "aten::mm, seq = 7, op_id = 41, sizes = [[2, 3], [3, 4]], input_op_ids = [(8,0)]",
        "autograd::engine::evaluate_function: AddmmBackward0, op_id = 42",
        "FSDP::pre_forward (encoder.block.9.layer.1), op_id = 43",
    )
    trace = read(export(tmp_path / "run.sqlite", NVTX_EVENTS=marks))
    assert names(trace, trace.ops.name) == ["aten::mm", "autograd::engine::evaluate_function: AddmmBackward0"]
    assert trace.ops.sequence.tolist() == [7, -1]
    assert trace.texts[trace.ops.shapes[0]] == "[[2,3],[3,4]]"
    assert names(trace, trace.ranges.name) == ["FSDP::pre_forward (encoder.block.9.layer.1)"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Optimizer.step#AdamW.step, op_id = 3", RangeKind.OPTIMIZER),
        ("optimizer_step", RangeKind.OPTIMIZER),
        ("backward", RangeKind.BACKWARD),
        ("loss.backward()", RangeKind.BACKWARD),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", RangeKind.INPUT),
        ("load_batch", RangeKind.INPUT),
        ("ncclAllReduce", RangeKind.COLLECTIVE),
        ("nccl:all_reduce", RangeKind.COLLECTIVE),
        ("forward", RangeKind.USER),
        ("checkpoint", RangeKind.USER),
        ("backward_hook_setup", RangeKind.USER),
    ],
)
def test_ranges_are_told_apart_by_the_words_that_programs_use(tmp_path: Path, text: str, kind: RangeKind) -> None:
    trace = read(export(tmp_path / "run.sqlite", NVTX_EVENTS=nvtx(text)))
    assert [RangeKind(one) for one in trace.ranges.kind] == [kind]


def test_of_nested_series_the_outer_one_marks_the_steps(tmp_path: Path) -> None:
    outer = [
        {**row, "start": 1000 * i, "end": 1000 * i + 900} for i, row in enumerate(nvtx("iteration 1", "iteration 2"))
    ]
    inner = [{**row, "start": 250 * i, "end": 250 * i + 100} for i, row in enumerate(nvtx(*["batch"] * 7))]
    trace = read(export(tmp_path / "run.sqlite", NVTX_EVENTS=outer + inner))
    steps = trace.ranges.where(trace.ranges.kind == RangeKind.STEP)
    assert names(trace, steps.name) == ["iteration 1", "iteration 2"]


def test_what_repeats_while_the_program_sets_up_marks_no_steps(tmp_path: Path) -> None:
    tables = {**training(steps=6), "NVTX_EVENTS": nvtx(*["AddAxiomsPass"] * 5)}
    found = diagnose([read(export(tmp_path / "run.sqlite", NAMES, **tables))], load())
    assert found.steps.found_by != "nvtx"


def test_marks_domains_and_unclosed_ranges_are_no_ranges(tmp_path: Path) -> None:
    sound, mark, domain, unclosed = nvtx("forward", "hit", "NCCL", "never ends")
    odd = [{**mark, "eventType": 34, "end": None}, {**domain, "eventType": 75}, {**unclosed, "end": None}]
    trace = read(export(tmp_path / "run.sqlite", NVTX_EVENTS=[sound, *odd]))
    assert names(trace, trace.ranges.name) == ["forward"]
    assert any("1 NVTX ranges were never closed" in warning for warning in trace.warnings)


def test_registered_names_of_ranges_are_looked_up(tmp_path: Path) -> None:
    marks = nvtx("plain") + nvtx("", text=None, textId=1)
    trace = read(export(tmp_path / "run.sqlite", ["a", "registered"], NVTX_EVENTS=marks))
    assert set(names(trace, trace.ranges.name)) == {"plain", "registered"}


def test_each_process_with_device_work_is_a_rank(tmp_path: Path) -> None:
    first, second, idle = training(pid=300, device=0), training(pid=200, device=1), training(pid=100)
    tables = {name: [*first[name], *second[name]] for name in first}
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] += idle["CUPTI_ACTIVITY_KIND_RUNTIME"]
    traces = open_traces([export(tmp_path / "run.sqlite", NAMES, **tables)])
    assert [trace.rank for trace in traces] == [0, 1]
    assert [trace.threads[0].pid for trace in traces] == [300, 200]
    assert [trace.device.device.tolist() for trace in traces] == [[0] * 4, [1] * 4]
    assert all(len(trace.calls) == 4 for trace in traces)
    assert "rank 0 is process 300 on device 0, rank 1 is process 200 on device 1" in traces[0].warnings[0]


def test_a_file_of_one_rank_is_named_by_its_file(tmp_path: Path) -> None:
    assert read(export(tmp_path / "report_rank3.sqlite", NAMES, **training())).rank == 3
    assert read(export(tmp_path / "report.sqlite", NAMES, **training())).rank is None


def test_the_gpu_is_named_as_the_process_numbers_it(tmp_path: Path) -> None:
    gpu = {"computeMajor": 9, "computeMinor": 0, "totalMemory": 80 << 30}
    gpus = [{"id": i, "name": name, "cuDevice": i, **gpu} for i, name in enumerate(["Small", "Large"])]
    mapped = [{"gpuId": 1, "cudaId": 0, "pid": 100}]
    trace = read(
        export(tmp_path / "a.sqlite", NAMES, **training(), TARGET_INFO_GPU=gpus, TARGET_INFO_CUDA_DEVICE=mapped)
    )
    assert trace.facts.device_name == "Large"
    assert trace.facts.device_capability == (9, 0)
    assert trace.facts.device_memory_bytes == 80 << 30
    assert read(export(tmp_path / "b.sqlite", NAMES, **training(), TARGET_INFO_GPU=gpus)).device_names == ("Small",)


def test_sampled_metrics_of_the_gpu_are_counters(tmp_path: Path) -> None:
    metrics = [{"typeId": 0, "metricId": 4, "metricName": "SMs Active [Throughput %]"}]
    metrics += [{"typeId": 0, "metricId": 5, "metricName": "GPC Clock Frequency [MHz]"}]
    values = [
        {"timestamp": 10 * i, "typeId": (77 << 8) + gpu, "metricId": metric, "value": value}
        for i, (gpu, metric, value) in enumerate([(0, 4, 93), (0, 5, 1980), (1, 4, 5), (0, 99, 1)])
    ]
    trace = read(
        export(tmp_path / "run.sqlite", NAMES, **training(), TARGET_INFO_GPU_METRICS=metrics, GPU_METRICS=values)
    )
    assert names(trace, trace.counters.name) == ["gpu.sm_activity", "nsight.GPC Clock Frequency [MHz]"]
    assert trace.counters.value.tolist() == [93.0, 1980.0]
    assert trace.counters.time_ns.tolist() == [EPOCH_NS, EPOCH_NS + 10]


def test_environments_are_neither_kept_nor_shown(tmp_path: Path) -> None:
    secret = [{"name": "DeviceEnvironment", "value": "API_KEY=hunter2"}]
    trace = read(
        export(tmp_path / "run.sqlite", NAMES, **training(), TARGET_INFO_SYSTEM_ENV=secret, META_DATA_CAPTURE=secret)
    )
    assert "hunter2" not in repr(trace)


def test_what_nsys_missed_of_the_process_is_said(tmp_path: Path) -> None:
    told = "Not all CUDA events might have been collected."
    said = [
        {"text": told, "globalPid": global_tid(100)},
        {"text": "Wrote to /home/someone", "globalPid": global_tid(100)},
    ]
    said += [{"text": "No CUDA events collected. Does the process use CUDA?", "globalPid": global_tid(7)}]
    trace = read(export(tmp_path / "run.sqlite", NAMES, **training(), DIAGNOSTIC_EVENT=said))
    assert [warning.partition("nsys says: ")[2] for warning in trace.warnings] == [told.rstrip(".")]


def test_a_recording_without_the_device_says_how_to_record_it(tmp_path: Path) -> None:
    calls = [{"start": 1, "end": 2, "globalTid": global_tid(1), "nameId": 0}]
    with pytest.raises(NotATrace, match=r"only calls of the operating system.*--trace=cuda,nvtx"):
        open_traces([export(tmp_path / "run.sqlite", ["poll"], OSRT_API=calls)])


def test_other_databases_are_refused_by_name(tmp_path: Path) -> None:
    row = [{"id": 1}]
    for tables, words in (
        ({"view_op_nodes": row}, "DLProf"),
        ({"CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": row}, "nvprof"),
        ({"col1": row}, "of no profiler"),
    ):
        path = export(tmp_path / f"{words}.sqlite", **tables)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=words):
            open_traces([path])


def test_reading_changes_nothing_beside_the_file(tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite", NAMES, **training())
    before = path.read_bytes()
    nsight_sqlite.read(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
