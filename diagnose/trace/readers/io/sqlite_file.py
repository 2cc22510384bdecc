"""Opens an SQLite database that somebody else made: read-only, unchanged, and trusting nothing in its schema.

Only ordinary tables are read, and only columns that are asked for by name: a view or a virtual table may run whatever
its author liked, and some columns (environments, command lines) are nobody's business.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.trace.readers.io.blocks import Blocks, read_head

MAGIC = b"SQLite format 3\0"
BATCH_ROWS = 50_000
LONGEST_VALUE_BYTES = 16 << 20

_CREATED = re.compile(rb"CREATE TABLE\s+(?:IF NOT EXISTS\s+)?[\"'`\[]?(\w+)", re.IGNORECASE)

Columns = tuple[tuple[Any, ...], ...]


class Database:
    """The ordinary tables of an open database and their columns."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        listed = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables: dict[str, tuple[str, ...]] = {}
        for name, sql in listed:
            if isinstance(name, str) and not str(sql).lstrip().upper().startswith("CREATE VIRTUAL"):
                self.tables[name] = self._columns_of(name)

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with all these columns."""
        return set(columns) <= set(self.tables.get(table, ()))

    def batches(self, table: str, columns: Sequence[str | None], where: str = "") -> Iterator[Columns]:
        """The columns of a table, `BATCH_ROWS` rows at a time; one that is None or not there is all None.

        `where` is SQL of the caller's own making.
        """
        there = self.tables.get(table, ())
        chosen = ", ".join(quote_name(name) if name in there else "NULL" for name in columns)
        yield from self.query(f"SELECT {chosen} FROM {quote_name(table)} {where}")

    def query(self, sql: str) -> Iterator[Columns]:
        """The columns that a query of the caller's own making gives, `BATCH_ROWS` rows at a time."""
        cursor = self._connection.execute(sql)
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield tuple(zip(*rows, strict=True))

    def mapping(self, table: str, key: str, value: str) -> dict[Any, Any]:
        """One column by another; empty where the table has not both."""
        if not self.has(table, key, value):
            return {}
        found: dict[Any, Any] = {}
        for keys, values in self.batches(table, (key, value)):
            found.update(zip(keys, values, strict=True))
        return found

    def _columns_of(self, table: str) -> tuple[str, ...]:
        return tuple(str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({quote_name(table)})"))


def quote_name(name: str) -> str:
    """A name as SQL spells it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """The database in a file, gzip or not. What SQLite cannot read becomes an InputError."""
    try:
        with _plain(path) as plain, closing(_connection(plain)) as connection:
            yield Database(connection)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise InputError(path, f"is an SQLite database that cannot be read ({error}); record it again") from error


def table_names(path: Path) -> frozenset[str]:
    """The names of a database's tables, for telling formats apart; empty where it is none or cannot be read.

    Of a compressed one only the head is looked at, which begins with the schema.
    """
    with path.open("rb") as file:
        plain = file.read(len(MAGIC)) == MAGIC
    if not plain:
        head = read_head(path)
        found = _CREATED.findall(head) if head.startswith(MAGIC) else []
        return frozenset(name.decode("ascii", "replace") for name in found)
    try:
        with open_database(path) as database:
            return frozenset(database.tables)
    except InputError:
        return frozenset()


def _connection(path: Path) -> sqlite3.Connection:
    # immutable: no locks and no journal beside somebody else's file. The path is quoted by as_uri. Numbers are fetched
    # in a thread beside the one that parses them.
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    # Not every text in such files is UTF-8.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


@contextmanager
def _plain(path: Path) -> Iterator[Path]:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        plain = Path(folder) / "database"
        blocks = Blocks(path)
        with plain.open("wb") as file:
            for block in blocks:
                file.write(block)
        if blocks.damage:
            raise InputError(path, f"{blocks.damage}; a database cannot be read in part")
        yield plain
