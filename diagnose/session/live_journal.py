"""The journal of a run that goes on in another process, read as it grows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from diagnose.session.events import AnyEvent, RunEnded
from diagnose.session.journal import JOURNAL
from diagnose.session.owner import OWNER, is_abandoned

LOOK_EVERY_S = 0.25

_decoder = msgspec.json.Decoder(AnyEvent)


class JournalTail:
    """Events of a run folder, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offset = 0
        self.ended = False
        """Whether the run has written its end."""

    def new(self) -> list[AnyEvent]:
        """Return the events appended since the last call. An incomplete line waits for its rest; a line that is no
        event is skipped.

        Nothing where the journal cannot be read any more.
        """
        try:
            with (self._folder / JOURNAL).open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        events: list[AnyEvent] = []
        for line in whole.split(b"\n"):
            try:
                events += [_decoder.decode(line)] if line else []
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        self.ended = self.ended or any(isinstance(event, RunEnded) for event in events)
        return events

    def goes_on(self) -> bool:
        """Whether more may come: the run has not ended, and its process is not known to be gone."""
        return not self.ended and not is_abandoned(self._folder / OWNER)

    def follow(self, tell: Callable[[AnyEvent], None], stop: threading.Event) -> None:
        """Tell every event from here on, until the run ends, its process is gone, or `stop` is set."""
        more = True
        while more and not stop.wait(LOOK_EVERY_S):
            more = self.goes_on()  # asked first: what was written before the end is still read
            for event in self.new():
                tell(event)
