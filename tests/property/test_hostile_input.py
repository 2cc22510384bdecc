"""Whatever is given, the answer is traces or one sentence: never another exception, never an empty message."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import DiagnoseError, InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.io import blocks
from diagnose.trace.readers.kineto import chunks
from diagnose.trace.readers.kineto.torch_profiler import read


def document() -> bytes:
    """A small trace with one of everything."""
    host, device = {"ph": "X", "pid": 1, "tid": 2}, {"ph": "X", "pid": 0, "tid": 7}
    op = {"External id": 1, "Input Dims": [[2, 3], []], "Input type": ["float"], "Sequence number": 4}
    kernel = {"device": 0, "stream": 7, "correlation": 7, "dtype": "Float"}
    collective = {"Collective name": "allreduce", "In msg nelems": 8}
    launch = {"correlation": 7, "External id": 1}
    copy = "Memcpy HtoD (Pageable -> Device)"
    events: list[dict[str, object] | None] = [
        {**host, "cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": 9.25, "args": op},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1, "args": launch},
        {"ph": "s", "id": 7, "pid": 1, "tid": 2, "ts": 2, "cat": "ac2g", "name": "ac2g"},
        {**device, "cat": "kernel", "name": "gemm<}, {>", "ts": 5.125, "dur": 3.5, "args": {**kernel, **collective}},
        {**device, "cat": "gpu_memcpy", "name": copy, "ts": 9, "dur": 1, "args": {"bytes": 12}},
        None,
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread 2"}},
        {**host, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 20},
    ]
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU", "computeMajor": 9, "computeMinor": 0}],
        "distributedInfo": {"rank": 1, "world_size": 2},
        "baseTimeNanoseconds": 1711964646000000000,
    }
    return json.dumps({**header, "traceEvents": events, "traceName": "t"}, indent=1).encode()


def outcome(path: Path, chunk_bytes: int | None = None) -> list[Trace] | str:
    try:
        return open_traces([path]) if chunk_bytes is None else read(path, chunk_bytes)
    except DiagnoseError as error:
        assert str(error).strip()
        assert "\n" not in str(error).removeprefix(str(path))
        return str(error)


DOCUMENT = document()
PIECES = [
    b"}, {",
    b'"',
    b"\\",
    b"NaN",
    b"1e999",
    b"null",
    b"\x00",
    b"\xff",
    b"[[[[",
    b"]",
    b"}",
    b'"ph":"X"',
    b"9" * 400,
]


@settings(max_examples=300)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, len(DOCUMENT)), st.integers(0, 60), st.sampled_from([b"", *PIECES])), max_size=4
    ),
    end=st.integers(0, len(DOCUMENT)) | st.none(),
    chunk_bytes=st.sampled_from([1, 50, 300, 400_000]),
    squeeze=st.booleans(),
)
def test_mutated_and_truncated_documents(
    tmp_path_factory: pytest.TempPathFactory,
    cuts: list[tuple[int, int, bytes]],
    end: int | None,
    chunk_bytes: int,
    squeeze: bool,
) -> None:
    data = DOCUMENT[:end]
    for at, length, piece in cuts:
        data = data[:at] + piece + data[at + length :]
    path = tmp_path_factory.mktemp("mutated") / "trace.json"
    path.write_bytes(gzip.compress(data, 1) if squeeze else data)
    outcome(path)
    outcome(path, chunk_bytes)


@settings(max_examples=100)
@given(data=st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(data)
    outcome(path)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")


@settings(max_examples=150)
@given(
    header=st.dictionaries(
        st.sampled_from(["schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"]), _values
    ),
    fields=st.lists(st.dictionaries(st.sampled_from(_KEYS), _values, max_size=5), max_size=4),
    args=st.dictionaries(
        st.sampled_from(
            ["External id", "correlation", "stream", "device", "bytes", "Input Dims", "Collective name", "dtype"]
        ),
        _values,
    ),
    category=st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "python_function", "user_annotation"]),
)
def test_values_of_any_type(
    tmp_path_factory: pytest.TempPathFactory,
    header: dict[str, object],
    fields: list[dict[str, object]],
    args: dict[str, object],
    category: str,
) -> None:
    sound = {"ph": "X", "cat": category, "name": "n", "pid": 1, "tid": 2, "ts": 1, "dur": 1}
    events = [{**sound, **field} for field in fields] + [{**sound, "args": args}, sound]
    path = tmp_path_factory.mktemp("values") / "trace.json"
    path.write_text(json.dumps({**header, "traceEvents": events}))
    traces = outcome(path)
    assert isinstance(traces, list)  # the last event is sound


@settings(max_examples=60)
@given(end=st.integers(0, 600), flips=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 255)), max_size=2))
def test_damaged_compression(tmp_path_factory: pytest.TempPathFactory, end: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(gzip.compress(DOCUMENT, mtime=0))
    for at, mask in flips:
        if at < len(data):
            data[at] ^= mask
    path = tmp_path_factory.mktemp("gzip") / "trace.json.gz"
    path.write_bytes(bytes(data[:end]) if end < 500 else bytes(data))
    outcome(path)


def noise(events: int) -> bytes:
    rng = random.Random(1)
    one = '{{"ph":"X","cat":"cpu_op","name":"op {}","pid":1,"tid":1,"ts":{},"dur":1}}'
    return ('{"traceEvents":[' + ",".join(one.format(rng.random(), i) for i in range(events)) + "]}").encode()


def test_a_truncated_gzip_file_gives_what_was_before_the_end(tmp_path: Path) -> None:
    data = gzip.compress(noise(20_000))
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data[: len(data) // 2])
    (trace,) = open_traces([path])
    assert 8_000 < len(trace.ops) < 12_000
    assert "ends in the middle" in trace.warnings[0]


def test_a_gzip_file_with_a_corrupt_middle_gives_what_was_before(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(noise(20_000), compresslevel=0))
    at = 10  # behind the header; each stored block is a byte of type, two lengths, and the bytes themselves
    while at < len(data) // 2:
        at += 5 + int.from_bytes(data[at + 1 : at + 3], "little")
    data[at] = 0b111  # no such type of block
    path = tmp_path / "trace.json.gz"
    path.write_bytes(bytes(data))
    (trace,) = open_traces([path])
    assert 8_000 < len(trace.ops) < 14_000
    assert "the compressed data are corrupt" in trace.warnings[0]


def test_a_wrong_checksum_costs_nothing(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(noise(1000)))
    data[-8] ^= 1
    path = tmp_path / "trace.json.gz"
    path.write_bytes(bytes(data))
    (trace,) = open_traces([path])
    assert len(trace.ops) == 1000
    assert "checksum is wrong" in trace.warnings[0]


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SUSPECT_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + b" " * (40 << 20) + b"]}"))
    with pytest.raises(InputError, match="swells"):
        open_traces([path])


def test_events_that_never_end_are_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LONGEST_HEADER_BYTES", 1 << 16)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 14)
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[{"ph":"X","name":"' + b"a" * (1 << 20))
    with pytest.raises(NotATrace, match="damaged"):
        read(path, 1000)


def test_deep_nesting(tmp_path: Path) -> None:
    sound = b'{"ph":"X","cat":"cpu_op","name":"op","ts":1,"dur":1}'
    path = tmp_path / "trace.json"
    path.write_bytes(
        b'{"traceEvents":[' + sound + b',{"args":' + b"[" * 200_000 + b"]" * 200_000 + b"}," + sound + b"]}"
    )
    assert outcome(path)


def database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table StringIds (id, value)")
    connection.commit()
    connection.close()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty.json": (b"", "empty"),
    "blank.json": (b" \n", "empty"),
    "empty.json.gz": (gzip.compress(b""), "empty"),
    "pointer.json": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "git lfs pull"),
    "twice.json.gz": (gzip.compress(gzip.compress(DOCUMENT)), "gzip within gzip"),
    "snapshot.pickle": (b"\x80\x04\x95\x01\x00", "pickle"),
    "report.nsys-rep": (b"\x02\x00\x01NVIDIA\x00\x01", "Nsight Systems"),
    "old.qdrep": (b"\x00\x00\x10\x02", "Nsight Systems"),
    "recording.pftrace": (b"\x0aV2N\x10\x06\x0a\x0a\x08\x06\x10\xf1\x00\x01", "protobuf"),
    "losses.csv": (b"epoch,loss,accuracy\n1,2,3\n", "comma-separated"),
    "log.jsonl": (b'{"step": 1}\n{"step": 2}\n', "an object on each line"),
    "letter.txt": (b"Dear reader, here, at last,\nis the loss.\n", "plain text"),
    "notes.txt": (b"loss went down\n", "plain text"),
    "object.json": (b'{"a": 1}', "no traceEvents"),
    "number.json": (b"[1, 2, 3]", "no traceEvents"),
    "execution.json": (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 3, "nodes": []}', "execution trace"),
    "timeline.json": (b"[[1, 2], [[3, 4]]]", "memory timeline"),
    "rocprof.json": (b'{"rocprofiler-sdk-tool": [{"metadata": {"ph": 1}}]}', "rocprofv3"),
    "wide.json": ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
    "noise": (bytes(range(256)), "binary"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_trace_is_named(tmp_path: Path, name: str) -> None:
    content, words = FOREIGN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(NotATrace, match=words):
        open_traces([path])


def test_a_database_is_named(tmp_path: Path) -> None:
    database(tmp_path / "report.sqlite")
    with pytest.raises(NotATrace, match="SQLite"):
        open_traces([tmp_path / "report.sqlite"])


def test_an_archive_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("data", "x")
    with pytest.raises(NotATrace, match="zip archive"):
        open_traces([tmp_path / "model.pt"])


def test_a_device_is_no_file() -> None:
    with pytest.raises(InputError, match="neither a file nor a folder"):
        open_traces([Path("/dev/null")])
