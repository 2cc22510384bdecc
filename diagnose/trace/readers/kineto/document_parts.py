"""Reads one large document with several processes, each a part of it, and joins what they read.

A part begins and ends at a guessed boundary between two events, and the processes on both sides of it guess alike. That
a part begins at a true boundary is proven by the part before it, which decodes up to there. So nothing is used unless
all parts fit together and none lost anything; else the document is read again, from its beginning to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from diagnose.trace.packed_columns import NotPacked, pack, unpack
from diagnose.trace.readers.io.reader_processes import START_BYTES, Child, cores, estimated_bytes, hand_back, process
from diagnose.trace.readers.kineto.chunks import KinetoStream
from diagnose.trace.readers.kineto.document import Losses
from diagnose.trace.readers.kineto.whole_document import Ranks, Whole, read_stream

LEAST_BYTES = 32 << 20
"""A part smaller than this is not worth a process."""

Part = tuple[int, int | None]
"""The offsets at which a part begins and ends, both before they are moved to the next boundary."""


def read_in_parts(path: Path, chunk_bytes: int) -> Whole | None:
    """A document that is large enough for several processes; None where one has to read it."""
    mine, *others = plan(estimated_bytes(path), cores())
    if not others or not sys.executable:
        return None
    with ExitStack() as stack:
        jobs = [[str(path), chunk_bytes, *part] for part in others]
        children = [stack.enter_context(process(__name__, job, 1)) for job in jobs]
        stream = KinetoStream(path, end=mine[1], chunk_bytes=chunk_bytes)
        ranks = read_stream(stream)
        return _joined(stream, ranks, children) if _is_sound(stream, ranks) else None


def plan(size_bytes: int, processes: int) -> list[Part]:
    """Parts for so many processes; the first is this one's, and larger, because it need not start."""
    count = min(processes, max(1, (size_bytes - START_BYTES) // LEAST_BYTES))
    length = (size_bytes - START_BYTES) // count if count > 1 else size_bytes
    cuts = [size_bytes - length * number for number in range(count - 1, 0, -1)]
    return list(zip([0, *cuts], [*cuts, None], strict=True))


def serve(job: tuple[str, int, int, int | None], files: list[int]) -> None:
    """Run a reader process: read a part and write the result, unless the part is malformed."""
    path, chunk_bytes, begin, end = job
    stream = KinetoStream(Path(path), begin=begin, end=end, chunk_bytes=chunk_bytes)
    ranks = read_stream(stream)
    if _is_sound(stream, ranks):
        said = [stream.begins, stream.ends, stream.header, ranks[None].plain()]
        hand_back(files[0], pack(said))


def _is_sound(stream: KinetoStream, ranks: Ranks) -> bool:
    return None in ranks and not stream.merged and stream.losses == Losses()


def _joined(stream: KinetoStream, ranks: Ranks, children: Sequence[Child]) -> Whole | None:
    tables, header, ends = ranks[None], stream.header, stream.ends
    for child in children:
        child.wait()
        said = _said(child)
        if said is None or ends is None or said[0] != ends:
            return None
        _, ends, more, plain = said
        header |= more
        tables.extend(plain)
    return Whole({None: tables}, header, Losses(), has_events=True) if ends is None else None


def _said(child: Child) -> Any:
    packed = child.result(0)
    try:
        return None if packed is None else unpack(packed)
    except NotPacked:
        return None
