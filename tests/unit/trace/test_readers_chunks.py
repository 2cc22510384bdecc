"""Cutting a document into chunks changes nothing that is read from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.trace import Trace
from diagnose.trace.readers.kineto.torch_profiler import read

HOSTILE = ["}, {", "},{", '\\"}, {\\"ph\\": \\"X\\"', "]}", "[{", "}\n,\n{", '"', "\\", "\\\\", "é}, {", "traceEvents"]


def event(i: int, name: str, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": i + 0.125, "dur": 1.5, "args": args}


def rows(trace: Trace) -> list[tuple[int, int, str, int]]:
    ops = trace.ops
    names = [trace.names[name] for name in ops.name]
    return list(zip(ops.start_ns.tolist(), ops.end_ns.tolist(), names, ops.external_id.tolist(), strict=True))


def expected(events: list[dict[str, Any]]) -> list[tuple[int, int, str, int]]:
    return [
        (1000 * i + 125, 1000 * i + 1625, e["name"], e["args"].get("External id", -1)) for i, e in enumerate(events)
    ]


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("chunk_bytes", [1, 64, 300, 5000, 400_000])
def test_boundaries_within_strings_and_arguments(tmp_path: Path, chunk_bytes: int, indent: int | None) -> None:
    events = [
        event(i, f"op {HOSTILE[i % len(HOSTILE)]}", **{"External id": i, "list": [{"ph": "X"}, {"ts": 1}], "s": text})
        for i, text in enumerate(HOSTILE * 9)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{}, {}]}, indent=indent))
    (trace,) = read(path, chunk_bytes)
    assert rows(trace) == expected(events)
    assert trace.warnings == ()


@pytest.mark.parametrize("separator", [",", " ,\n ", "\n,\n", ",\r\n\t"])
def test_separators(tmp_path: Path, separator: str) -> None:
    events = [event(i, "op") for i in range(40)]
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + separator.join(json.dumps(e) for e in events) + "]}")
    (trace,) = read(path, 200)
    assert rows(trace) == expected(events)


def test_an_event_longer_than_many_chunks(tmp_path: Path) -> None:
    events = [event(i, "op", lists=[{"a": 1}, {"b": 2}] * (3000 if i == 3 else 1)) for i in range(8)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = read(path, 200)
    assert rows(trace) == expected(events)


@settings(max_examples=60)
@given(
    texts=st.lists(st.text(st.sampled_from('{}[],:"\\ \n\tXphé0')), min_size=1, max_size=12),
    chunk_bytes=st.integers(1, 400),
)
def test_any_text_any_chunk(tmp_path_factory: pytest.TempPathFactory, texts: list[str], chunk_bytes: int) -> None:
    events = [event(i, text, **{"External id": i, text: [text, {text: text}]}) for i, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("chunks") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = read(path, chunk_bytes)
    assert [row[2] for row in rows(trace)] == texts


def test_times_that_lose_digits_late_in_the_document(tmp_path: Path) -> None:
    small = [json.dumps(event(i, "op")) for i in range(50)]
    late = '{"ph":"X","cat":"cpu_op","name":"late","ts":1712195495505582.988,"dur":0.001}'
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents":[' + ",".join([*small, late, *[small[0]] * 50]) + "]}")
    (trace,) = read(path, 300)
    assert rows(trace)[-1] == (1712195495505582988, 1712195495505582989, "late", -1)
    assert len(trace.ops) == 101


EVENTS = [event(i, f"op{i}", **{"External id": i}) for i in range(60)]
TEXT = json.dumps({"traceEvents": EVENTS})


class TestDamage:
    @pytest.mark.parametrize("chunk_bytes", [300, 100_000])
    def test_a_cut_off_document_gives_all_whole_events(self, tmp_path: Path, chunk_bytes: int) -> None:
        at = TEXT.index('"op40"')
        path = tmp_path / "trace.json"
        path.write_text(TEXT[:at])
        (trace,) = read(path, chunk_bytes)
        assert rows(trace) == expected(EVENTS)[:40]
        assert "ends in the middle" in trace.warnings[0]

    @pytest.mark.parametrize("chunk_bytes", [300, 100_000])
    def test_a_corrupt_event_costs_itself(self, tmp_path: Path, chunk_bytes: int) -> None:
        path = tmp_path / "trace.json"
        path.write_text(TEXT.replace('"name": "op20"', '"name" "op20"').replace('"op30",', '"op30,'))
        (trace,) = read(path, chunk_bytes)
        names = [row[2] for row in rows(trace)]
        assert [f"op{i}" for i in range(60) if i not in (20, 30)] == names
        assert "in 2 places are no valid JSON" in trace.warnings[0]

    def test_every_event_corrupt_but_one(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        path.write_text(TEXT.replace('"dur": 1.5', '"dur" 1.5').replace('"dur" 1.5', '"dur": 1.5', 1))
        (trace,) = read(path, 300)
        assert [row[2] for row in rows(trace)] == ["op0"]

    def test_a_corrupt_header_does_not_cost_the_events(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        path.write_text('{"schemaVersion": 1, "traceName": "a"b", ' + TEXT[1:])
        (trace,) = read(path)
        assert rows(trace) == expected(EVENTS)
        assert "no valid JSON" in trace.warnings[0]
