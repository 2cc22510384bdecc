"""Opens recordings, whatever wrote them: files, run folders, folders with one file a rank.

    open_traces([Path("trace.json.gz")])   → one Trace a rank

A file's content decides its format, never its name. A module of this package that defines `READER` adds a format.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from diagnose.errors import DiagnoseError, InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.cache import is_kept, remembered
from diagnose.trace.readers.blocks import read_head
from diagnose.trace.readers.companions import with_companions
from diagnose.trace.readers.foreign import explain
from diagnose.trace.readers.parallel import is_large, read_ahead
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.run_folder import is_run_folder, profiles_of, read_run_folder

__all__ = ["Reader", "formats", "open_file", "open_traces"]

Ahead = dict[Path, list[Trace]]
"""What other processes have read already."""


def open_traces(paths: Sequence[Path]) -> list[Trace]:
    """One trace for each rank in files, run folders (`rank0/`, …) or folders of traces, in the order of the ranks.

    Raises InputError (NotATrace where nothing is recognised) with one sentence for the user.
    """
    traces: list[Trace] = []
    ahead = read_ahead([path for path in _files(paths) if _is_worth_a_process(path)], open_file)
    for group in _given_together(paths):
        try:
            traces += _open(group[0], ahead) if len(group) == 1 else _read(group, ahead)
        except OSError as error:
            raise InputError(group[0], f"cannot be read: {error.strerror or error}") from error
    return with_companions(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0)))


@cache
def formats() -> tuple[Reader, ...]:
    """Every format that a module of this package defines."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    readers = (getattr(module, "READER", None) for module in modules)
    return tuple(reader for reader in readers if isinstance(reader, Reader))


def open_file(path: Path) -> list[Trace]:
    """One trace for each rank in a file. Raises InputError as `open_traces` does."""
    return remembered(path, _reader_of(path).read)


def _open(path: Path, ahead: Ahead) -> list[Trace]:
    if not path.exists():
        raise InputError(path, "there is no such file or folder; give a trace, a folder of traces or a run folder")
    if not path.is_dir():
        return _open_file(path, ahead)
    if is_run_folder(path):
        return read_run_folder(path, lambda profile: _open_file(profile, ahead))
    return _open_folder(path, ahead)


def _open_file(path: Path, ahead: Ahead) -> list[Trace]:
    return ahead.pop(path) if path in ahead else open_file(path)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        with suppress(OSError):  # opening it by itself says why
            if path.is_file():
                yield path
            elif path.is_dir():
                yield from profiles_of(path) if is_run_folder(path) else _recordings_in(path)


def _is_worth_a_process(path: Path) -> bool:
    try:
        return is_large(path) and _reader_of(path).read_together is None and not is_kept(path)
    except (DiagnoseError, OSError):
        return False  # opening it by itself says why


def _reader_of(path: Path) -> Reader:
    if not path.is_file():
        raise NotATrace(path, "this is no ordinary file; write the trace to disk first")
    head = read_head(path)
    for reader in formats():
        if reader.sniffs(head, path):
            return reader
    raise NotATrace(path, explain(head, path.suffix))


def _given_together(paths: Sequence[Path]) -> list[list[Path]]:
    """The paths, with files side by side whose format spreads one recording over several."""
    groups: dict[object, list[Path]] = {}
    for number, path in enumerate(paths):
        shared: object = number
        if len(paths) > 1 and path.is_file():
            try:
                reader = _reader_of(path)
            except (DiagnoseError, OSError):
                reader = None  # opening it by itself says why
            shared = reader if reader is not None and reader.read_together is not None else number
        groups.setdefault(shared, []).append(path)
    return list(groups.values())


def _read(paths: Sequence[Path], ahead: Ahead) -> list[Trace]:
    """The traces of files of one format."""
    reader = _reader_of(paths[0])
    if reader.read_together is not None:
        return reader.read_together(paths)
    return [trace for path in paths for trace in _open_file(path, ahead)]


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and path.is_file()]


def _recordings_in(folder: Path) -> list[Path]:
    # Some profilers put the files of each host into a folder of its own.
    below = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    return _files_in(folder) or [path for host in below for path in _files_in(host)]


def _open_folder(folder: Path, ahead: Ahead) -> list[Trace]:
    """The traces that lie in a folder, as ranks of one job; whatever else lies there is named in a warning."""
    traces: list[Trace] = []
    left_out: list[str] = []
    for group in _given_together(_recordings_in(folder)):
        try:
            traces += _read(group, ahead)
        except (DiagnoseError, OSError) as error:
            left_out.append(str(error))
    if not traces:
        why = f"; for example {left_out[0]}" if left_out else ""
        raise NotATrace(folder, f"none of the {len(left_out)} files in this folder is a trace that can be read{why}")
    if left_out:
        warning = (
            f"{folder}: {len(left_out)} files in it are no traces and were left out, the first being {left_out[0]}"
        )
        traces[0] = replace(traces[0], warnings=(*traces[0].warnings, warning))
    return traces
