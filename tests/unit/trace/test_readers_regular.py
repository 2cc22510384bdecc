"""The fast road and the patient one through a document lead to the same columns."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diagnose.trace import Trace
from diagnose.trace.readers.kineto import chunks
from diagnose.trace.readers.kineto.meaning import Lane, lane_of
from diagnose.trace.readers.kineto.regular_events import lane_by_type, regular_decoder
from diagnose.trace.readers.kineto.timestamps import nanoseconds
from diagnose.trace.readers.kineto.torch_profiler import read
from diagnose.trace.schema import Table

TABLES = ("device", "calls", "ops", "frames", "ranges", "device_ranges", "memory", "counters")

CATEGORIES = (
    *("kernel", "Kernel", "gpu_memcpy", "Memset", "cuda_runtime", "Runtime", "cpu_op", "Operator", "ac2g"),
    *("python_function", "user_annotation", "gpu_user_annotation", "overhead", "quantum", "hip_driver"),
    "cpu_instant_event",
)
_ids = st.sampled_from([0, 7, "7", "0x1f", "stream 7", -1, 2**63 + 1, 1.0, None])
_args = st.fixed_dictionaries(
    {},
    optional={
        "External id": _ids,
        "external id": _ids,
        "correlation": _ids,
        "device": _ids,
        "stream": _ids,
        "bytes": _ids,
        "Fwd thread id": _ids,
        "Sequence number": _ids,
        "graph id": _ids,
        "Input Dims": st.sampled_from([[], [[2, 3], []], "x"]),
        "Input dims": st.sampled_from([[[4]], []]),
        "Input type": st.just(["float", ""]),
        "Collective name": st.sampled_from(["allreduce", "_allgather_base"]),
        "In msg nelems": st.just(8),
        "dtype": st.just("Float"),
        "Bytes": st.sampled_from([512, -512, "8", 0]),
        "Total Allocated": _ids,
        "Device Type": st.sampled_from([0, 1, None]),
        "Device Id": _ids,
        "rank": st.just(3),
        "other": st.just({"a": [{"b": 1}, {}]}),
    },
)
_events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "X", "i", "i", "s", "M"]),
        "name": st.sampled_from(
            ["aten::mm", "[memory]", "ProfilerStep#3", "Memcpy HtoD (Pinned -> Device)", "thread_name"]
        ),
        "ts": st.sampled_from([1, 2.125, 1099511627776.001, 8796093022207.999, "4.5", None, -3.25]),
        "pid": st.sampled_from([1, 1, "1", "Spans", None]),
        "tid": st.sampled_from([4, 5, "4", "stream 7", None]),
    },
    optional={
        "cat": st.sampled_from(CATEGORIES),
        "dur": st.sampled_from([0, 3, 2.5, 0.001, -1, None, "7"]),
        "args": _args,
    },
)


def columns(trace: Trace) -> dict[str, Any]:
    """What a trace says, with numbers of names, texts and threads replaced by what they stand for."""
    return {name: rows_of(trace, getattr(trace, name)) for name in TABLES}


def rows_of(trace: Trace, table: Table) -> list[tuple[Any, ...]]:
    meanings = {"name": trace.names, "thread": trace.threads, "shapes": trace.texts, "dtypes": trace.texts}
    meanings["collective"] = trace.collectives
    said = []
    for spec in table.columns():
        values = getattr(table, spec.name).tolist()
        known = meanings.get(spec.name)
        said.append(values if known is None else [known[value] if value >= 0 else None for value in values])
    return sorted(zip(*said, strict=True), key=repr)


_OVERHEAD = {"ph": "i", "name": "[memory]", "ts": 1, "pid": 1, "tid": 4, "cat": "overhead", "args": {"Bytes": 512}}


@settings(max_examples=150)
@example(events=[_OVERHEAD], chunk_bytes=1)
@example(events=[{**_OVERHEAD, "ts": None}], chunk_bytes=400)
@given(events=st.lists(_events, min_size=1, max_size=8), chunk_bytes=st.sampled_from([1, 400, 400_000]))
def test_the_two_roads_meet(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], chunk_bytes: int
) -> None:
    sound = {"ph": "X", "cat": "cpu_op", "name": "n", "ts": 1, "dur": 1}
    path = tmp_path_factory.mktemp("roads") / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*events, sound]}))
    (fast,) = read(path, chunk_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_MOST_IRREGULAR", 0)
        (patient,) = read(path, chunk_bytes)
    assert columns(fast) == columns(patient)
    assert fast.warnings == patient.warnings


def test_each_regular_type_has_the_table_of_its_category() -> None:
    for kind, lane in lane_by_type().items():
        category = str(msgspec.inspect.type_info(kind).tag)  # type: ignore[attr-defined]  # of a struct
        assert lane_of(category) in (lane, Lane.UNKNOWN)
        assert lane_of(category) == lane or lane is Lane.UNUSED  # flows


@pytest.mark.parametrize("odd", [{"ph": "M"}, {"cat": "quantum"}, {"ts": [1]}, {"name": 3}, {"args": 3}])
def test_what_is_irregular_is_refused(odd: dict[str, Any]) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "n", "ts": 1, "dur": 1, **odd}
    with pytest.raises(msgspec.ValidationError):
        regular_decoder().decode(json.dumps([event]))


def test_after_many_irregular_chunks_the_fast_road_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MOST_IRREGULAR", 3)
    event = {"ph": "X", "cat": "hip_driver", "name": "hipLaunchKernel", "ts": 1, "dur": 1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event] * 50}))
    (trace,) = read(path, 100)
    assert len(trace.calls) == 50


@settings(max_examples=300)
@given(times=st.lists(st.integers(-(2**43 * 1000 - 1), 2**43 * 1000 - 1), min_size=1, max_size=5))
def test_three_decimals_survive_as_doubles(times: list[int]) -> None:
    texts = [str(Decimal(time).scaleb(-3)) for time in times]
    assert nanoseconds([float(text) for text in texts]).tolist() == times
    assert nanoseconds([*map(float, texts), "0"]).tolist() == [*times, 0]


def test_an_unknown_time_among_doubles_is_unknown() -> None:
    assert nanoseconds([1.5, None]).tolist() == [1500, np.iinfo(np.int64).min]
    assert nanoseconds([1.5, "soon", 2]).tolist() == [1500, np.iinfo(np.int64).min, 2000]
    assert nanoseconds([1, 2.5]).tolist() == [1000, 2500]
