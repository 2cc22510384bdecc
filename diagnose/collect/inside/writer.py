"""Writes a rank's files from a thread of its own, so that the training thread never waits for a disk.

Sources are asked for what is new twice a second; each line is written whole, so that a killed run leaves files that
still read. It holds up no exit; `close` writes the rest.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .guard import guarded
from .size_limit import unsignalled
from .unlisted_thread import UnlistedThread

FLUSH_S = 0.4

Source = Callable[[], Iterable[tuple[str, str]]]
"""Gives what is new: pairs of a file's name and the lines (each ended) to append to it."""

encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text)
    unfinished.replace(path)


class Writer:
    """The files of one folder."""

    def __init__(self, folder: Path, gaps: bool = False) -> None:
        """`gaps`: lines may lack, so that writing goes on once a full disk takes them again."""
        self._folder = folder
        self._gaps = gaps
        self._sources: list[Source] = []
        self._torn: set[str] = set()
        """Files that the disk took only a part of: more would make a line of two halves."""
        self._wake = threading.Event()
        self._stop = False
        self._draining = threading.RLock()
        self._thread = UnlistedThread(self._run)

    def add(self, source: Source) -> None:
        """Ask `source` at every flush, in the order of adding."""
        self._sources.append(source)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write_json(self, name: str, record: Any) -> None:
        """Replace file `name`: it is there whole or not at all."""
        sibling = self._folder / f".{name}.{os.getpid()}.tmp"
        with unsignalled():
            sibling.write_text(encode(record), encoding="utf-8")
            sibling.replace(self._folder / name)

    def truncate(self, name: str) -> None:
        """Empty file `name`, or create it empty."""
        (self._folder / name).write_bytes(b"")

    def flush(self) -> None:
        """Write all that is new; from any thread."""
        with self._draining, unsignalled():
            for source in self._sources:
                for name, lines in guarded(_all_of)(source) or ():
                    if lines and (self._gaps or name not in self._torn):
                        guarded(self._append)(name, lines.encode())

    def close(self) -> None:
        """Stop the thread and write the rest."""
        self._stop = True
        self._wake.set()
        self._thread.join(timeout=5)
        self.flush()

    def _run(self) -> None:
        flush = guarded(self.flush)
        while not self._stop:
            self._wake.wait(FLUSH_S)
            flush()

    def _append(self, name: str, data: bytes) -> None:
        """Opened each time: a program may close descriptors that are not its own, and then gets their numbers."""
        if name in self._torn:
            data = b"\n" + data  # what was cut off is a line of its own
        self._torn.add(name)
        with (self._folder / name).open("ab", buffering=0) as file:
            written = file.write(data)
        if written == len(data):
            self._torn.discard(name)


def _all_of(source: Source) -> list[tuple[str, str]]:
    return list(source())
