"""torch.profiler's JSON, in the spellings of every year, becomes the columns of the schema."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Thread, Trace
from diagnose.trace.readers import formats, open_traces, torch_profiler
from diagnose.trace.schema import CopyDirection, Memory, RangeKind, WorkKind


def written(tmp_path: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def opened(tmp_path: Path, events: list[Any], name: str = "trace.json", **header: Any) -> Trace:
    document = {"schemaVersion": 1, **header, "traceEvents": events}
    return only(written(tmp_path, json.dumps(document), name))


def only(path: Path) -> Trace:
    (trace,) = open_traces([path])
    return trace


def complete(cat: str, name: str, ts: object, dur: object, **rest: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **rest}


KERNEL = {"device": 0, "stream": 7, "correlation": 9, "External id": 4}


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
            ("my region", RangeKind.USER),
        ],
    )
    def test_annotations(self, tmp_path: Path, name: str, kind: RangeKind) -> None:
        trace = opened(tmp_path, [complete("user_annotation", name, 0, 1)])
        assert [RangeKind(value) for value in trace.ranges.kind] == [kind]

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


class TestHeader:
    def test_ranks(self, tmp_path: Path) -> None:
        event = complete("cpu_op", "aten::mm", 1, 2)
        assert opened(tmp_path, [event], distributedInfo={"rank": 3, "world_size": 8}).rank == 3
        assert opened(tmp_path, [event], distributedInfo={"rank": 3, "world_size": 8}).world_size == 8
        assert opened(tmp_path, [event], distributedInfo={"rank": 3}, name="rank-5.json").rank == 3
        assert opened(tmp_path, [event]).rank is None

    @pytest.mark.parametrize(
        ("name", "rank"),
        [
            ("rank-34.Jul_15_10_52_41.1074.pt.trace.json", 34),
            ("worker7_step_12.1694128201553.pt.trace.json", 7),
            ("profile_trace_rank_0.json", 0),
            ("inference_rank_1.json", 1),
            ("rank12.json", 12),
            ("frank3.json", None),
            ("host_4711.pt.trace.json", None),
        ],
    )
    def test_ranks_in_file_names(self, tmp_path: Path, name: str, rank: int | None) -> None:
        assert opened(tmp_path, [complete("cpu_op", "aten::mm", 1, 2)], name=name).rank == rank

    def test_the_device_in_use_comes_first(self, tmp_path: Path) -> None:
        devices = [
            {"id": 0, "name": "Small GPU", "totalGlobalMem": 1, "computeMajor": 7, "computeMinor": 0},
            {"id": 1, "name": "Large GPU", "totalGlobalMem": 2, "computeMajor": 9, "computeMinor": 0},
        ]
        trace = opened(tmp_path, [complete("kernel", "k", 0, 1, args={"device": 1})], deviceProperties=devices)
        assert trace.device_names == ("Large GPU", "Small GPU")
        assert (trace.facts.device_capability, trace.facts.device_memory_bytes) == ((9, 0), 2)

    def test_a_device_without_name_is_unknown(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("kernel", "k", 0, 1)], deviceProperties=[{"id": 0, "name": ""}])
        assert trace.device_names == ()
        assert trace.facts.device_name is None

    @pytest.mark.parametrize(
        "header",
        [
            {"deviceProperties": None, "distributedInfo": [], "baseTimeNanoseconds": "no"},
            {"deviceProperties": [None, 3, {"id": "x", "name": 4}], "distributedInfo": {"rank": -1, "world_size": "x"}},
            {"deviceProperties": {}, "baseTimeNanoseconds": 10**30, "distributedInfo": {"rank": None}},
        ],
    )
    def test_a_header_of_any_shape(self, tmp_path: Path, header: dict[str, Any]) -> None:
        trace = opened(tmp_path, [complete("cpu_op", "aten::mm", 1, 2)], **header)
        assert (trace.rank, trace.world_size, trace.device_names) == (None, None, ())
        assert trace.ops.start_ns.tolist() == [1000]


class TestMergedRanks:
    def test_each_rank_becomes_a_trace_of_its_own(self, tmp_path: Path) -> None:
        events = []
        for rank in (1, 0):
            raw = {"rank": rank, "pid_raw": 4000 + rank}
            events += [
                complete("cpu_op", "aten::mm", rank, 5, pid=rank * 10**8 + 4000 + rank, args={"External id": 1, **raw}),
                complete(
                    "kernel", "gemm", 2 + rank, 3, pid=rank * 10**8 + 2, tid=4,
                    args={"stream": 4, "correlation": rank * 10**5 + 9, "rank": rank, "pid_raw": 2},
                ),
            ]  # fmt: skip
        first, second = open_traces([written(tmp_path, json.dumps({"traceEvents": events}))])
        assert (first.rank, second.rank) == (0, 1)
        assert (first.threads, second.threads) == ((Thread(4000, 1),), (Thread(4001, 1),))
        assert second.device.device.tolist() == [2]
        assert second.device.start_ns.tolist() == [3000]


class TestOddities:
    def test_negative_and_missing_durations_count_as_instants(self, tmp_path: Path) -> None:
        nameless = {"ph": "X", "cat": "cpu_op", "name": "c", "ts": 3}
        trace = opened(tmp_path, [complete("cpu_op", "a", 5, -2), complete("cpu_op", "b", 5, 0), nameless])
        assert (trace.ops.end_ns - trace.ops.start_ns).tolist() == [0, 0, 0]
        assert [warning.partition(": ")[2] for warning in trace.warnings] == [
            "1 events have no duration; they count as instants",
            "1 events have a negative duration; they count as instants",
        ]

    def test_events_without_time_are_counted(self, tmp_path: Path) -> None:
        trace = opened(
            tmp_path,
            [complete("cpu_op", "a", None, 1), complete("cpu_op", "b", "soon", 1), complete("cpu_op", "c", 1, 1)],
        )
        assert len(trace.ops) == 1
        assert "2 events have no time" in trace.warnings[0]

    def test_repeated_device_work_is_kept_and_told(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("kernel", "k", 0, 1, args=KERNEL)] * 2)
        assert len(trace.device) == 2
        assert "1 device events are there twice" in trace.warnings[0]

    def test_overlap_on_one_stream_is_legal(self, tmp_path: Path) -> None:
        trace = opened(
            tmp_path, [complete("kernel", "a", 0, 5, args=KERNEL), complete("kernel", "b", 4, 5, args=KERNEL)]
        )
        assert (trace.device.end_ns.tolist(), trace.warnings) == ([5000, 9000], ())

    def test_unknown_categories_are_named(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [complete("cpu_op", "a", 1, 1), complete("quantum", "q", 1, 1)])
        assert "1 events of the unknown category 'quantum'" in trace.warnings[0]

    def test_huge_ids_keep_their_identity(self, tmp_path: Path) -> None:
        huge = 2**63 + 5
        trace = opened(tmp_path, [complete("kernel", "k", 0, 1, args={"stream": huge, "correlation": 10**40})])
        assert trace.device.stream.tolist() == [huge - 2**64]
        assert trace.device.correlation.tolist() == [-1]

    @pytest.mark.parametrize(
        "args", ["3", "null", '"text"', "[1]", '{"correlation": [1], "stream": {"a": 1}}', '{"stream": true}']
    )
    def test_arguments_of_any_shape(self, tmp_path: Path, args: str) -> None:
        odd = f'{{"ph":"X","cat":"kernel","name":"k","ts":0,"dur":1,"pid":0,"tid":7,"args":{args}}}'
        sound = json.dumps(complete("kernel", "l", 2, 1, args=KERNEL))
        trace = only(written(tmp_path, f'{{"traceEvents":[{odd},{sound}]}}'))
        assert trace.device.correlation.tolist() == [-1, 9]

    @pytest.mark.parametrize("odd", ["NaN", "Infinity", "1e400", "true", "[]", '{"a":1}', "9" * 5000])
    def test_one_event_of_unexpected_types_costs_only_itself(self, tmp_path: Path, odd: str) -> None:
        event = f'{{"ph":"X","cat":"cpu_op","name":"odd","ts":{odd},"dur":1,"pid":1,"tid":1}}'
        sound = json.dumps(complete("cpu_op", "sound", 1712195495505582, 1))
        trace = only(written(tmp_path, f'{{"traceEvents":[{sound},{event},{sound}]}}'))
        assert trace.ops.start_ns.tolist() == [1712195495505582000] * 2

    def test_control_characters_and_invalid_text_in_names(self, tmp_path: Path) -> None:
        event = b'{"ph":"X","cat":"cpu_op","name":"a\x01\xff\\ud800b","ts":1,"dur":1}'
        trace = only(written(tmp_path, b'{"traceEvents":[' + event + b"]}"))
        trace.names[0].encode()  # it can be printed
        assert trace.names[0].startswith("a\x01")

    def test_entries_that_are_no_events_are_counted(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, [3, "x", [1], complete("cpu_op", "aten::mm", 1, 2)])
        assert len(trace.ops) == 1
        assert "3 entries of traceEvents are no events" in trace.warnings[0]


class TestNothingToRead:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"schemaVersion": 1}', "no traceEvents"),
            ('{"schemaVersion": 1, "traceEvents": []}', "no operator, call or kernel"),
            ('{"traceEvents": [{"ph":"X","cat":"osrt","name":"a","ts":1,"dur":1}]}', "osrt"),
            ('{"traceEvents": [{"ph":"X","ca', "damaged"),
        ],
    )
    def test_a_document_without_work(self, tmp_path: Path, text: str, words: str) -> None:
        with pytest.raises(NotATrace, match=words):
            open_traces([written(tmp_path, text)])

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file"):
            open_traces([tmp_path / "absent.json"])


class TestFolders:
    def test_a_folder_holds_the_ranks_of_a_job(self, tmp_path: Path) -> None:
        for rank in (1, 0):
            document = {"traceEvents": [complete("cpu_op", "aten::mm", rank, 2)]}
            written(tmp_path, json.dumps(document), f"rank-{rank}.json")
        written(tmp_path, "what this is about, in a sentence", "README")
        traces = open_traces([tmp_path])
        assert [trace.rank for trace in traces] == [0, 1]
        assert "1 files in it are no traces" in traces[0].warnings[0]

    def test_a_folder_without_traces(self, tmp_path: Path) -> None:
        written(tmp_path, "words", "notes.txt")
        with pytest.raises(NotATrace, match="none of the 1 files"):
            open_traces([tmp_path])


def test_a_format_is_found_by_its_module() -> None:
    assert torch_profiler.READER in formats()
