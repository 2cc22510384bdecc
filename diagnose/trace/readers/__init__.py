"""Opens recordings, whatever wrote them: files, run folders, folders with one file a rank.

    open_traces([Path("trace.json.gz")])   → one Trace a rank

A file's content decides its format, never its name. A module below this package that defines `READER` adds a format.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from diagnose.errors import DiagnoseError, InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.cache import is_kept, read_cached
from diagnose.trace.readers.folders import recordings_below, recordings_in
from diagnose.trace.readers.inputs import Given, Part, gather
from diagnose.trace.readers.io.blocks import read_head
from diagnose.trace.readers.parallel import Progress, is_large, no_progress, read_ahead
from diagnose.trace.readers.printable_texts import with_printable_texts
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.run_folder import is_run_folder, profiles_of, read_run_folder, recorded_ranks
from diagnose.trace.readers.sidecars import with_companions
from diagnose.trace.readers.unsupported_formats import explain

__all__ = [
    "Given",
    "Part",
    "Reader",
    "find",
    "formats",
    "gather",
    "open_file",
    "open_part",
    "open_traces",
    "with_warning",
]

Ahead = dict[Path, list[Trace]]
"""The traces that other processes have read already."""


def open_traces(paths: Sequence[Path], progress: Progress = no_progress) -> list[Trace]:
    """One trace for each rank in files, run folders (`rank0/`, …) or folders of traces, in the order of the ranks.

    `progress` is told how many large files have been read, and of how many. Raises InputError (NotATrace where nothing
    is recognised) with one sentence for the user.
    """
    given = find(paths)
    ahead = read_ahead([path for path in _files(given) if _is_worth_a_process(path)], open_file, progress)
    return with_companions(gather(given, lambda part: open_part(part, ahead), with_warning))


def find(paths: Sequence[Path]) -> list[Given]:
    """Return the inputs among files, run folders and folders of traces. Raises InputError as `open_traces` does."""
    given = []
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):  # to open a pipe may wait for ever
            raise InputError(path, "is neither a file nor a folder; write what it gives to a file, and name that")
    for group in _given_together(paths):
        try:
            given.append(_input_of(group))
        except OSError as error:
            raise InputError(group[0], f"cannot be read: {error.strerror or error}") from error
    return given


def open_part(part: Part, ahead: Ahead | None = None) -> list[Trace]:
    """One trace for each rank in what is read apart. Raises InputError as `open_traces` does."""
    read = partial(_open_file, ahead=ahead or {})
    try:
        if len(part) > 1:
            reader = _reader_of(part[0])
            if reader.read_together is None:
                raise NotATrace(part[0], "is not what it was when it was looked at first; try again")
            traces = reader.read_together(part)
        else:
            traces = read_run_folder(part[0], read) if part[0].is_dir() else read(part[0])
    except OSError as error:
        raise InputError(part[0], f"cannot be read: {error.strerror or error}") from error
    return [with_printable_texts(trace) for trace in traces]


def with_warning(trace: Trace, warning: str) -> Trace:
    """The trace with one more thing to be said of it."""
    return replace(trace, warnings=(*trace.warnings, warning))


@cache
def formats() -> tuple[Reader, ...]:
    """Every format that a module of this package defines."""
    found = [info.name for info in pkgutil.walk_packages(__path__, f"{__name__}.") if not info.ispkg]
    # By the module's own name: torch_profiler takes any Chrome trace, after those that know theirs.
    modules = (importlib.import_module(name) for name in sorted(found, key=lambda name: name.rpartition(".")[2]))
    readers = (getattr(module, "READER", None) for module in modules)
    return tuple(reader for reader in readers if isinstance(reader, Reader))


def open_file(path: Path) -> list[Trace]:
    """One trace for each rank in a file. Raises InputError as `open_traces` does."""
    return read_cached(path, _reader_of(path).read)


def _input_of(group: Sequence[Path]) -> Given:
    path = group[0]
    if len(group) > 1:
        return Given((tuple(group),))
    if not path.exists():
        raise InputError(path, "there is no such file or folder; give a trace, a folder of traces or a run folder")
    if not path.is_dir():
        return Given(((path,),))
    if is_run_folder(path):
        return Given(tuple((folder,) for folder in recorded_ranks(path)))
    recordings = recordings_in(path)
    if not any(map(_reader_or_none, recordings)) and (elsewhere := recordings_below(path, _reader_or_none)):
        raise InputError(path, elsewhere)
    return Given(tuple(map(tuple, _given_together(recordings))), path)


def _files(given: Sequence[Given]) -> Iterator[Path]:
    for path in (path for one in given for part in one.parts for path in part):
        with suppress(OSError):  # opening it by itself says why
            yield from profiles_of(path) if path.is_dir() else [path]


def _open_file(path: Path, ahead: Ahead) -> list[Trace]:
    return ahead.pop(path) if path in ahead else open_file(path)


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


def _reader_or_none(path: Path) -> Reader | None:
    try:
        return _reader_of(path)
    except (DiagnoseError, OSError):
        return None  # opening it by itself says why


def _given_together(paths: Sequence[Path]) -> list[list[Path]]:
    """The paths, with files side by side whose format spreads one recording over several."""
    groups: dict[object, list[Path]] = {}
    for number, path in enumerate(paths):
        shared: object = number
        if len(paths) > 1 and path.is_file():
            reader = _reader_or_none(path)
            shared = reader if reader is not None and reader.read_together is not None else number
        groups.setdefault(shared, []).append(path)
    return list(groups.values())
