"""Reads whole-number columns of an SQLite table into arrays, several times as fast as row by row.

Making a Python tuple and an integer object for every cell is what reading rows costs. Here SQLite itself strings the
numbers of a few thousand rows together, one text a column, and numpy reads the text while SQLite is at the next ones.
What is no whole number in a stretch shows in its greatest value and in the counts: that stretch alone is read again
with care.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from diagnose.trace.readers.io.prefetch import prefetch
from diagnose.trace.readers.io.sqlite_file import Database, quote_name
from diagnose.trace.schema import Int64

ABSENT = -(1 << 63)
"""Stands for NULL, for what is no number, and for every value of a column that the table lacks."""

_STRETCH_ROWS = 1 << 13
"""Texts of this many rows stay in the processor's cache."""

_LEAST_ROW_BYTES = 5
"""A row takes at least this much of a file; a table with more rows than that walks in circles."""

_ROW_NUMBERS = ("rowid", "_rowid_", "oid")


class Damaged(Exception):
    """A table cannot be read any further; the message says why."""


def numbers(database: Database, table: str, columns: Sequence[str]) -> Iterator[tuple[Int64, ...]]:
    """The columns of a table as int64, some thousand rows at a time, in the order of the rows.

    A column that the table lacks is all `ABSENT`. Fractions are cut off. Raises Damaged in the middle of a table that
    SQLite cannot read to its end; what came before it is sound.
    """
    there = database.tables.get(table, ())
    chosen = [name for name in columns if name in there]
    order = next((name for name in _ROW_NUMBERS if name not in {column.lower() for column in there}), None)
    if not chosen or order is None:
        return
    try:
        with closing(prefetch(_stretches(database, table, chosen, order))) as stretches:
            for stretch in stretches:
                values = _parsed(stretch) or _carefully(database, chosen, stretch.source)
                absent = np.full(stretch.rows, ABSENT, np.int64)
                by_name = dict(zip(chosen, values, strict=True))
                yield tuple(by_name.get(name, absent) for name in columns)
    except sqlite3.Error as error:
        raise Damaged(str(error)) from error


def most_rows(database: Database) -> int:
    """More rows than the file can hold in one table; one that has them leads into itself."""
    return file_bytes(database) // _LEAST_ROW_BYTES


def file_bytes(database: Database) -> int:
    """The size of the database's file."""
    return _one(database, "PRAGMA page_count") * _one(database, "PRAGMA page_size")


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Some rows of a table, as SQLite strings them together."""

    source: str
    """SQL that names the rows."""
    rows: int
    columns: tuple[tuple[str | None, str], ...]
    """Per column, its numbers with commas between them, NULLs left out, and the type of the greatest."""


def _stretches(database: Database, table: str, columns: Sequence[str], order: str) -> Iterator[_Stretch]:
    most, source = most_rows(database), quote_name(table)
    texts = ", ".join(f"group_concat({name}), typeof(max({name}))" for name in map(quote_name, columns))
    last, read = None, 0
    while True:
        after = "" if last is None else f"WHERE {order} > {last}"
        end = _first(
            database, f"SELECT {order} FROM {source} {after} ORDER BY {order} LIMIT 1 OFFSET {_STRETCH_ROWS - 1}"
        )
        bounds = [f"{order} > {last}"] if last is not None else []
        bounds += [f"{order} <= {end}"] if end is not None else []
        these = f"{source} WHERE {' AND '.join(bounds)}" if bounds else source
        *listed, rows = _row(database, f"SELECT {texts}, count(*) FROM {these}")
        if rows:
            yield _Stretch(these, rows, tuple(zip(listed[::2], listed[1::2], strict=True)))
        read += rows
        if read > most:
            raise Damaged("it has more rows than the file can hold")
        if end is None:
            return
        if last is not None and end <= last:
            raise Damaged("its rows are in no order")
        last = end


def _parsed(stretch: _Stretch) -> list[Int64] | None:
    """The numbers of a stretch, or None where one of its columns does not hold numbers throughout, or none at all."""
    values = []
    for text, greatest in stretch.columns:
        # Text may spell a number, or with a comma two of them; but in SQLite's order it is greater than any number.
        if greatest not in ("integer", "null"):
            return None
        value = np.full(stretch.rows, ABSENT, np.int64) if text is None else _numbers_in(text)
        if value is None or len(value) != stretch.rows:
            return None
        values.append(value)
    return values


def _numbers_in(text: str) -> Int64 | None:
    """The numbers in a text, or None where something in it is no whole number: there numpy stops, and only warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text, np.int64, sep=",") if text else None
        except (DeprecationWarning, ValueError):
            return None


def _carefully(database: Database, columns: Sequence[str], source: str) -> list[Int64]:
    """Read the columns with `ABSENT` for whatever is no number."""
    texts = ", ".join(
        f"group_concat(CASE WHEN typeof({name}) IN ('integer', 'real') THEN CAST({name} AS INTEGER) ELSE {ABSENT} END)"
        for name in map(quote_name, columns)
    )
    return [np.fromstring(text, np.int64, sep=",") for text in _row(database, f"SELECT {texts} FROM {source}")]


def _row(database: Database, sql: str) -> tuple[Any, ...]:
    return next(tuple(column[0] for column in columns) for columns in database.query(sql))


def _first(database: Database, sql: str) -> int | None:
    return next((int(columns[0][0]) for columns in database.query(sql)), None)


def _one(database: Database, sql: str) -> int:
    return _first(database, sql) or 0
