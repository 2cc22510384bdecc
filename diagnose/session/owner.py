"""The owning process of a run folder. A killed process leaves copies and captures of many GB, which the next run
clears.

A process is known by its number and by when it started, in ticks since the machine did, so that neither a number that
is used again nor a clock that is set makes one out of two. Both are said within a boot and a namespace of processes:
what was written elsewhere (another host, another container) is left alone, and so is what belongs to another user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from diagnose.units import NS_PER_S

OWNER = "owner.json"
TRIALS = "trials"
"""The folder of a run that holds what only its trials need."""
_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
_REMOVING: list[subprocess.Popen[bytes]] = []
"""Processes that remove a folder and have not been waited for."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 19
"""The field of /proc/PID/stat, counted from the one behind the command's name."""


def own(folder: Path) -> None:
    """Note that the files of a run are this process's. Does nothing on a system that cannot tell processes apart."""
    with suppress(OSError, ValueError):
        record = {"pid": os.getpid(), "started": _started(os.getpid()), "machine": _machine()}
        (folder / OWNER).write_text(json.dumps(record))


def clear(trials: Path, limit_ns: int | None = None) -> None:
    """Remove the trials of a run, in another process: one that is not done within the limit goes on by itself.

    Copies with thousands of files take longer to remove than a budget may be exceeded. What that process leaves, should
    it be killed, the next run clears. None: no limit.
    """
    if limit_ns is None:
        shutil.rmtree(trials, ignore_errors=True)
        return
    quiet = subprocess.DEVNULL
    remover = subprocess.Popen(
        # -I: neither the user's environment nor a sitecustomize of ours reaches it.
        [sys.executable, "-I", "-S", "-c", _REMOVE, str(trials)],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        remover.wait(limit_ns / NS_PER_S)
    except subprocess.TimeoutExpired:
        _REMOVING.append(remover)


def clear_abandoned(runs: Path) -> None:
    """Remove the trials of runs whose process has ended without doing so."""
    for trials in runs.glob(f"*/{TRIALS}"):
        if is_abandoned(trials.parent / OWNER):
            shutil.rmtree(trials, ignore_errors=True)


def is_abandoned(note: Path) -> bool:
    """Whether the process of that note has surely ended; False where that cannot be told."""
    try:
        owner = json.loads(note.read_text())
        if note.stat().st_uid != os.getuid() or owner["machine"] != _machine():
            return False
        pid, started = int(owner["pid"]), int(owner["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    try:
        return _started(pid) != started
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _started(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[_STARTED])


def _machine() -> list[str]:
    return [_BOOT.read_text().strip(), *(str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "time"))]
