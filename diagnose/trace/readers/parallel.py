"""Reads large files side by side, each in a process of its own: decoding holds Python's lock, so threads do not help.

    ahead = read_ahead(paths, open_file)      # {path: its traces}, as far as other processes could read them

The result and the errors are those of reading one after another: what fails here in any way is left out, and whoever
asked reads it again and sees why. Small files are left out, too: starting a process takes as long as reading 50 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

import diagnose
from diagnose.errors import DiagnoseError
from diagnose.trace import Trace
from diagnose.trace.packed import NotPacked, pack, unpack_traces

Read = Callable[[Path], list[Trace]]

LARGE_BYTES = 16 << 20
WORTH_BYTES = 64 << 20
"""With less than this beside the largest file, nothing is gained."""
START_BYTES = 50 << 20
"""What could be read in the time that a process takes to start."""
MOST_PROCESSES = 16
_GZIP_RATIO = 13

_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from diagnose.trace.readers import open_file
from diagnose.trace.readers.parallel import serve
serve(open_file, sys.argv[2])
"""


@dataclass
class _Share:
    """What one process reads."""

    size_bytes: int
    paths: list[Path] = field(default_factory=list)


def read_ahead(paths: Sequence[Path], read: Read) -> dict[Path, list[Trace]]:
    """The traces of those files that are worth a process of their own; this process takes its share of them."""
    mine, *others = _shares({path: _estimated_bytes(path) for path in paths}, _cores())
    if not others or not sys.executable:
        return {}
    with ExitStack() as stack:
        results = [stack.enter_context(_process(share)) for share in others]
        ahead = dict(_read(mine.paths, read))
        for share, (process, files) in zip(others, results, strict=True):
            process.wait()
            ahead |= dict(_received(share.paths, files))
    return ahead


def is_large(path: Path) -> bool:
    """Whether a file is large enough to be thought about."""
    return _estimated_bytes(path) >= LARGE_BYTES


def serve(read: Read, job: str) -> None:
    """What a process does: read each file, write its traces to the file that was handed to it."""
    for path, number in json.loads(job):
        for _, traces in _read([Path(path)], read):
            with open(number, "wb", closefd=False) as file:
                file.writelines(pack(traces))


def _shares(sizes: dict[Path, int], cores: int) -> list[_Share]:
    """Files over processes, the first being this one, so that all end at about the same time."""
    large = sorted(sizes, key=lambda path: -sizes[path])
    if sum(sizes[path] for path in large[1:]) < WORTH_BYTES:
        return [_Share(0)]
    count = min(cores, len(large), MOST_PROCESSES)
    shares = [_Share(START_BYTES if number else 0) for number in range(count)]
    for path in large:
        least = min(shares, key=lambda share: share.size_bytes)
        least.paths.append(path)
        least.size_bytes += sizes[path]
    return shares


def _estimated_bytes(path: Path) -> int:
    """About how much there is to decode."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size * _GZIP_RATIO if file.read(2) == b"\x1f\x8b" else size
    except OSError:
        return 0


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _read(paths: Sequence[Path], read: Read) -> Iterator[tuple[Path, list[Trace]]]:
    for path in paths:
        with suppress(DiagnoseError, OSError):
            yield path, read(path)


@contextmanager
def _process(share: _Share) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process that reads a share into files that lie in memory only; it does not outlive this one's interest."""
    with ExitStack() as stack:
        files = [os.memfd_create("diagnose") for _ in share.paths]
        for number in files:
            stack.callback(os.close, number)
        job = json.dumps([(str(path), number) for path, number in zip(share.paths, files, strict=True)])
        root = str(Path(diagnose.__file__).resolve().parent.parent)
        # Without -P, a file of the user's beside the traces could take the place of a library.
        command = [sys.executable, "-P", "-c", _CHILD, root, job]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=files)
        try:
            yield process, files
        finally:
            process.kill()
            process.wait()


def _received(paths: Sequence[Path], files: Sequence[int]) -> Iterator[tuple[Path, list[Trace]]]:
    for path, number in zip(paths, files, strict=True):
        with suppress(NotPacked, ValueError):  # an empty file cannot be mapped
            yield path, unpack_traces(mmap(number, 0))
