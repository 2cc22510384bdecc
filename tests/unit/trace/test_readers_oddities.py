"""Headers of any shape, merged ranks, odd events, folders: what else comes as a torch.profiler trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profiler_events import KERNEL, complete, only, opened, written

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Thread
from diagnose.trace.readers import formats, open_traces
from diagnose.trace.readers.kineto import torch_profiler


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
        assert trace.names[0].startswith("a\ufffd")  # it steers no terminal

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

    def test_a_folder_without_anything(self, tmp_path: Path) -> None:
        with pytest.raises(NotATrace, match="no file in this folder"):
            open_traces([tmp_path])

    def test_a_folder_whose_recordings_lie_in_folders_of_their_own_names_some(self, tmp_path: Path) -> None:
        document = json.dumps({"traceEvents": [complete("cpu_op", "aten::mm", 0, 2)]})
        written(tmp_path, 'title = "one, two, three"', "index.toml")
        for name in ("a", "b", "c", "d"):
            (tmp_path / name).mkdir()
            written(tmp_path / name, document, "trace.json")
        with pytest.raises(InputError, match=r"4 of its folders hold some: name one \(a, b, c, …\)"):
            open_traces([tmp_path])
        assert len(open_traces([tmp_path / "a"])) == 1

    def test_a_table_of_settings_is_no_table_of_commas(self, tmp_path: Path) -> None:
        with pytest.raises(NotATrace, match="plain text"):
            open_traces([written(tmp_path, 'title = "one, two, three"\nranks = 1\n', "index.toml")])


def test_a_format_is_found_by_its_module() -> None:
    assert torch_profiler.READER in formats()
