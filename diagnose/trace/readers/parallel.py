"""Reads large files side by side, each in a process of its own.

    ahead = read_ahead(paths, open_file)      # {path: its traces}, as far as other processes could read them

The result and the errors are those of reading one after another: what fails here in any way is left out, and whoever
asked reads it again and sees why. Small files are left out, too: starting a process takes as long as reading 50 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import DiagnoseError
from diagnose.trace import Trace
from diagnose.trace.packed_columns import NotPacked, pack, unpack_traces
from diagnose.trace.readers.io.reader_processes import (
    START_BYTES,
    Child,
    cores,
    estimated_bytes,
    hand_back,
    process,
    sharing,
)

Read = Callable[[Path], list[Trace]]
Progress = Callable[[int, int], object]
"""Told how many files have been read, of how many."""

LARGE_BYTES = 16 << 20
WORTH_BYTES = 64 << 20
"""The least size beside the largest file for which another process gains anything."""
_LOOK_EVERY_S = 0.2


@dataclass
class _Share:
    """The part of a recording that one process reads."""

    size_bytes: int
    paths: list[Path] = field(default_factory=list)


def no_progress(done: int, total: int) -> None:
    """No-op progress callback."""


def read_ahead(paths: Sequence[Path], read: Read, progress: Progress = no_progress) -> dict[Path, list[Trace]]:
    """The traces of those files that are worth a process of their own; this process takes its share of them."""
    mine, *others = _shares({path: estimated_bytes(path) for path in paths}, cores())
    if not others or not sys.executable:
        return {}
    ahead: dict[Path, list[Trace]] = {}
    with sharing(1 + len(others)), ExitStack() as stack:
        jobs = [[str(path) for path in share.paths] for share in others]
        children = [stack.enter_context(process(__name__, job, len(job))) for job in jobs]

        def tell() -> None:
            progress(len(ahead) + sum(child.finished() for child in children), len(paths))

        for path, traces in _read(mine.paths, read):
            ahead[path] = traces
            tell()
        while not all(child.ended_within(_LOOK_EVERY_S) for child in children):
            tell()
        received = [_received(share.paths, child) for share, child in zip(others, children, strict=True)]
        ahead |= {path: traces for pairs in received for path, traces in pairs}
    progress(len(paths), len(paths))
    return ahead


def is_large(path: Path) -> bool:
    """Whether a file is large enough to be thought about."""
    return estimated_bytes(path) >= LARGE_BYTES


def serve(job: list[str], files: list[int]) -> None:
    """Run a reader process: read each file and write its traces to the file that was handed to it."""
    from diagnose.trace.readers import open_file  # which imports this module

    for path, file in zip(map(Path, job), files, strict=True):
        for _, traces in _read([path], open_file):
            hand_back(file, pack(traces))


def _shares(sizes: dict[Path, int], processes: int) -> list[_Share]:
    """Files over processes, the first being this one, so that all end at about the same time."""
    large = sorted(sizes, key=lambda path: -sizes[path])
    if sum(sizes[path] for path in large[1:]) < WORTH_BYTES:
        return [_Share(0)]
    shares = [_Share(START_BYTES if number else 0) for number in range(min(processes, len(large)))]
    for path in large:
        least = min(shares, key=lambda share: share.size_bytes)
        least.paths.append(path)
        least.size_bytes += sizes[path]
    return shares


def _read(paths: Sequence[Path], read: Read) -> Iterator[tuple[Path, list[Trace]]]:
    for path in paths:
        with suppress(DiagnoseError, OSError):
            yield path, read(path)


def _received(paths: Sequence[Path], child: Child) -> Iterator[tuple[Path, list[Trace]]]:
    for number, path in enumerate(paths):
        packed = child.result(number)
        with suppress(NotPacked):
            if packed is not None:
                yield path, unpack_traces(packed)
