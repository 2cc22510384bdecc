"""torch.profiler's JSON, in the spellings of every year, becomes the columns of the schema."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from profiler_events import KERNEL, complete, only, opened, written

from diagnose.trace import Thread
from diagnose.trace.schema import CopyDirection, Memory, RangeKind, WorkKind


class TestTimes:
    """Nanoseconds are exact, whatever the document's way of writing microseconds."""

    def spans(self, tmp_path: Path, ts: str, dur: str, header: str = "") -> tuple[int, int]:
        event = f'{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{ts},"dur":{dur}}}'
        ops = only(written(tmp_path, f'{{"schemaVersion":1,{header}"traceEvents":[{event}]}}')).ops
        return int(ops.start_ns[0]), int(ops.end_ns[0])

    def test_whole_microseconds_since_the_epoch(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path, "1606910596297023", "13") == (1606910596297023000, 1606910596297036000)

    def test_three_decimals_since_the_epoch_which_no_double_holds(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path, "1712195495505582.988", "4.928") == (1712195495505582988, 1712195495505587916)

    def test_less_than_a_microsecond_beside_times_since_the_epoch(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path, "1712195495505582.001", "0.070") == (1712195495505582001, 1712195495505582071)

    def test_decimals_of_different_length_since_the_epoch(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path, "1712195495505582.5", "1") == (1712195495505582500, 1712195495505583500)

    def test_relative_to_a_base(self, tmp_path: Path) -> None:
        base = 1711964646000000000
        spans = self.spans(tmp_path, "4458676524670.502", "92.804", f'"baseTimeNanoseconds":{base},')
        assert spans == (base + 4458676524670502, base + 4458676524763306)

    def test_a_base_behind_the_events(self, tmp_path: Path) -> None:
        event = json.dumps(complete("cpu_op", "aten::mm", 10.001, 1))
        text = f'{{"traceEvents":[{event}],"displayTimeUnit":"ms","baseTimeNanoseconds":1711964646000000000}}'
        assert only(written(tmp_path, text)).ops.start_ns.tolist() == [1711964646000010001]

    def test_a_base_beside_times_that_include_it_already(self, tmp_path: Path) -> None:
        spans = self.spans(tmp_path, "1711964650000000.250", "1", '"baseTimeNanoseconds":1711964646000000000,')
        assert spans[0] == 1711964650000000250

    @pytest.mark.parametrize("ts", ['"1704161511420589.043"', "1704161511420589.043", "1.704161511420589043e15"])
    def test_text_and_exponents(self, tmp_path: Path, ts: str) -> None:
        assert self.spans(tmp_path, ts, '"2.5"') == (1704161511420589043, 1704161511420591543)

    def test_every_nanosecond_of_a_microsecond(self, tmp_path: Path) -> None:
        events = ",".join(
            f'{{"ph":"X","cat":"cpu_op","name":"a","ts":8796093022{i:03}.{i:03},"dur":0}}' for i in range(1000)
        )
        starts = only(written(tmp_path, f'{{"traceEvents":[{events}]}}')).ops.start_ns
        assert starts.tolist() == [8796093022000000 + 1001 * i for i in range(1000)]

    def test_times_before_the_base_are_negative_and_exact(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path, "-1.001", "2") == (-1001, 999)


class TestEras:
    """The same work, as profilers of different years wrote it."""

    def test_2021(self, tmp_path: Path) -> None:
        trace = opened(
            tmp_path,
            [
                complete("Operator", "aten::mm", 0, 5, tid="77", args={"External id": 3, "Input dims": [[2, 3]]}),
                complete("Operator", "ProfilerStep#4", 0, 50, tid="77"),
                complete("Runtime", "cudaLaunchKernel", 1, 2, tid="77", args={"correlation": 9, "external id": 3}),
                complete(
                    "Kernel", "sgemm", 10, 20, pid=0, tid="stream 7",
                    args={"device": 0, "stream": 7, "correlation": 9, "external id": 3},
                ),
                complete("Memset", "Memset (Device)", 31, 1, pid=0, tid="stream 7", args={"bytes": 64}),
            ],
        )  # fmt: skip
        assert trace.device.kind.tolist() == [WorkKind.KERNEL, WorkKind.SET]
        assert trace.device.stream.tolist() == [7, 7]
        assert trace.device.external_id.tolist() == [3, -1]
        assert trace.device.size_bytes.tolist() == [-1, 64]
        assert trace.calls.correlation.tolist() == trace.device.correlation[:1].tolist() == [9]
        assert trace.texts[trace.ops.shapes[0]] == "[[2,3]]"
        assert trace.threads == (Thread(1, 77),)
        assert [RangeKind(kind) for kind in trace.ranges.kind] == [RangeKind.STEP]
        assert len(trace.ops) == 1

    def test_hip_calls_with_text_for_numbers(self, tmp_path: Path) -> None:
        copy = {"device": 2, "stream": "0x3", "correlation": "12", "kind": "HtoD", "bytes": "2560"}
        trace = opened(
            tmp_path,
            [
                complete("cuda_runtime", "hipMemcpyWithStream", 0, 1, args={"cid": 5, "correlation": 12}),
                complete("gpu_memcpy", "CopyKernel", 1, 1, pid=2, tid=3, args=copy),
            ],
        )
        (device,) = [trace.device]
        assert (device.device[0], device.stream[0], device.correlation[0], device.size_bytes[0]) == (2, 3, 12, 2560)
        assert device.direction[0] == CopyDirection.HOST_TO_DEVICE
        assert trace.names[trace.calls.name[0]] == "hipMemcpyWithStream"

    def test_driver_calls_are_calls(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("cuda_driver", "cuLaunchKernel", 0, 1, args={"correlation": 5})])
        assert trace.calls.correlation.tolist() == [5]

    def test_a_bare_array_with_empty_and_null_events(self, tmp_path: Path) -> None:
        path = written(tmp_path, json.dumps([{}, None, complete("cpu_op", "aten::mm", 1, 2), None, {}]))
        assert len(only(path).ops) == 1
        assert only(path).warnings == ()

    def test_gzip_is_known_by_its_bytes(self, tmp_path: Path) -> None:
        text = json.dumps({"traceEvents": [complete("cpu_op", "aten::mm", 1, 2)]}).encode()
        assert len(only(written(tmp_path, gzip.compress(text), "trace.json")).ops) == 1
        assert len(only(written(tmp_path, text, "trace.json.gz")).ops) == 1
        assert len(only(written(tmp_path, b"\xef\xbb\xbf" + text, "marked.json")).ops) == 1

    def test_gzip_in_several_members(self, tmp_path: Path) -> None:
        text = json.dumps({"traceEvents": [complete("cpu_op", "aten::mm", 1, 2)]}).encode()
        assert len(only(written(tmp_path, gzip.compress(text[:40]) + gzip.compress(text[40:]))).ops) == 1


class TestColumns:
    def test_kernel(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("kernel", "gemm", 5, 2.5, pid=0, tid=7, args={**KERNEL, "graph id": 3})])
        row = {name: getattr(trace.device, name)[0] for name in ("device", "stream", "correlation", "external_id")}
        assert row == {"device": 0, "stream": 7, "correlation": 9, "external_id": 4}
        assert (trace.device.start_ns[0], trace.device.end_ns[0]) == (5000, 7500)
        assert trace.device.graph[0] == 3
        assert trace.device.size_bytes[0] == trace.device.collective[0] == -1
        assert trace.window_ns == (5000, 7500)

    def test_what_is_not_there_is_missing_and_not_zero(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("kernel", "k", 0, 1, pid=3, tid=20), complete("cpu_op", "op", 0, 1)])
        device, ops = trace.device, trace.ops
        assert (device.device[0], device.stream[0]) == (3, 20)  # the row it is drawn in
        assert device.correlation[0] == device.external_id[0] == device.graph[0] == -1
        assert ops.external_id[0] == ops.sequence[0] == ops.forward_thread[0] == ops.shapes[0] == ops.dtypes[0] == -1

    def test_external_id_zero_is_no_operator_unless_one_bears_it(self, tmp_path: Path) -> None:
        kernel = complete("kernel", "k", 0, 1, args={"External id": 0})
        assert opened(tmp_path, [kernel]).device.external_id.tolist() == [-1]
        bearer = complete("cpu_op", "op", 0, 1, args={"External id": 0})
        assert opened(tmp_path, [kernel, bearer]).device.external_id.tolist() == [0]

    def test_a_graph_id_of_zero_is_no_graph(self, tmp_path: Path) -> None:
        assert opened(tmp_path, [complete("kernel", "k", 0, 1, args={"graph id": 0})]).device.graph.tolist() == [-1]

    @pytest.mark.parametrize(
        ("name", "direction", "memory"),
        [
            ("Memcpy HtoD (Pageable -> Device)", CopyDirection.HOST_TO_DEVICE, Memory.PAGEABLE),
            ("Memcpy HtoD (Pinned -> Device)", CopyDirection.HOST_TO_DEVICE, Memory.PINNED),
            ("Memcpy DtoH (Device -> Pinned)", CopyDirection.DEVICE_TO_HOST, Memory.PINNED),
            ("Memcpy DtoH (Device -> Host)", CopyDirection.DEVICE_TO_HOST, Memory.UNKNOWN),
            ("Memcpy DtoD (Device -> Device)", CopyDirection.DEVICE_TO_DEVICE, Memory.UNKNOWN),
            ("Memcpy PtoP (Device -> Device)", CopyDirection.PEER_TO_PEER, Memory.UNKNOWN),
            ("CopyHostToDevice", CopyDirection.HOST_TO_DEVICE, Memory.UNKNOWN),
            ("something else", CopyDirection.UNKNOWN, Memory.UNKNOWN),
        ],
    )
    def test_copies(self, tmp_path: Path, name: str, direction: CopyDirection, memory: Memory) -> None:
        device = opened(tmp_path, [complete("gpu_memcpy", name, 0, 1, args={"bytes": 1024})]).device
        assert (device.kind[0], device.direction[0], device.host_memory[0]) == (WorkKind.COPY, direction, memory)
        assert device.size_bytes[0] == 1024

    @pytest.mark.parametrize(
        ("name", "kind", "size_bytes"),
        [
            ("allreduce", "all_reduce", 2 * 100),
            ("_allgather_base", "all_gather", 2 * 400),
            ("_reduce_scatter_base", "reduce_scatter", 2 * 100),
            ("all_to_allv", "all_to_all", 2 * 100),
            ("broadcast", "broadcast", 2 * 100),
            ("send", "send_recv", 2 * 100),
            ("barrier", "barrier", 2 * 100),
        ],
    )
    def test_collectives(self, tmp_path: Path, name: str, kind: str, size_bytes: int) -> None:
        args = {
            **KERNEL, "Collective name": name, "In msg nelems": 100, "Out msg nelems": 400, "dtype": "BFloat16",
            "Group size": 4, "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1, 2, 3]", "In split size": "[]",
        }  # fmt: skip
        trace = opened(tmp_path, [complete("kernel", "ncclDevKernel_Generic", 0, 1, args=args)] * 2)
        collective = trace.collectives[trace.device.collective[1]]
        assert (collective.kind, collective.size_bytes) == (kind, size_bytes)
        assert (collective.group_size, collective.group, collective.dtype) == (4, "default_pg", "BFloat16")
        assert len(trace.collectives) == 1

    def test_a_collective_of_unknown_type_has_unknown_size(self, tmp_path: Path) -> None:
        args = {"Collective name": "allreduce", "In msg nelems": 100, "dtype": "Posit"}
        trace = opened(tmp_path, [complete("kernel", "nccl", 0, 1, args=args)])
        assert (trace.collectives[0].size_bytes, trace.collectives[0].group_size) == (-1, -1)

    @pytest.mark.parametrize("number", [1 << 62, 1 << 70, -(1 << 70)])
    def test_a_collective_of_impossible_size_has_unknown_size(self, tmp_path: Path, number: int) -> None:
        args = {"Collective name": "allreduce", "In msg nelems": number, "dtype": "Float", "Group size": number}
        trace = opened(tmp_path, [complete("kernel", "nccl", 0, 1, args=args)])
        assert (trace.collectives[0].size_bytes, trace.collectives[0].group_size) == (-1, -1)

    def test_operators(self, tmp_path: Path) -> None:
        args = {
            "External id": 8, "Sequence number": 12, "Fwd thread id": 1,
            "Input Dims": [[4, 8], [8]], "Input type": ["float", ""], "Ev Idx": 3,
        }  # fmt: skip
        trace = opened(tmp_path, [complete("cpu_op", "MmBackward0", 3, 4, tid=42, args=args)])
        ops = trace.ops
        assert (ops.external_id[0], ops.sequence[0], ops.forward_thread[0]) == (8, 12, 1)
        assert trace.texts[ops.shapes[0]] == "[[4,8],[8]]"
        assert trace.texts[ops.dtypes[0]] == '["float",""]'
        assert trace.threads[ops.thread[0]].tid == 42

    def test_values_are_kept_of_operators_whose_work_depends_on_them(self, tmp_path: Path) -> None:
        args = {"Concrete Inputs": ["", "[2, 2]", "False"]}
        trace = opened(
            tmp_path,
            [complete("cpu_op", name, at, 1, args=args) for at, name in enumerate(("aten::convolution", "aten::add"))],
        )
        assert trace.texts[trace.ops.values[0]] == '["","[2, 2]","False"]'
        assert trace.ops.values[1] == -1

    def test_how_a_kernel_fills_the_device(self, tmp_path: Path) -> None:
        filled = [{"blocks per SM": 0.5, "warps per SM": 2}, {"blocks per SM": "many", "warps per SM": -3}, {}]
        device = opened(tmp_path, [complete("kernel", "k", at, 1, args=args) for at, args in enumerate(filled)]).device
        assert device.blocks_per_sm.tolist() == [0.5, -1, -1]
        assert device.warps_per_sm.tolist() == [2, -1, -1]

    def test_forward_operators_have_no_forward_thread(self, tmp_path: Path) -> None:
        assert opened(tmp_path, [complete("cpu_op", "a", 0, 1, args={"Fwd thread id": 0})]).ops.forward_thread[0] == -1

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("ProfilerStep#12", RangeKind.STEP),
            ("Optimizer.step#AdamW.step", RangeKind.OPTIMIZER),
            ("Optimizer.zero_grad#AdamW.zero_grad", RangeKind.USER),
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", RangeKind.INPUT),
            ("nccl:all_reduce", RangeKind.COLLECTIVE),
            ("gloo:all_reduce", RangeKind.COLLECTIVE),
            ("_compile.compile_inner (dynamo_timed)", RangeKind.COMPILE),
            ("## Call CompiledFxGraph fq7 ##", RangeKind.USER),
            ("## backward ##", RangeKind.BACKWARD),
            ("## load_batch ##", RangeKind.INPUT),
            ("Data Loading", RangeKind.INPUT),
            ("train_batch", RangeKind.USER),
            ("my region", RangeKind.USER),
        ],
    )
    def test_annotations(self, tmp_path: Path, name: str, kind: RangeKind) -> None:
        trace = opened(tmp_path, [complete("user_annotation", name, 0, 1)])
        assert [RangeKind(value) for value in trace.ranges.kind] == [kind]

    @pytest.mark.parametrize("name", ["dynamo", "entire_frame_compile", "build_guards (dynamo_timed)"])
    def test_phases_of_the_compiler_are_annotations_though_filed_as_operators(self, tmp_path: Path, name: str) -> None:
        trace = opened(tmp_path, [complete("cpu_op", name, 0, 1), complete("cpu_op", "CompiledFunction", 2, 1)])
        assert [RangeKind(value) for value in trace.ranges.kind] == [RangeKind.COMPILE]
        assert [trace.names[name] for name in trace.ops.name] == ["CompiledFunction"]

    def test_a_step_is_counted_once_on_the_host(self, tmp_path: Path) -> None:
        trace = opened(
            tmp_path,
            [
                complete("user_annotation", "ProfilerStep#3", 0, 10),
                complete("gpu_user_annotation", "ProfilerStep#3", 5, 10, pid=0, tid=7),
            ],
        )
        assert (len(trace.ranges), len(trace.device_ranges)) == (1, 1)
        assert trace.device_ranges.kind.tolist() == [RangeKind.STEP]

    def test_python_frames(self, tmp_path: Path) -> None:
        args = {"Python id": 1, "Python parent id": None}
        trace = opened(tmp_path, [complete("python_function", "train.py(41): step", 0, 9, args=args)])
        assert trace.names[trace.frames.name[0]] == "train.py(41): step"

    def test_rows_are_sorted_by_start(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("cpu_op", "late", 9, 1), complete("cpu_op", "early", 1, 1)])
        assert [trace.names[name] for name in trace.ops.name] == ["early", "late"]

    def test_flows_instants_and_the_profilers_own_events_are_left_out_in_silence(self, tmp_path: Path) -> None:
        others = [{"ph": ph, "name": "x", "cat": "ac2g", "id": 3, "pid": 1, "tid": 1, "ts": 4} for ph in "sftiICBE"]
        own = [complete(cat, "x", 0, 1) for cat in ("Trace", "overhead", "cuda_sync", "cuda_profiler_range")]
        trace = opened(tmp_path, [*others, *own, complete("cpu_op", "aten::mm", 1, 2)])
        assert (len(trace.ops), trace.warnings, trace.window_ns) == (1, (), (1000, 3000))

    def test_thread_names(self, tmp_path: Path) -> None:
        name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "ts": 0, "args": {"name": "thread 5 (python)"}}
        trace = opened(tmp_path, [complete("cpu_op", "aten::mm", 1, 2, tid=5), name])
        assert trace.threads == (Thread(1, 5, "thread 5 (python)"),)
