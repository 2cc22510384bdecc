"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file's content through a sibling, an fsync and a rename; `mode` sets its permission bits."""
    sibling = write_sibling(path, data, mode)
    try:
        sibling.replace(path)
    except BaseException:
        sibling.unlink(missing_ok=True)
        raise


def write_sibling(path: Path, data: bytes, mode: int | None = None) -> Path:
    """Write what a file is to hold beside it, to the disk; the sibling is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with sibling.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            sibling.chmod(mode)
    except BaseException:
        sibling.unlink(missing_ok=True)  # neither a full disk nor Ctrl-C leaves half a file beside the user's own
        raise
    return sibling


def clear_unfinished(path: Path) -> None:
    """Remove what a killed process left beside a file that it was writing; what a living one writes stays."""
    for sibling in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        writer = sibling.name.removeprefix(f".{path.name}.").removesuffix(".tmp")
        if writer.isdigit() and not _lives(int(writer)):
            sibling.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
