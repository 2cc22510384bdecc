"""How much memory of this host is free: in a container no more than that was given."""

from __future__ import annotations

from pathlib import Path

import psutil

# Version 2 of control groups, then version 1: limit, what is in use, and what of that the kernel gives back.
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def free_bytes() -> int:
    """Memory that processes may still take."""
    free = int(psutil.virtual_memory().available)
    for limit, used, given_back in _LIMITS:
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
            stat = dict(line.split() for line in Path(used).with_name("memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # there is no such limit, or none that can be read
        return max(0, min(free, left + int(stat.get(given_back, 0))))
    return free
