"""Keeps the tables of traces that took long to read, so that opening one again takes a tenth of the time or less.

    read_cached(path, reader.read)

Nothing is ever written beside the user's files. What is kept lies in the user's own cache folder
(`$XDG_CACHE_HOME/diagnose` or `~/.cache/diagnose`), only for traces that took a second or more to read, and never
more than `MOST_BYTES` together: the oldest go first. `DIAGNOSE_CACHE=off` keeps nothing, `DIAGNOSE_CACHE=FOLDER`
keeps it there. Deleting any of it at any time is safe; what is damaged, or was written by another version, is not
used.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import diagnose.trace
from diagnose.trace import Trace
from diagnose.trace.packed_columns import NotPacked, pack, unpack_traces

WORTH_KEEPING_S = 1.0
MOST_BYTES = 1 << 30
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16
_SUFFIX = ".tables"


def read_cached(path: Path, read: Callable[[Path], list[Trace]]) -> list[Trace]:
    """Return what `read` returns for a file, from the cache where it is there. Raises what `read` raises."""
    folder = _folder()
    if folder is None:
        return read(path)
    kept = folder / f"{_key(path)}{_SUFFIX}"
    traces = _read_kept(kept)
    if traces is not None:
        return traces
    begin = time.monotonic()
    traces = read(path)
    if time.monotonic() - begin >= WORTH_KEEPING_S:
        with suppress(OSError):  # a full or read-only disk costs the next opening its speed, and nothing else
            _keep(kept, traces)
    return traces


def is_kept(path: Path) -> bool:
    """Whether `read_cached` need not read a file."""
    folder = _folder()
    return folder is not None and (folder / f"{_key(path)}{_SUFFIX}").is_file()


def _folder() -> Path | None:
    chosen = os.environ.get("DIAGNOSE_CACHE", "")
    if chosen.lower() in ("off", "0", "no"):
        return None
    if chosen:
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "diagnose"
    except RuntimeError:  # no home
        return None


def _key(path: Path) -> str:
    """Names a file's content: its size, its date, and samples of its bytes, for reading all of them takes too long.

    Its path belongs to it, because a trace says where it comes from, and so does the version of what reads it.
    """
    status = path.stat()
    digest = hashlib.blake2b(digest_size=20)
    digest.update(repr((_version(), str(path), str(path.resolve()), status.st_size, status.st_mtime_ns)).encode())
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(max(0, status.st_size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@cache
def _version() -> str:
    """Names the schema and the readers: the sources themselves, as no number is raised for every change of them."""
    root = Path(diagnose.trace.__file__).parent
    sources = [(str(path), path.stat()) for path in sorted(root.rglob("*.py"))]
    return repr([(name, status.st_size, status.st_mtime_ns) for name, status in sources])


def _read_kept(kept: Path) -> list[Trace] | None:
    try:
        with kept.open("rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(data)
        traces = unpack_traces(data)
        os.utime(kept)
    except (OSError, NotPacked):
        return None
    return traces


def _keep(kept: Path, traces: list[Trace]) -> None:
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, prefix="new-", suffix=_SUFFIX, delete=False) as file:
        try:
            file.writelines(pack(traces))
            Path(file.name).replace(kept)
        except BaseException:
            Path(file.name).unlink()
            raise
    _make_room(kept.parent)


def _make_room(folder: Path) -> None:
    """Delete what was not used for longest, until the rest is within `MOST_BYTES`."""
    used: list[tuple[float, int, Path]] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):  # another process makes room, too
            status = path.stat()
            used.append((status.st_mtime, status.st_size, path))
    total = 0
    for _, size, path in sorted(used, reverse=True):
        total += size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
