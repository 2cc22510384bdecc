"""Traces that took long to read are kept as tables; whatever happens to what is kept, the answer stays right."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import NotATrace
from diagnose.model import Facts, Site, SyncSite
from diagnose.trace import Collective, StackFrame, Thread, Trace, cache
from diagnose.trace.cache import is_kept, read_cached
from diagnose.trace.packed_columns import NotPacked, pack, unpack, unpack_traces
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import Counters, DeviceWork, Ops, Table


def example() -> Trace:
    """A trace with something in every kind of field."""
    return Trace(
        source="trace.json",
        names=("aten::mm", "größer"),
        texts=("[[2,3]]",),
        threads=(Thread(1, -(2**63), "main"),),
        collectives=(Collective("all_reduce", 8, 2, None, "Float"),),
        stacks=((StackFrame("a.py", 3, "f", owned=False),), ()),
        rank=3,
        device_names=("GPU",),
        window_ns=(-5, 2**62),
        device=DeviceWork.build({"start_ns": [1, 2], "end_ns": [3, 3], "name": [0, 1]}),
        ops=Ops.build({"start_ns": [7], "end_ns": [9], "name": [1], "shapes": [0]}),
        counters=Counters.build({"time_ns": [1, 2], "value": [0.5, float("nan")]}),
        sites=(Site("optimizer", "train.py", 3, None, {"name": "AdamW", "fused": True, "lr": 0.5, "eps": None}),),
        sync_sites=(SyncSite("train.py", 9, None, 1.0),),
        facts=Facts(device_capability=(9, 0), deterministic=False),
        warnings=("one",),
    )


def assert_same(one: Trace, other: Trace) -> None:
    for spec in fields(Trace):
        left, right = getattr(one, spec.name), getattr(other, spec.name)
        if isinstance(left, Table):
            for column in left.columns():
                a, b = getattr(left, column.name), getattr(right, column.name)
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
        else:
            assert left == right
            assert type(left) is type(right)


def packed(data: Any) -> bytearray:
    return bytearray(b"".join(pack(data)))


class TestPacked:
    def test_traces_come_back_as_they_were(self) -> None:
        for one, other in zip([example(), Trace("b")], unpack_traces(packed([example(), Trace("b")])), strict=True):
            assert_same(one, other)

    def test_columns_are_aligned_and_can_be_written(self) -> None:
        (trace,) = unpack_traces(packed([example()]))
        assert trace.device.start_ns.flags.aligned
        assert trace.device.start_ns.flags.writeable

    def test_a_column_that_says_one_thing_takes_no_room(self) -> None:
        one, many = packed(np.full(1, -1)), packed(np.full(100_000, -1))
        assert len(many) - len(one) < 100
        assert unpack(many).tolist() == [-1] * 100_000

    @given(at=st.integers(0, 2000), mask=st.integers(1, 255))
    def test_any_changed_byte_is_noticed(self, at: int, mask: int) -> None:
        data = packed([example()])
        data[at % len(data)] ^= mask
        with pytest.raises(NotPacked):
            unpack_traces(data)

    @given(end=st.integers(0, 1000))
    def test_any_missing_end_is_noticed(self, end: int) -> None:
        data = packed([example()])
        with pytest.raises(NotPacked):
            unpack_traces(data[: min(end, len(data) - 1)])

    @settings(max_examples=50)
    @given(data=st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3), st.lists, max_leaves=5))
    def test_other_data_are_no_traces(self, data: Any) -> None:
        with pytest.raises(NotPacked):
            unpack_traces(packed([data]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    return tmp_path / "kept"


class Reader:
    """Counts how often it reads."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, path: Path) -> list[Trace]:
        self.times += 1
        return [Trace(source=str(path), names=(path.read_text(),))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text("content")
    return path


@pytest.mark.usefixtures("folder")
class TestRemembered:
    def test_the_second_opening_reads_nothing(self, path: Path) -> None:
        read = Reader()
        assert not is_kept(path)
        first, second = read_cached(path, read), read_cached(path, read)
        assert is_kept(path)
        assert_same(first[0], second[0])
        assert read.times == 1

    def test_other_content_is_read(self, path: Path) -> None:
        read = Reader()
        read_cached(path, read)
        path.write_text("CONTENT")
        assert read_cached(path, read)[0].names == ("CONTENT",)

    def test_other_content_of_the_same_size_and_date_is_read(self, path: Path) -> None:
        status = path.stat()
        read_cached(path, Reader())
        path.write_text("CONTENT")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert read_cached(path, Reader())[0].names == ("CONTENT",)

    def test_another_file_with_the_same_content_names_itself(self, path: Path) -> None:
        read_cached(path, Reader())
        other = path.with_name("rank-3.json")
        other.write_text("content")
        assert read_cached(other, Reader())[0].source == str(other)

    @pytest.mark.parametrize("damage", [b"", b"diagnose-tables\n", b"x" * 1000])
    def test_what_is_damaged_is_not_used_and_is_replaced(self, path: Path, folder: Path, damage: bytes) -> None:
        read = Reader()
        first = read_cached(path, read)
        (kept,) = folder.iterdir()
        kept.write_bytes(damage)
        assert_same(read_cached(path, read)[0], first[0])
        assert_same(read_cached(path, read)[0], first[0])
        assert read.times == 2

    def test_another_version_reads_for_itself(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = Reader()
        read_cached(path, read)
        monkeypatch.setattr(cache, "_version", lambda: "another")
        read_cached(path, read)
        assert read.times == 2

    def test_the_longest_unused_goes_first(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = [tmp_path / f"{number}.json" for number in range(3)]
        for number, path in enumerate(paths):
            path.write_text("content")
            read_cached(path, Reader())
            newest = max(folder.iterdir(), key=lambda kept: kept.stat().st_mtime_ns)
            os.utime(newest, (number, number))
        read_cached(paths[0], Reader())  # used again
        size = next(folder.iterdir()).stat().st_size
        monkeypatch.setattr(cache, "MOST_BYTES", 2 * size + size // 2)
        fourth = tmp_path / "4.json"
        fourth.write_text("content")
        read_cached(fourth, Reader())
        assert [is_kept(path) for path in (*paths, fourth)] == [True, False, False, True]

    def test_what_fails_is_not_kept(self, path: Path, folder: Path) -> None:
        def refuse(path: Path) -> list[Trace]:
            raise NotATrace(path, "no")

        with pytest.raises(NotATrace):
            read_cached(path, refuse)
        assert not folder.exists()


def test_nothing_is_kept_of_what_is_read_at_once(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 1e9)
    read_cached(path, Reader())
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_costs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    monkeypatch.setenv("DIAGNOSE_CACHE", str(path / "below a file"))
    assert read_cached(path, Reader())[0].names == ("content",)


@pytest.mark.parametrize("word", ["off", "OFF", "0"])
def test_it_can_be_switched_off(path: Path, word: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", word)
    read_cached(path, Reader())
    assert not folder.exists()
    assert not Path(word).exists()


def test_it_lies_in_the_users_own_folder(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIAGNOSE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    read_cached(path, Reader())
    (kept,) = (tmp_path / "home" / "diagnose").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["trace.json"]


def test_traces_opened_from_the_cache_equal_those_read(tmp_path: Path, folder: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{i % 3}", "pid": 0, "tid": 7, "ts": i + 0.125, "dur": 1}
        for i in range(50)
    ]
    trace = tmp_path / "rank-2.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    (first,) = open_traces([trace])
    assert len(list(folder.iterdir())) == 1
    (second,) = open_traces([trace])
    assert len(first.device) == 50
    assert_same(first, second)
