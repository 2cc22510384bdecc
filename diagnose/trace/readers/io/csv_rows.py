"""The rows of a CSV of any size, gzip or not, in batches; whatever is broken in it is counted."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from diagnose.errors import InputError
from diagnose.trace.readers.io.blocks import Blocks

LONGEST_LINE_BYTES = 1 << 20
BATCH_ROWS = 20_000


class CsvRows:
    """Iterates over the batches of a table's rows; once through, the losses are known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None
        """The error that ended the reading too early."""

    def __iter__(self) -> Iterator[list[list[str]]]:
        batch: list[list[str]] = []
        try:
            for row in csv.reader(self._lines()):
                batch.append(row)
                if len(batch) >= BATCH_ROWS:
                    yield batch
                    batch = []
        except csv.Error as error:
            self.damage = f"is no valid CSV from some row on ({error}); the rows before it were read"
        if batch:
            yield batch

    def _lines(self) -> Iterator[str]:
        blocks = Blocks(self.path)
        for line in _split(blocks, self.path):
            # NUL bytes end a string in csv's eyes, and mean nothing in text.
            yield line.decode("utf-8", "replace").replace("\0", "")
        if blocks.damage:
            self.damage = f"{blocks.damage}; what could be read until there was used"


def first_row(head: bytes) -> list[str]:
    """The first row of a table, from the file's first bytes; empty where there is none."""
    line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    try:
        return next(csv.reader([line.decode("utf-8", "replace").replace("\0", "")]), [])
    except csv.Error:
        return []


def _split(blocks: Iterable[bytes], path: Path) -> Iterator[bytes]:
    rest = b""
    for number, block in enumerate(blocks):
        lines = (rest + (block.removeprefix(b"\xef\xbb\xbf") if number == 0 else block)).split(b"\n")
        rest = lines.pop()
        if len(rest) > LONGEST_LINE_BYTES:
            raise InputError(path, f"has a line of more than {LONGEST_LINE_BYTES} bytes, so it is no table")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest
