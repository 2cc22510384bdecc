"""The lines of source that a watched program's training thread went through in one step: `lines.json.gz`."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from diagnose.errors import NotATrace
from diagnose.trace import StackFrame

_LARGEST = 1 << 62
_LARGEST_BYTES = 64 << 20
_DEEPEST = 64
_Moment = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Length = Annotated[int, Meta(ge=-(1 << 40), le=1 << 40)]
_Place = Annotated[int, Meta(ge=-1, lt=1 << 31)]


class _File(Struct):
    start_ns: _Moment
    frames: list[tuple[str, _Place, str, _Place]]
    t: list[_Length]
    f: list[_Place]


@dataclass(frozen=True)
class FollowedLines:
    """A thread's line log: `times` in order, and for each the index in `stacks` of what holds from then on."""

    times: list[int]
    places: list[int]
    stacks: tuple[tuple[StackFrame, ...], ...]
    """The user's own frames, innermost first; the empty stack is where none of his code ran."""


def read_lines(path: Path) -> FollowedLines:
    """Return the traced lines of a file. Raises NotATrace where it is no such file."""
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_packed else path.open("rb") as opened:
            text = opened.read(_LARGEST_BYTES)
        file = msgspec.json.decode(text, type=_File)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotATrace(path, "cannot be read and was left out") from error
    stacks: list[tuple[StackFrame, ...]] = []
    for place, (name, line, function, caller) in enumerate(file.frames):
        above = stacks[caller] if 0 <= caller < place else ()
        stacks.append((StackFrame(name, line, function), *above[: _DEEPEST - 1]))
    stacks.append(())
    known = range(len(file.frames))
    times = sorted(accumulate(file.t, initial=file.start_ns))[1:]
    places = [place if place in known else len(file.frames) for place in file.f]
    return FollowedLines(times[: len(places)], places[: len(times)], tuple(stacks))
