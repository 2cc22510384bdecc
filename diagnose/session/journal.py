"""The run folder and its journal: writing events, one a line, and reading them back after whatever happened."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from diagnose.errors import InputError
from diagnose.program.atomic import write_atomic
from diagnose.session.events import AnyEvent, ProgramOutput, Warned
from diagnose.session.owner import clear_abandoned, own
from diagnose.units import printable_lines

RUNS = Path(".diagnose") / "runs"
CHECKS = Path(".diagnose") / "checks"
"""The folder of runs that are gone once they are answered: other commands do not open them."""
JOURNAL = "journal.jsonl"

_SAME_VERSION = "read it with the diagnose that wrote it, or run the program again"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Session:
    """A run folder and its journal. `record` is the only way to write; it may be called from any thread."""

    def __init__(self, path: Path, listener: Callable[[AnyEvent], None] | None = None) -> None:
        self.path = path
        self._listener = listener
        self._lock = threading.Lock()
        self._full = False
        self._file = (path / JOURNAL).open("ab", buffering=0)

    @classmethod
    def create(
        cls, name: str, listener: Callable[[AnyEvent], None] | None = None, root: Path | None = None, below: Path = RUNS
    ) -> Session:
        """A new run folder below the working directory, or below `root`; what killed runs left of their trials goes.

        Raises InputError where none can be made.
        """
        runs = (root or Path.cwd()) / below
        try:
            runs.mkdir(parents=True, exist_ok=True)
            ignore = runs.parent / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise InputError(
                runs, f"cannot hold the files of a run ({error.strerror}); start in a folder that you may write to"
            ) from error
        stem = time.strftime("%Y%m%d-%H%M%S-") + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run")
        for attempt in range(1000):
            path = runs / (f"{stem}-{attempt}" if attempt else stem)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            own(path)
            clear_abandoned(runs)
            return cls(path, listener)
        raise InputError(runs, "cannot make a run folder; remove old ones")

    def hand_over(self) -> None:
        """Note that the run is this process's from here on, and not of the one that made its folder."""
        own(self.path)

    def record(self, event: AnyEvent) -> None:
        """Append one event, then tell the listener.

        Where the disk takes no more, recording ends: whatever is recorded must not end of it. The listener is told so,
        once, and goes on being told of events. Raises InputError where there is no listener.
        """
        line = _encoder.encode(event) + b"\n"
        refused = None
        try:
            with self._lock:
                if not self._full:
                    self._append(line)
        except OSError as error:
            self._full = True
            refused = InputError(
                self.path / JOURNAL, f"cannot be written ({error.strerror}); free some space, then start again"
            )
            if self._listener is None:
                raise refused from error
        if self._listener is not None:
            self._listener(event)
            if refused is not None:
                self._listener(Warned(message=f"nothing more is recorded, and the program goes on: {refused}"))

    def _append(self, line: bytes) -> None:
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, name: str, text: str) -> Path | None:
        """Write a file of the run folder in one piece: it is there whole or not at all. None where the disk takes no
        more, or the program has removed the folder; without a listener, which is told so, that is an OSError."""
        path = self.path / name
        try:
            self.path.stat()  # a folder that was removed is not made again
            write_atomic(path, text.encode())
        except OSError as error:
            if self._listener is None:
                raise
            self._listener(Warned(message=f"{path}: cannot be written ({error.strerror}); free some space"))
            return None
        return path

    def close(self) -> None:
        """Close the journal; recording ends."""
        with self._lock:
            self._file.close()


def read(path: Path) -> tuple[list[AnyEvent], list[str]]:
    """The events of a run folder or journal, and warnings for lines that could not be read."""
    journal = path / JOURNAL if path.is_dir() else path
    if journal.exists() and not journal.is_file():  # to open a pipe may wait for ever
        raise InputError(path, f"no journal of a run (it is no file); name a folder below {RUNS}")
    try:
        raw = journal.read_bytes()
    except OSError as error:
        raise InputError(path, f"no journal of a run ({error.strerror}); name a folder below {RUNS}") from error
    events: list[AnyEvent] = []
    warnings: list[str] = []
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            events.append(_printable(_decoder.decode(line), line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            torn = number == len(lines)
            reason = "cut off, as after a kill" if torn else str(error)
            warnings.append(f"{journal.name} line {number} was skipped: {reason}")
    if warnings and not events:
        raise InputError(journal, f"no line of it is an event of a run that this version knows; {_SAME_VERSION}")
    return events, warnings


def _printable(event: AnyEvent, line: bytes) -> AnyEvent:
    """An event without what would steer a terminal: a run folder may be somebody else's.

    What the program printed stays as it is: the screen shows it as a terminal would, and draws it itself.
    """
    if isinstance(event, ProgramOutput) or (line.isascii() and not _ESCAPED.search(line)):
        return event
    content = json.loads(line)
    clean = _clean(content)
    return event if clean == content else _decoder.decode(_encoder.encode(clean))


_ESCAPED = re.compile(rb"\\[urbf]")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {printable_lines(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value


def run_folders(root: Path | None = None) -> list[Path]:
    """All run folders below a project, by default the working directory, the newest first."""
    found = ((root or Path.cwd()) / RUNS).glob(f"*/{JOURNAL}")
    return [journal.parent for journal in sorted(found, key=lambda one: one.stat().st_mtime_ns, reverse=True)]


def latest(root: Path | None = None) -> Path | None:
    """The newest run folder below a project, by default the working directory, or None."""
    return next(iter(run_folders(root)), None)
