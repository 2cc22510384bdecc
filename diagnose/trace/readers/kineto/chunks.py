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
from dataclasses import dataclass

import msgspec

from diagnose.trace.readers.kineto.document import LONGEST_HEADER_BYTES, Document
from diagnose.trace.readers.kineto.events import Event, events_decoder, events_of_plain, plain_json
from diagnose.trace.readers.kineto.regular_events import regular_decoder

CHUNK_BYTES = 400_000
LONGEST_CHUNK_BYTES = 16 << 20
"""The longest chunk that can be one event; a chunk of this size that still fails to parse is corrupt."""

_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_BETWEEN = re.compile(rb"[\s,]*")


@dataclass
class KinetoStream(Document):
    """Iterates over lists of events, of the whole document or of a part of it."""

    chunk_bytes: int = CHUNK_BYTES
    end: int | None = None
    """A part ends at the first boundary from here on, and begins at the first one from `begin` on."""
    merged: bool = False
    """Whether events of several ranks were merged into this file."""
    begins: int = 0
    """The offset at which a part turned out to begin: behind the event before it."""
    ends: int | None = None
    """The offset at which a part turned out to end: behind its last event; None where the array ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._exact = False
        self._chunks_to_check = _CHUNKS_TO_CHECK
        self._irregular = 0
        self._chunk = b""

    def __iter__(self) -> Iterator[list[Event]]:
        if self._find_part() if self.begin else self._find_array():
            self.has_events = True
            yield from self._events()
            if self.ends is None:
                self._members()
        self.losses.damage = self._source.damage or self.losses.damage

    def exactly(self) -> list[Event]:
        """The events last given, decoded again with the digits of their times; all later ones come so, too."""
        self._exact = True
        return self._decode(self._chunk) or []

    def _find_part(self) -> bool:
        first = self._boundary(0)
        if first is None:
            return False
        self._at = first
        self.begins = self._offset + first
        self._skip(_BETWEEN)
        return True

    def _events(self) -> Iterator[list[Event]]:
        length, longest = self.chunk_bytes, LONGEST_CHUNK_BYTES
        while True:
            end = self._boundary(self._no_further(length))
            if end is None:
                yield from self._walk(None)
                return
            self._chunk = b"".join((b"[", memoryview(self._buffer)[self._at : end], b"]"))
            events = self._decode(self._chunk)
            if events is not None:
                self._at = end
                ends = self._offset + end
                self._skip(_BETWEEN)
                length = self.chunk_bytes
                yield events
                if self.end is not None and ends > self.end:
                    self.ends = ends
                    return
            elif end - self._at < longest:
                length = 2 * (end - self._at)
            else:
                yield from self._walk(self.chunk_bytes)
                if self._skip(_BETWEEN) == ord("]"):
                    self._at += 1
                    return
                # Where one place is corrupt, others are likely: do not search so far again.
                length, longest = self.chunk_bytes, 8 * self.chunk_bytes

    def _no_further(self, length: int) -> int:
        """A length of at most what is left of the part."""
        left = length if self.end is None else self.end - self._offset - self._at
        return min(length, max(left, 0)) if length == self.chunk_bytes else length

    def _boundary(self, length: int) -> int | None:
        """Return the first guessed boundary at least `length` ahead; None when none follows."""
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
            found = _ENTRY.search(text, at)
            at = found.start() if found else len(text)
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


_CHUNKS_TO_CHECK = 16
"""Merging marks every event, so the first chunks tell; searching all of them would cost a tenth of the time."""
_MOST_IRREGULAR = 100
"""The number of chunks decoded a second time after which the fast decoder is not tried any more."""
_LONGEST_GAP = 4096
"""A boundary may straddle two blocks, with this much white space at most."""
_ENTRY = re.compile(r"[^\s,]|\Z")
_RESUME = re.compile(r"\}\s*,\s*(?=\{)|\}\s*(?=\]\s*(?:,\s*\"|\}?\s*\Z))")


def _resume(text: str, at: int) -> int:
    """Return the position at which events may go on behind a corrupt one."""
    found = _RESUME.search(text, at)
    return found.end() if found else len(text)
