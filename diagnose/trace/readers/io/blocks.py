"""A file's bytes in blocks, decompressed where it is gzip, with a limit on what a small file may swell to."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.errors import InputError
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.io.prefetch import prefetch
from diagnose.trace.readers.reader import HEAD_BYTES
from diagnose.units import format_bytes

BLOCK_BYTES = 4 << 20
"""Large enough that handing a block from the inflating thread costs nothing, small enough to stay in the cache."""
MOST_BYTES = 64 << 30
SUSPECT_BYTES = 1 << 30
SUSPECT_RATIO = 1000
"""Traces compress 13 to 17 times; zeros compress 1030 times."""

_GZIP_MAGIC = b"\x1f\x8b"
_INPUT_BYTES = 1 << 18
_RAW_DEFLATE = -zlib.MAX_WBITS


def _fastest_inflate() -> tuple[Any, tuple[type[Exception], ...]]:
    """isal inflates and sums up three to five times as fast as zlib; not every platform has a wheel of it."""
    try:
        isal = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib, (zlib.error,)
    return isal, (zlib.error, isal.error)


_INFLATE, _INFLATE_ERRORS = _fastest_inflate()


class Blocks:
    """Iterates over a file's bytes; once it is through, `damage` says in words what was wrong with the compression."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.path = path
        self.begin = begin
        """How many bytes (decompressed) are left out."""
        self.damage: str | None = None
        self._delivered = 0

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            if _is_gzip(file):
                yield from prefetch(_behind(self._inflated(file), self.begin))
            else:
                file.seek(self.begin)
                yield from prefetch(iter(partial(file.read, BLOCK_BYTES), b""))

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        try:
            for block in self._limited(_members(file, _INFLATE, BLOCK_BYTES), file):
                yield block
                self._delivered += len(block)
        except _INFLATE_ERRORS:
            file.seek(0)
            yield from self._rescued(file)
        except _Damaged as error:
            self.damage = str(error)

    def _rescued(self, file: BinaryIO) -> Iterator[bytes]:
        """Inflate a corrupt stream again in small pieces, so that only the last one is lost."""
        skip = self._delivered
        try:
            for piece in _members(file, zlib, 1 << 12):
                if skip < len(piece):
                    yield piece[skip:]
                skip = max(0, skip - len(piece))
        except (zlib.error, _Damaged) as error:
            self.damage = f"the compressed data are corrupt ({error})"

    def _limited(self, blocks: Iterator[bytes], file: BinaryIO) -> Iterator[bytes]:
        total = 0
        for block in blocks:
            total += len(block)
            swollen = total > at_most(SUSPECT_BYTES) and total > SUSPECT_RATIO * file.tell()
            if total > at_most(MOST_BYTES) or swollen:
                raise InputError(
                    self.path,
                    f"swells to more than {format_bytes(total)} from {format_bytes(file.tell())} of gzip, which no "
                    "trace does; decompress it yourself if you trust it",
                )
            yield block


class _Damaged(Exception):
    """The gzip container ends early or does not hold what it says."""


def read_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` of a file, decompressed. What cannot be decompressed is given back as it is."""
    with path.open("rb") as file:
        if not _is_gzip(file):
            return file.read(HEAD_BYTES)
        try:
            return next(_members(file, zlib, HEAD_BYTES), b"")
        except (zlib.error, _Damaged):
            return b""


def _is_gzip(file: BinaryIO) -> bool:
    magic = file.read(2)
    file.seek(0)
    return magic == _GZIP_MAGIC


def _members(file: BinaryIO, codec: Any, most: int) -> Iterator[bytes]:
    """The decompressed bytes of all members of a gzip file, at most `most` at a time.

    The container is taken apart here and the checksum compared here, because a codec that does it all throws the last
    block away when only the checksum is wrong.
    """
    data = file.read(_INPUT_BYTES)
    while data.startswith(_GZIP_MAGIC):
        stream = codec.decompressobj(_RAW_DEFLATE)
        data = data[_header_bytes(data) :]
        checksum = 0
        while not stream.eof:
            block = stream.decompress(data, most)
            checksum = codec.crc32(block, checksum)
            if block:
                yield block
            data = stream.unconsumed_tail
            if not data and not stream.eof:
                data = file.read(_INPUT_BYTES)
                if not data and not block:
                    raise _Damaged("the compressed file ends in the middle")
        data = stream.unused_data + file.read(_INPUT_BYTES)
        if data[:4] != checksum.to_bytes(4, "little"):
            raise _Damaged("the compressed file's checksum is wrong")
        data = data[8:].lstrip(b"\0")


def _header_bytes(data: bytes) -> int:
    """The length of a gzip member's header."""
    try:
        flags, at = data[3], 10
        if flags & 4:
            at += 2 + int.from_bytes(data[at : at + 2], "little")
        for flag in (8, 16):
            if flags & flag:
                at = data.index(0, at) + 1
    except (IndexError, ValueError):
        raise _Damaged("the compressed file ends within its header") from None
    return at + (2 if flags & 2 else 0)


def _behind(blocks: Iterator[bytes], begin: int) -> Iterator[bytes]:
    for block in blocks:
        if begin < len(block):
            yield block[begin:]
        begin = max(0, begin - len(block))


def read_whole(path: Path, most_bytes: int, remedy: str) -> bytes:
    """All of a file, decompressed, for formats that cannot be read in pieces.

    Raises InputError where it is damaged, or longer than `most_bytes`; `remedy` then says what to do.
    """
    pieces, total = [], 0
    blocks = Blocks(path)
    for block in blocks:
        pieces.append(block)
        total += len(block)
        if total > most_bytes:
            raise InputError(path, f"is longer than the {format_bytes(most_bytes)} that are read at once; {remedy}")
    if blocks.damage:
        raise InputError(path, f"cannot be read: {blocks.damage}")
    return b"".join(pieces)
