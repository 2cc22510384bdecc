"""Plain data with numpy columns as bytes, and back: what one process hands to another, and what the cache keeps.

    mark, length of the head, head (msgpack: everything but the columns), columns as they lie in memory, checksum

The bytes are for the same version on the same kind of machine, so nothing is converted. A column that says the same
in every row, and many do, is kept as one value.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from mmap import mmap
from typing import Any, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.trace import Trace
from diagnose.trace.schema import Table

_MARK = b"diagnose-tables\n"
_ALIGNED_BYTES = 64
_COLUMN = 1
"""The code of a column among msgpack's extensions."""


class NotPacked(Exception):
    """Raised for bytes that `pack` did not make, or that are damaged."""


class _Column(msgspec.Struct, array_like=True):
    dtype: str
    rows: int
    at: int = 0
    """The offset of its bytes behind the head."""
    value: int | float | None = None
    """The value of every row; None where they differ."""


def pack(data: Any) -> Iterator[bytes | memoryview]:
    """The bytes of some data (dataclasses, containers, numpy columns), piece by piece."""
    columns = _Columns()
    head = msgspec.msgpack.encode(data, enc_hook=columns.put)
    checksum = 0
    fill = _fill(len(_MARK) + 8 + len(head))
    for piece in (_MARK, len(head).to_bytes(8, "little"), head, fill, *columns.pieces()):
        checksum = zlib.crc32(piece, checksum)
        yield piece
    yield checksum.to_bytes(4, "little")


def unpack(data: bytearray | mmap) -> Any:
    """Return the packed object, with dicts for dataclasses and columns that are views of `data`. Raises NotPacked."""
    view, at = memoryview(data), len(_MARK) + 8
    if view[: len(_MARK)] != _MARK or zlib.crc32(view[:-4]).to_bytes(4, "little") != view[-4:]:
        raise NotPacked
    end = at + int.from_bytes(view[at - 8 : at], "little")
    columns = end + len(_fill(end))

    def column(_: int, described: memoryview) -> npt.NDArray[Any]:
        one = msgspec.msgpack.decode(described, type=_Column)
        if one.value is not None:
            return np.full(one.rows, one.value, one.dtype)
        return np.frombuffer(data, one.dtype, one.rows, columns + one.at)

    try:
        return msgspec.msgpack.decode(view[at:end], ext_hook=column)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise NotPacked from error


def unpack_traces(data: bytearray | mmap) -> list[Trace]:
    """The traces that were packed as a list. Raises NotPacked."""
    try:
        return [_trace(described) for described in unpack(data)]
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise NotPacked from error


def _trace(described: dict[str, Any]) -> Trace:
    values = {}
    for name, kind in get_type_hints(Trace).items():
        table = isinstance(kind, type) and issubclass(kind, Table)
        values[name] = kind.build(described[name]) if table else msgspec.convert(described[name], kind)
    return Trace(**values)


class _Columns:
    """Columns on their way out, in the order in which the head names them."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[Any]] = []
        self._size_bytes = 0

    def put(self, array: Any) -> msgspec.msgpack.Ext:
        """Take a column; what stands for it in the head."""
        if not isinstance(array, np.ndarray):
            raise NotImplementedError(f"a {type(array).__name__} cannot be packed")
        one = _Column(array.dtype.str, len(array))
        if one.rows and (array == array[0]).all():
            one.value = array[0].item()
        else:
            one.at = self._size_bytes
            self._arrays.append(array)
            self._size_bytes += array.nbytes + len(_fill(array.nbytes))
        return msgspec.msgpack.Ext(_COLUMN, msgspec.msgpack.encode(one))

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The columns' bytes."""
        for array in self._arrays:
            yield np.ascontiguousarray(array).view(np.uint8).data
            yield _fill(array.nbytes)


def _fill(size_bytes: int) -> bytes:
    """Return the padding after so many bytes that aligns what comes next."""
    return b"\0" * (-size_bytes % _ALIGNED_BYTES)
