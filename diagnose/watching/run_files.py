"""The files of a run of days: followed, and kept from growing beyond a limit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnose.collect.records import COUNTERS, HEARTBEATS, REQUEST, WINDOW
from diagnose.program.atomic import write_atomic

CHANGES = "changes"
"""The folder of a run that has a folder for each trace that was taken on a change."""
ROTATE_BYTES = 8 << 20
"""A file of lines that has become so long begins anew; one more of that length is kept."""
TRACED_STEPS = 4
"""Steps to trace, as many as `diagnose run` traces."""
AHEAD_S, AHEAD_STEPS = 3, 3
"""Between a request and the step to trace: a rank looks once a second, and none is more steps ahead than these."""


class HeartbeatFiles:
    """Follows the heartbeats of all ranks of a run folder."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._offsets: dict[int, int] = {}

    def new(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rank and heartbeat of each line since the last call, in order of each rank."""
        for path in sorted(self._run.glob(f"rank*/{HEARTBEATS}")):
            rank = int(path.parent.name.removeprefix("rank"))
            for beat in self._read(rank, path):
                yield rank, beat
            with suppress(OSError):
                if self._offsets[rank] >= ROTATE_BYTES:
                    yield from ((rank, beat) for beat in self._rotated(rank, path))

    def _rotated(self, rank: int, path: Path) -> list[dict[str, Any]]:
        """Begin the file anew; returns the lines that came meanwhile. Its writer opens it for each line."""
        old = rotate(path)
        beats = self._read(rank, old)
        self._offsets[rank] = 0
        return beats

    def _read(self, rank: int, path: Path) -> list[dict[str, Any]]:
        offset = self._offsets.setdefault(rank, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[rank] = offset + len(whole)
        beats = []
        for line in whole.splitlines():
            with suppress(ValueError):  # a full disk cut it off
                beats.append(json.loads(line))
        return beats


def rotate(path: Path) -> Path:
    """Move a file aside, over the one that was moved aside before; returns where it is."""
    return path.replace(path.with_name(f"{path.name}.1"))


def rotate_counters(run: Path) -> None:
    """Begin files of counters anew that have become too long."""
    for path in run.glob(f"rank*/{COUNTERS}"):
        with suppress(OSError):
            if path.stat().st_size >= ROTATE_BYTES:
                rotate(path)


def request_trace(run: Path, number: int, last_step: int, step_ns: float, ranks: Sequence[int]) -> Path:
    """Ask ranks to trace some steps from one that all have yet to reach; returns the folder of their traces."""
    folder = run / CHANGES / f"{number:04d}"
    ahead = max(AHEAD_STEPS, round(AHEAD_S * 1e9 / max(step_ns, 1)))
    request = {"folder": str(folder), "step": last_step + ahead, "steps": TRACED_STEPS, "ranks": list(ranks)}
    write_atomic(run / REQUEST, json.dumps(request).encode())
    return folder


def is_traced(folder: Path, ranks: Sequence[int]) -> bool:
    """Whether the traces of all these ranks lie in the folder, whole."""
    return all((folder / f"rank{rank}" / WINDOW).exists() for rank in ranks)


def keep_within(run: Path, most_bytes: int) -> None:
    """Remove the oldest traces until the rest fits; the newest one stays."""
    folders = sorted((run / CHANGES).glob("*"))
    sizes = [sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in folders]
    while len(folders) > 1 and sum(sizes) > most_bytes:
        shutil.rmtree(folders.pop(0), ignore_errors=True)
        sizes.pop(0)
