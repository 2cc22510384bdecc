"""The functions that run on a worker. They return an error of the user's input as a value: raised on a worker, it would
be logged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from diagnose.analysis.rank_digest import Digest, digest_of
from diagnose.cluster.rules import Rules, catalogue_of
from diagnose.errors import DiagnoseError
from diagnose.trace.readers import Given, Part, find, open_part, with_warning
from diagnose.trace.readers.io.reader_processes import cores, sharing
from diagnose.trace.readers.sidecars import is_rank, with_companions


@dataclass(frozen=True, slots=True)
class Piece:
    """One trace of a part."""

    part: Part
    number: int
    warnings: tuple[str, ...] = ()
    """Warnings about it beyond those of its reader."""


@dataclass(frozen=True, slots=True)
class ReducedTrace:
    """The digest of one trace, as a worker returns it."""

    piece: Piece
    digest: Digest
    is_rank: bool
    """False for what only lies beside a rank: it belongs into that rank's trace."""

    @property
    def rank(self) -> int | None:
        """The rank's number in the job."""
        return self.digest.rank

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the job."""
        return self.digest.world_size


def _in_one_process() -> AbstractContextManager[None]:
    """Within this, nothing is read by further processes: the other cores have workers of their own."""
    return sharing(cores())


def find_inputs(paths: list[Path], rules: Rules) -> list[Given] | DiagnoseError:
    """Return the inputs to read below `paths`. Runs on a worker, so that only workers need to see the files."""
    try:
        catalogue_of(rules)
        return find(paths)
    except DiagnoseError as error:
        return error


def reduce_part(part: Part, rules: Rules) -> list[ReducedTrace] | DiagnoseError:
    """Return the digests of a part's traces."""
    try:
        with _in_one_process():
            catalogue, traces = catalogue_of(rules), open_part(part)
    except DiagnoseError as error:
        return error
    return [
        ReducedTrace(Piece(part, number), digest_of(trace, catalogue), is_rank(trace))
        for number, trace in enumerate(traces)
    ]


def reduced_together(pieces: list[Piece], rules: Rules) -> Digest | DiagnoseError:
    """Return the digest of a rank: its trace (the first piece) and the files beside it."""
    try:
        catalogue = catalogue_of(rules)
        with _in_one_process():
            opened = {part: open_part(part) for part in dict.fromkeys(piece.part for piece in pieces)}
        traces = [opened[piece.part][piece.number] for piece in pieces]
    except DiagnoseError as error:
        return error
    for number, piece in enumerate(pieces):
        for warning in piece.warnings:
            traces[number] = with_warning(traces[number], warning)
    return digest_of(with_companions(traces)[0], catalogue)
