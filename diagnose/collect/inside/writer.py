"""Writes a rank's files from a thread of its own, so that the training thread never waits for a disk.

Sources are asked for what is new twice a second; each line is written whole, so that a killed run leaves files that
still read. The thread is a daemon; `close` writes the rest.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .guard import guarded

FLUSH_S = 0.4

Source = Callable[[], Iterable[tuple[str, str]]]
"""Gives what is new: pairs of a file's name and the lines (each ended) to append to it."""

encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Writer:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: list[Source] = []
        self._files: dict[str, int] = {}
        self._wake = threading.Event()
        self._stop = False
        self._draining = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="diagnose-writer", daemon=True)

    def add(self, source: Source) -> None:
        """Ask `source` at every flush, in the order of adding."""
        self._sources.append(source)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write_json(self, name: str, record: Any) -> None:
        """Replace file `name`: it is there whole or not at all."""
        sibling = self._folder / f".{name}.{os.getpid()}.tmp"
        sibling.write_text(encode(record), encoding="utf-8")
        sibling.replace(self._folder / name)

    def truncate(self, name: str) -> None:
        """Empty file `name`, or create it empty."""
        os.ftruncate(self._handle(name), 0)

    def flush(self) -> None:
        """Write all that is new; from any thread."""
        with self._draining:
            for source in self._sources:
                for name, lines in guarded(source)() or ():
                    if lines:
                        os.write(self._handle(name), lines.encode())

    def close(self) -> None:
        """Stop the thread and write the rest."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self.flush()
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()

    def _run(self) -> None:
        flush = guarded(self.flush)
        while not self._stop:
            self._wake.wait(FLUSH_S)
            flush()

    def _handle(self, name: str) -> int:
        if name not in self._files:
            self._files[name] = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._files[name]
