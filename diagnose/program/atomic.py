"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file's content through a sibling, an fsync and a rename; `mode` sets its permission bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with sibling.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            sibling.chmod(mode)
        sibling.replace(path)
    except OSError:
        sibling.unlink(missing_ok=True)  # a full disk leaves no half of a file beside the user's own
        raise
