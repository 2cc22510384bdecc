"""Ids are held in the width that they need, and nothing that reads them sees which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.measure.views.launches import joined
from diagnose.trace.readers.kineto.torch_profiler import read
from diagnose.trace.schema import TABLES, DeviceWork, HostCalls, narrow

EDGES = [-(2**31), 2**31 - 1]
BEYOND = [-(2**63), -(2**31) - 1, 2**31, 2**32, 2**63 - 1]


def calls(correlation: Any) -> HostCalls:
    rows = range(len(correlation))
    return HostCalls.build({"start_ns": rows, "end_ns": rows, "correlation": correlation})


def test_ids_that_fit_take_32_bits() -> None:
    assert narrow(np.array(EDGES)).dtype == np.int32
    assert narrow(np.array([], np.int64)).dtype == np.int32
    assert calls([1, 2]).correlation.dtype == np.int32
    assert calls([1, 2]).external_id.dtype == np.int32, "of ids that nobody gave"


@pytest.mark.parametrize("number", BEYOND)
def test_ids_that_do_not_fit_keep_all_their_digits(number: int) -> None:
    ids = calls([1, number]).correlation
    assert ids.dtype == np.int64
    assert ids.tolist() == [1, number]


def test_what_is_computed_with_is_never_narrowed() -> None:
    for table in TABLES:
        for column in table.columns():
            if column.metadata["is_narrowed"]:
                assert column.metadata["unit"] in ("id", "number"), f"{table.__name__}.{column.name}"
                assert column.metadata["dtype"] is np.int64


def test_a_column_is_not_copied_where_it_has_its_width() -> None:
    ids = np.array([1, 2], np.int32)
    assert calls(ids).correlation is ids


def test_tables_of_both_widths_are_joined_without_loss() -> None:
    both = HostCalls.concatenate([calls([7]), calls([2**40])])
    assert sorted(both.correlation.tolist()) == [7, 2**40]


@pytest.mark.parametrize("far", [2**31, 2**40, 2**63 - 1])
def test_ids_are_joined_across_widths(far: int) -> None:
    small, wide = narrow([3, 5]), narrow([5, far])
    order = np.arange(2)
    assert small.dtype == np.int32
    assert wide.dtype == np.int64
    assert joined(small, wide, order).tolist() == [-1, 0]
    assert joined(wide, small, order).tolist() == [1, -1]
    assert joined(small, narrow([far, far - 1]), order).tolist() == [-1, -1], "none of them is there"


@pytest.mark.parametrize("stream", [7, 0x7F01_2345_6780])
def test_a_stream_is_read_whole_whether_it_is_a_number_or_an_address(tmp_path: Path, stream: int) -> None:
    args = {"device": 0, "stream": stream, "correlation": 9}
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.0, "args": args}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event, {**event, "ts": 9.5}]}))
    (trace,) = read(path)
    work: DeviceWork = trace.device
    assert work.stream.tolist() == [stream, stream]
    assert work.correlation.dtype == np.int32
    assert work.stream.dtype == (np.int32 if stream < 2**31 else np.int64)
