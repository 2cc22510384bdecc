"""The contents of a folder that a user names: recordings, or folders of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from diagnose.trace.readers.run_folder import is_run_folder

_LOOKED_AT = 20
"""Files of a folder that are asked whether they are recordings."""
_NAMED = 3


def recordings_in(folder: Path) -> list[Path]:
    """The files of a folder; where it has none, those of its folders: some profilers give each host one of its own."""
    return _files_in(folder) or [path for host in _folders_in(folder) for path in _files_in(host)]


def recordings_below(folder: Path, readable: Callable[[Path], object]) -> str | None:
    """Words about recordings in folders of their own, of several jobs or runs; None where there are none.

    `readable` tells a recording from any other file.
    """
    found = [one.name for one in _folders_in(folder) if is_run_folder(one) or _holds_some(one, readable)]
    if not found:
        return None
    names = ", ".join([*found[:_NAMED], *(["…"] if len(found) > _NAMED else [])])
    many = f"{len(found)} of its folders hold" if len(found) > 1 else "one of its folders holds"
    return f"no recording lies in it, but {many} some: name one ({names})"


def _holds_some(folder: Path, readable: Callable[[Path], object]) -> bool:
    return any(map(readable, islice(_files_in(folder), _LOOKED_AT)))


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and path.is_file()]


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
