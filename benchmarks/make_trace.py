"""Makes a large torch.profiler trace of a real one: the same events again and again, later and with other ids.

    python benchmarks/make_trace.py trace.json.gz large.json --megabytes 500
    python benchmarks/make_trace.py trace.json.gz large.json.gz --copies 51

Every byte of Kineto's layout is kept; what changes from copy to copy is the time, the ids that join events, and the
number of the step. Names repeat, so a trace made this way has fewer different ones than a real one of its size.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_TS = rb'"ts"\s*:\s*"?'
_IDS = (
    rb'"correlation"\s*:\s*"?',
    rb'"[Ee]xternal id"\s*:\s*"?',
    rb'"id"\s*:\s*"?',
    rb'"Ev Idx"\s*:\s*',
    rb'"Record function id"\s*:\s*',
    rb'"Sequence number"\s*:\s*',
    rb'"Python (?:parent )?id"\s*:\s*',
    rb'"name"\s*:\s*"ProfilerStep#',
)
# Which group matched tells the kind of a number; 0 and -1 stand for "none" and stay.
_NUMBER = re.compile(b"|".join(b"%s([1-9][0-9]{0,17})(?![0-9])" % key for key in (_TS, *_IDS)))
_PAUSE_US = 1000


def main() -> None:
    """Write the trace that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", type=Path, help="a torch.profiler trace, .json or .json.gz")
    parser.add_argument("out", type=Path, help="where to write; compressed when the name ends in .gz")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--copies", type=int, help="how often the events are repeated")
    size.add_argument("--megabytes", type=float, help="the size to reach, uncompressed")
    options = parser.parse_args()
    template = Template.of(plain_bytes(options.base))
    copies = options.copies or max(1, round(options.megabytes * 1e6 / template.size_bytes))
    written = template.write(options.out, copies)
    print(f"{options.out}: {copies} copies, {written / 1e6:.1f} MB uncompressed")


def plain_bytes(path: Path) -> bytes:
    """A file's content, decompressed."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


@dataclass(frozen=True)
class Template:
    """A trace taken apart: what stays, and the numbers that change from copy to copy."""

    before: bytes
    after: bytes
    texts: Sequence[bytes]
    """What lies between the numbers; one more than there are numbers."""
    numbers: Sequence[int]
    shifts: Sequence[int]
    """What is added to each number per copy."""

    @classmethod
    def of(cls, data: bytes) -> Template:
        """Take a trace apart. Raises ValueError when it has no array of events."""
        start, end = events_of(data)
        events = data[start:end]
        texts, numbers, kinds = [], [], []
        at = 0
        for match in _NUMBER.finditer(events):
            group = match.lastindex or 0
            kinds.append(group - 1)
            texts.append(events[at : match.start(group)])
            numbers.append(int(match[group]))
            at = match.end()
        texts.append(events[at:])
        shifts = [_shift(kind, numbers, kinds, events) for kind in range(1 + len(_IDS))]
        return cls(data[:start], data[end:], texts, numbers, [shifts[kind] for kind in kinds])

    @property
    def size_bytes(self) -> int:
        """The size of one copy."""
        return sum(map(len, self.texts)) + sum(len(str(number)) for number in self.numbers)

    def write(self, path: Path, copies: int) -> int:
        """Write a trace of that many copies; its size, uncompressed."""
        with closing(_opened(path)) as file:
            return sum(file.write(piece) for piece in self.pieces(copies))

    def pieces(self, copies: int) -> Iterator[bytes]:
        """The document, a copy at a time."""
        yield self.before
        for copy in range(copies):
            if copy:
                yield b","
            changed = [b"%d" % (number + copy * by) for number, by in zip(self.numbers, self.shifts, strict=True)]
            mixed = [b""] * (len(changed) + len(self.texts))
            mixed[::2], mixed[1::2] = self.texts, changed
            yield b"".join(mixed)
        yield self.after


def events_of(data: bytes) -> tuple[int, int]:
    """Return the bounds of the events: behind the array's bracket, and behind the last event."""
    found = _ARRAY.search(data)
    start = found.end() if found else data.index(b"[") + 1
    # Latin-1 gives every byte one character, so positions in the text are positions in the bytes.
    _, end = json.JSONDecoder(strict=False).raw_decode(data.decode("latin-1"), start - 1)
    return start, len(data[: end - 1].rstrip())


def _shift(kind: int, numbers: Sequence[int], kinds: Sequence[int], events: bytes) -> int:
    """Return the offset of one copy's numbers of a kind, so that no two copies share one."""
    mine = [number for number, its in zip(numbers, kinds, strict=True) if its == kind]
    return _length_us(events) + _PAUSE_US if kind == 0 else max(mine) - min(mine) + 1 if mine else 0


def _length_us(events: bytes) -> int:
    complete = [event for event in json.loads(b"[%s]" % events, strict=False) if event and event.get("ph") == "X"]
    times = [(float(event["ts"]), float(event.get("dur") or 0)) for event in complete]
    return int(max(start + length for start, length in times) - min(start for start, _ in times))


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "wb", compresslevel=6) if path.suffix == ".gz" else path.open("wb")


if __name__ == "__main__":
    main()
