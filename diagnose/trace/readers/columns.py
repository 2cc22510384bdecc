"""Columns that grow chunk by chunk, and numbers for what repeats in them: names, texts, threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.trace.readers.kineto.events import ABSENT, Scalar
from diagnose.trace.schema import MISSING, Float32, Int64, Table, narrow


class Interned(dict[Any, int]):
    """Gives every new key the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class ThreadIds(dict[Scalar, "_Process"]):
    """Numbers threads by process and thread, however the two are spelled."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: Interned = Interned()
        """(pid, tid) as numbers, or as text where they are none."""

    def __missing__(self, pid: Scalar) -> _Process:
        self[pid] = process = _Process(_plain(pid), self.threads)
        return process

    def numbers(self, pids: list[Scalar], tids: list[Scalar]) -> Int64:
        """The number of each event's thread."""
        if pids.count(pids[0]) == len(pids):
            return np.fromiter(map(self[pids[0]].__getitem__, tids), np.int64, len(tids))
        return np.fromiter((self[pid][tid] for pid, tid in zip(pids, tids, strict=True)), np.int64, len(tids))


class _Process(dict[Scalar, int]):
    """The threads of one process."""

    def __init__(self, pid: Scalar, threads: Interned) -> None:
        super().__init__()
        self._pid, self._threads = pid, threads

    def __missing__(self, tid: Scalar) -> int:
        self[tid] = number = self._threads[self._pid, _plain(tid)]
        return number


class Texts(dict[bytes, int]):
    """Numbers JSON texts; an absent one has the number `MISSING`."""

    def __init__(self) -> None:
        super().__init__({b"": MISSING})

    def __missing__(self, text: bytes) -> int:
        self[text] = number = len(self) - 1
        return number

    def known(self) -> list[bytes]:
        """The texts, each at its number."""
        return list(self)[1:]

    def numbers(self, raws: Sequence[Raw]) -> Int64 | int:
        """The number of each text; of all together where none is there."""
        if not [raw for raw in raws if raw is not ABSENT]:
            return MISSING
        return np.fromiter(map(self.__getitem__, map(bytes, raws)), np.int64, len(raws))


class Growing:
    """Rows of a table, in arrays of its columns' types that grow as they fill."""

    def __init__(self, table: type[Table]) -> None:
        self.table = table
        self.rows = 0
        self._dtypes = {spec.name: spec.metadata["dtype"] for spec in table.columns()}
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def append(self, rows: int, **columns: npt.NDArray[Any] | int) -> None:
        """Add rows; every call names the same columns."""
        end = self.rows + rows
        for name, values in columns.items():
            held = self._columns.get(name)
            if held is None:
                held = self._columns[name] = np.empty(max(256, end), self._dtypes[name])
            elif len(held) < end:
                held.resize(max(end, len(held) + len(held) // 2), refcheck=False)
            held[self.rows : end] = values
        self.rows = end

    def plain(self) -> dict[str, npt.NDArray[Any]]:
        """The columns that were ever filled."""
        return {name: held[: self.rows] for name, held in self._columns.items()}

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column's rows so far."""
        return self._columns[name][: self.rows] if self.rows else np.empty(0, self._dtypes[name])

    def take_sorted(self) -> dict[str, npt.NDArray[Any]]:
        """The columns, ordered by start; they are given away one by one, so that nothing is held twice."""
        order = np.argsort(self.column("start_ns"), kind="stable")
        ids = {spec.name for spec in self.table.columns() if spec.metadata["is_narrowed"]}

        def taken(name: str) -> npt.NDArray[Any]:
            held = self._columns.pop(name)[: self.rows]
            return (narrow(held) if name in ids else held)[order]

        return {name: taken(name) for name in list(self._columns)}

    def build(self, base_ns: int = 0, kinds: npt.NDArray[np.uint8] | None = None) -> Any:
        """The table of these rows, ordered by start, with `base_ns` added to their times; the rows are given away.

        `kinds` are the kinds of ranges by their names.
        """
        if not self.rows:
            return self.table.build()
        columns = self.take_sorted()
        columns["start_ns"] += base_ns
        columns["end_ns"] += base_ns
        if kinds is not None:
            columns["kind"] = kinds[columns["name"]]
        return self.table.build(columns)


def _plain(part: Scalar) -> Scalar:
    """A process or thread id as a number where it is one, however it is written."""
    number = _id_of(part)
    return part if number == MISSING else number


def ids_of(values: Sequence[Scalar]) -> Int64:
    """Ids and sizes as int64; text is read as a number, and what is none is `MISSING`."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((_id_of(value) for value in values), np.int64, len(values))


def amounts_of(values: Sequence[Scalar]) -> Float32:
    """Amounts, none of them negative, as float32; what is no finite number is `MISSING`."""
    try:
        amounts = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        amounts = np.fromiter(map(_amount_of, values), np.float64, len(values))
    with np.errstate(over="ignore"):
        small = amounts.astype(np.float32)
    return np.where(np.isfinite(small) & (small >= 0), small, np.float32(MISSING))


def _amount_of(value: Scalar) -> float:
    try:
        return float(value) if value is not None else MISSING
    except (ValueError, OverflowError):
        return MISSING


def _id_of(value: Scalar) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value) if value is not None else MISSING
    except (ValueError, OverflowError):
        return MISSING
    if 1 << 63 <= number < 1 << 64:
        return number - (1 << 64)  # an unsigned id keeps its identity
    return number if -(1 << 63) <= number < 1 << 63 else MISSING
