"""The resident memory of the watched process."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int | None:
    """Return the resident memory of this process alone; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
