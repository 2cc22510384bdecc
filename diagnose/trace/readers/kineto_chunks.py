"""Streams the events of a Kineto document of any size, in flat memory, and collects its header on the way.

The array is cut after some 400 KB at the first `}, {`, which is a guess: it may lie within a string or within an
event's arguments. The guess needs no trust. A chunk that begins at a true boundary and decodes as `[chunk]` ends at
a true boundary; one that does not is made longer. What cannot be decoded at any length is walked event by event,
stepping over the part that is corrupt and counting it. Small chunks keep objects and text in the processor's cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from diagnose.trace.readers.blocks import Blocks
from diagnose.trace.readers.kineto_events import Event, events_decoder, events_of_plain, plain_json
from diagnose.trace.readers.kineto_regular import regular_decoder

CHUNK_BYTES = 400_000
LONGEST_CHUNK_BYTES = 16 << 20
"""Nothing that is one event is longer; a chunk that still fails is corrupt."""
LONGEST_HEADER_BYTES = 64 << 20

_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_BETWEEN = re.compile(rb"[\s,]*")
_SPACE = re.compile(rb"\s*")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"


@dataclass
class Losses:
    """What of a document could not be read."""

    corrupt_bytes: int = 0
    corrupt_places: int = 0
    strange_entries: int = 0
    """Entries of `traceEvents` that are no objects."""
    cut_off: bool = False
    """The document ends before its array does."""
    damage: str | None = None
    """What was wrong with the compression."""


@dataclass
class KinetoStream:
    """Iterates over lists of events; `header` and `losses` are complete once it is through."""

    path: Path
    chunk_bytes: int = CHUNK_BYTES
    header: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    has_events: bool = False
    """Whether the document has an array of events at all."""
    merged: bool = False
    """Whether events of several ranks were merged into this file."""

    def __post_init__(self) -> None:
        self._source = Blocks(self.path)
        self._blocks = iter(self._source)
        self._buffer = b""
        self._at = 0
        self._exact = False
        self._chunks_to_check = _CHUNKS_TO_CHECK
        self._irregular = 0
        self._chunk = b""

    def __iter__(self) -> Iterator[list[Event]]:
        self._more()
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)
        if self._find_array():
            self.has_events = True
            yield from self._events()
            self._members()
        self.losses.damage = self._source.damage or self.losses.damage

    def exactly(self) -> list[Event]:
        """The events last given, decoded again with the digits of their times; all later ones come so, too."""
        self._exact = True
        return self._decode(self._chunk) or []

    # The buffer: `_buffer[_at:]` is what has been read and not been used.

    def _more(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
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

    # The events.

    def _events(self) -> Iterator[list[Event]]:
        length, longest = self.chunk_bytes, LONGEST_CHUNK_BYTES
        while True:
            end = self._boundary(length)
            if end is None:
                yield from self._walk(None)
                return
            self._chunk = b"".join((b"[", memoryview(self._buffer)[self._at : end], b"]"))
            events = self._decode(self._chunk)
            if events is not None:
                self._at = end
                self._skip(_BETWEEN)
                length = self.chunk_bytes
                yield events
            elif end - self._at < longest:
                length = 2 * (end - self._at)
            else:
                yield from self._walk(self.chunk_bytes)
                if self._skip(_BETWEEN) == ord("]"):
                    self._at += 1
                    return
                # Where one place is corrupt, others are likely: do not search so far again.
                length, longest = self.chunk_bytes, 8 * self.chunk_bytes

    def _boundary(self, length: int) -> int | None:
        """Where the first guessed boundary at least `length` ahead lies; None when none follows."""
        searched = length
        while True:
            found = _BOUNDARY.search(self._buffer, self._at + searched)
            if found:
                return found.start() + 1
            if len(self._buffer) - self._at > length + LONGEST_HEADER_BYTES:
                self._blocks = iter(())  # these are no events: what follows is not read into memory
                self.losses.damage = "its events lie too far apart"
                return None
            searched = max(length, len(self._buffer) - self._at - _LONGEST_GAP)
            if not self._more():
                return None

    def _decode(self, chunk: bytes) -> list[Event] | None:
        """The events of `[chunk]`; None when it is not whole."""
        if self._chunks_to_check and b'"pid_raw"' in chunk:
            self.merged = True
        self._chunks_to_check = max(0, self._chunks_to_check - 1)
        regular = not self._exact and not self.merged and self._irregular < _MOST_IRREGULAR
        for decoder in (regular_decoder(),) * regular + (events_decoder(self._exact),):
            try:
                return decoder.decode(chunk)  # type: ignore[no-any-return]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._irregular += regular
        try:
            events, strange = events_of_plain(plain_json(chunk))
        except (ValueError, RecursionError):
            return None
        self.losses.strange_entries += strange
        return events

    def _walk(self, length: int | None) -> Iterator[list[Event]]:
        """Events found one by one, for about `length` bytes or (None) to the array's end, over corrupt places."""
        scanner = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
        text = self._buffer[self._at :].decode("latin-1")
        entries: list[bytes] = []
        at = 0
        while length is None or at < length:
            at = _next_entry(text, at)
            if at >= len(text):
                self.losses.cut_off = length is None
                break
            if text[at] == "]":
                at += length is None
                break
            try:
                _, end = scanner.raw_decode(text, at)
                entries.append(self._buffer[self._at + at : self._at + end])
            except (ValueError, RecursionError):
                end = _resume(text, at)
                self.losses.corrupt_bytes += end - at
                self.losses.corrupt_places += 1
            at = end
        self._at += at
        yield from self._entries(entries)

    def _entries(self, entries: list[bytes]) -> Iterator[list[Event]]:
        self._chunk = b"[" + b",".join(entries) + b"]"
        together = self._decode(self._chunk)
        if together is not None:
            yield together
            return
        for entry in entries:
            self._chunk = b"[" + entry + b"]"
            yield self._decode(self._chunk) or []


_UNREADABLE = object()
_CHUNKS_TO_CHECK = 16
"""Merging marks every event, so the first chunks tell; searching all of them would cost a tenth of the time."""
_MOST_IRREGULAR = 100
"""After so many chunks that were decoded a second time, no more are tried a first time."""
_LONGEST_GAP = 4096
"""A boundary may straddle two blocks, with this much white space at most."""
_ENTRY = re.compile(r"[^\s,]|\Z")
_RESUME = re.compile(r"\}\s*,\s*(?=\{)|\}\s*(?=\]\s*(?:,\s*\"|\}?\s*\Z))")


def _next_entry(text: str, at: int) -> int:
    found = _ENTRY.search(text, at)
    return found.start() if found else len(text)


def _resume(text: str, at: int) -> int:
    """Where events may go on behind one that is corrupt."""
    found = _RESUME.search(text, at)
    return found.end() if found else len(text)
