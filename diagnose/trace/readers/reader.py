"""The interface of a file format: how it is recognised, and how it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.trace import Trace
from diagnose.trace.schema import Table

HEAD_BYTES = 1 << 16
"""How much of a file, decompressed, a format may look at to recognise it."""


_RANK_IN_NAME = re.compile(r"(?:^|[._-])(?:rank|worker)[._-]?(\d+)(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Reader:
    """One trace format. A module of this package that ends in `READER = Reader(...)` adds it."""

    name: str
    sniffs: Callable[[bytes, Path], bool]
    """Whether the first `HEAD_BYTES` of a file (decompressed) are of this format; names decide nothing."""
    read: Callable[[Path], list[Trace]]
    """One trace for each rank in the file. Raises InputError where there is nothing to be had."""
    read_together: Callable[[Sequence[Path]], list[Trace]] | None = None
    """Reads files that were given together, where a recording may be spread over several; None where it never is."""


def window_of(tables: Sequence[Table]) -> tuple[int, int] | None:
    """Return first start and last end of tables that are sorted by start; None where all are empty."""
    filled: list[Any] = [table for table in tables if len(table)]
    if not filled:
        return None
    return int(min(table.start_ns[0] for table in filled)), int(max(table.end_ns.max() for table in filled))


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name gives: `rank-34.…`, `worker7_step_12.…`, `profile_rank_0.json.gz`."""
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match and len(match[1]) < 10 else None
