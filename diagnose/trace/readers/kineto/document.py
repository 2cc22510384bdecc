"""A Kineto document as text that comes block by block, and its header: the members around the array of events."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.trace.readers.io.blocks import Blocks
from diagnose.trace.readers.kineto.events import plain_json

LONGEST_HEADER_BYTES = 64 << 20

_BETWEEN = re.compile(rb"[\s,]*")
_SPACE = re.compile(rb"\s*")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"
_UNREADABLE = object()


@dataclass
class Losses:
    """The parts of a document that could not be read."""

    corrupt_bytes: int = 0
    corrupt_places: int = 0
    strange_entries: int = 0
    """Entries of `traceEvents` that are no objects."""
    cut_off: bool = False
    """The document ends before its array does."""
    damage: str | None = None
    """The fault of the compression."""


@dataclass
class Document:
    """The text and what its header says; `header` and `losses` are complete once all of it has been read."""

    path: Path
    begin: int = 0
    """The offset in the (decompressed) file at which reading begins."""
    header: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    has_events: bool = False
    """Whether the document has an array of events at all."""

    def __post_init__(self) -> None:
        self._source = Blocks(self.path, self.begin)
        self._blocks = iter(self._source)
        self._buffer = b""
        self._at = 0
        self._offset = self.begin
        """The offset in the file at which the buffer begins."""

    # The buffer: `_buffer[_at:]` is what has been read and not been used.

    def _more(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
        self._offset += self._at
        self._buffer = self._buffer[self._at :] + block
        self._at = 0
        return True

    def _skip(self, pattern: re.Pattern[bytes]) -> int:
        """Step over what `pattern` matches; the byte that follows, or -1 at the end."""
        while True:
            match = pattern.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return -1

    # The header: the members of the document before and after its events.

    def _find_array(self) -> bool:
        """Read up to the first event; False where there is none."""
        self._more()
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)
        first = self._skip(_SPACE)
        if first == ord("["):
            self._at += 1
            return True
        if first != ord("{"):
            return False
        self._at += 1
        return self._members()

    def _members(self) -> bool:
        """Read members of the outer object; True with the array of events next, False at the end."""
        while self._skip(_BETWEEN) == ord('"'):
            key = self._value()
            if self._skip(_SPACE) == ord(":"):
                self._at += 1
            if not isinstance(key, str):
                return self._search_array()
            if self._skip(_SPACE) == ord("[") and key == "traceEvents" and not self.has_events:
                self._at += 1
                return True
            value = self._value()
            if value is _UNREADABLE:
                return self._search_array()
            self.header[key] = value
        return self._search_array()

    def _value(self) -> Any:
        """The JSON value that begins here, reading on as far as it takes; `_UNREADABLE` if it makes no sense."""
        scanner = json.JSONDecoder(strict=False)
        window = 4096
        while True:
            piece = self._buffer[self._at : self._at + window]
            # Latin-1 gives every byte one character, so positions in the text are positions in the buffer.
            try:
                _, length = scanner.raw_decode(piece.decode("latin-1"))
            except (ValueError, RecursionError):
                length = 0
            if 0 < length < len(piece):
                break
            if len(piece) == window < LONGEST_HEADER_BYTES:
                window *= 16
            elif window >= LONGEST_HEADER_BYTES or not self._more():
                break
        if not length:
            return _UNREADABLE
        text = self._buffer[self._at : self._at + length]
        self._at += length
        return plain_json(text)

    def _search_array(self) -> bool:
        """Find the events behind a header that cannot be read; False where the document ends without any."""
        if self._skip(_SPACE) == ord("}"):
            return False
        while not self.has_events:
            found = _EVENTS_KEY.search(self._buffer, self._at)
            if found:
                self.losses.corrupt_bytes += found.start() - self._at
                self.losses.corrupt_places += 1
                self._at = found.end()
                return True
            self._at = max(self._at, len(self._buffer) - 64)
            if not self._more():
                break
        return False
