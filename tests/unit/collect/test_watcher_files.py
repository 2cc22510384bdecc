"""How the watcher writes its files inside of a program that does as it likes."""

from __future__ import annotations

import gzip
import resource
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.collect.inside.window import profiler_window
from diagnose.collect.inside.writer import Writer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Writes a line of its number at each flush."""
    numbers = iter(range(100))
    writer = Writer(tmp_path)
    writer.add(lambda: [("steps.jsonl", f"{next(numbers)}\n")])
    yield writer


def target(descriptor: Path) -> Path:
    """What an open descriptor leads to; the one that lists them is closed by then."""
    return descriptor.readlink() if descriptor.is_symlink() else descriptor


def test_no_descriptor_is_kept_that_the_program_could_close_and_be_given_anew(tmp_path: Path, writer: Writer) -> None:
    writer.flush()
    assert [path for path in map(target, Path("/proc/self/fd").iterdir()) if tmp_path in path.parents] == []
    writer.flush()
    assert (tmp_path / "steps.jsonl").read_text() == "0\n1\n"


def test_no_descriptor_is_open_while_a_trace_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Compressor:
        def __init__(self, level: int, wbits: int) -> None:
            self._real = zlib_compressobj(level, wbits=wbits)

        def compress(self, data: bytes) -> bytes:
            opened.append([path for path in map(target, Path("/proc/self/fd").iterdir()) if tmp_path in path.parents])
            return self._real.compress(data)

        def flush(self) -> bytes:
            return self._real.flush()

    opened: list[list[Path]] = []
    zlib_compressobj = zlib.compressobj
    monkeypatch.setattr(zlib, "compressobj", Compressor)
    text = b"0123456789" * 250_000
    (tmp_path / "plain").write_bytes(text)
    profiler_window._compress(tmp_path / "plain", tmp_path / "packed")
    assert opened == [[], [], []]
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == text


def test_a_limit_on_the_size_of_files_sends_the_program_no_signal(tmp_path: Path, writer: Writer) -> None:
    received: list[int] = []
    handler = signal.signal(signal.SIGXFSZ, lambda number, _: received.append(number))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "steps.jsonl").write_text("-" * 99 + "\n")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        writer.flush()
        with pytest.raises(OSError, match="File too large"):
            writer.write_json("facts.json", "-" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert received == []


def test_a_file_that_lost_a_part_of_a_line_gets_no_more(tmp_path: Path, writer: Writer) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.add(lambda: [("long.jsonl", "-" * 200 + "\n")])
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.flush()
    assert (tmp_path / "long.jsonl").read_text() == "-" * 100
    assert (tmp_path / "steps.jsonl").read_text() == "0\n1\n"


def test_a_file_that_may_lack_lines_goes_on_once_the_disk_takes_them(tmp_path: Path) -> None:
    writer, numbers = Writer(tmp_path, gaps=True), iter("abcd")
    writer.add(lambda: [("heartbeats.jsonl", next(numbers) * 40 + "\n")])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, limits[1]))
        for _ in range(3):  # the second is cut off, the third finds no room at all
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.flush()
    assert (tmp_path / "heartbeats.jsonl").read_text().splitlines() == ["a" * 40, "b" * 19, "d" * 40]
