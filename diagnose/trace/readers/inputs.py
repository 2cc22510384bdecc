"""Splits what a user names into parts that are read separately, here or on other machines, and joins the results.

    given = find(paths)                                    # in diagnose.trace.readers
    gather(given, open_part, with_warning)                 → what was made of the parts, in the order of the ranks

Nothing here knows what a part is made into: traces where it is read, digests where only those travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from diagnose.errors import DiagnoseError, NotATrace

Part = tuple[Path, ...]
"""A file, files that hold one recording together, or the folder of a rank."""


@dataclass(frozen=True, slots=True)
class Given:
    """A path that a user named, and what is to be read of it."""

    parts: tuple[Part, ...]
    folder: Path | None = None
    """A folder of files of any kind: what is no trace there is left out, and said."""


class OfRank(Protocol):
    """A trace, or what is left of one."""

    @property
    def rank(self) -> int | None:
        """The rank's number in the job."""

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the job."""


_Made = TypeVar("_Made", bound=OfRank)


def gather(
    given: Sequence[Given], made: Callable[[Part], Sequence[_Made]], with_warning: Callable[[_Made, str], _Made]
) -> list[_Made]:
    """Return the results of `made` for every part, by rank. `with_warning` adds a folder's warnings.

    Raises what `made` raises of a part that was named, and NotATrace where a folder holds nothing that can be read.
    """
    every: list[_Made] = []
    for one in given:
        if one.folder is None:
            every += (result for part in one.parts for result in made(part))
        else:
            every += _of_folder(one.folder, one.parts, made, with_warning)
    return sorted(every, key=lambda result: (result.rank is None, result.rank or 0))


def _of_folder(
    folder: Path,
    parts: Sequence[Part],
    made: Callable[[Part], Sequence[_Made]],
    with_warning: Callable[[_Made, str], _Made],
) -> list[_Made]:
    results: list[_Made] = []
    left_out: list[str] = []
    for part in parts:
        try:
            results += made(part)
        except DiagnoseError as error:
            left_out.append(str(error))
    if not parts:
        raise NotATrace(folder, "there is no file in this folder")
    if not results:
        why = f"; for example {left_out[0]}" if left_out else ""
        raise NotATrace(folder, f"none of the {len(left_out)} files in this folder is a trace that can be read{why}")
    alone = results[0]
    if len(results) == 1 and alone.rank is not None and (alone.world_size or 0) > 1:
        results[0] = with_warning(
            alone,
            f"{folder}: of the {alone.world_size} ranks of this job only rank {alone.rank} is here: what the others "
            "did, and who waited for them, is unknown",
        )
    if left_out:
        results[0] = with_warning(
            results[0],
            f"{folder}: {len(left_out)} files in it are no traces and were left out, the first being {left_out[0]}",
        )
    return results
