"""The first batch of each loader again and again: what a step takes without making batches.

What it takes away
    The time in which a `torch.utils.data.DataLoader` reads, transforms, collates and hands over batches. Workers fill
    their queues once and then rest, so they take no cores either. Copies to the device stay.

What stays as it is
    Epochs end when they would: indices are drawn as ever, except from an iterable dataset, whose end only its batches
    tell: it goes on for ever. Workers start at each epoch where they did.

When it refuses
    A program that takes no batches from a DataLoader, and one that writes into its batches: it would write into the
    same one again and again.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ("input-bound",)
BOUNDS = ()


def start(change: Change, altered: Callable[[Any], Any] = lambda batch: batch) -> None:
    """Stand beneath `__next__` of both kinds of iterators; `altered` makes of a first batch what is handed out."""
    from torch.utils.data import dataloader

    batches = _Batches(change, altered)
    change.nothing = (
        "no batch came from a torch.utils.data.DataLoader before the measured steps: this probe replaces no other input"
    )
    for kind in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
        change.replace(kind, "_next_data", batches.instead)


@dataclass
class _First:
    """The first batch of a loader."""

    sampler: Callable[[], Any]
    """The loader's sampler, None once that is gone."""
    batch: Any
    versions: list[int]
    """Versions of its tensors when it came."""


class _Batches:
    """The first batch of each loader; one that is built anew, as at each epoch, takes that of the one before it."""

    def __init__(self, change: Change, altered: Callable[[Any], Any]) -> None:
        self._change = change
        self._altered = altered
        self._first: dict[tuple[Any, ...], list[_First]] = {}

    def instead(self, next_data: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what stands in the place of an iterator's `_next_data`."""

        def call(iterator: Any) -> Any:
            alike = self._first.setdefault(_likeness(iterator), [])
            known = _of(alike, iterator._index_sampler)
            if known is None:
                batch = self._altered(next_data(iterator))
                alike.append(_First(_weakly(iterator._index_sampler), _fresh(batch), _versions(batch)))
                return batch
            _advance(iterator)
            if _versions(known.batch) != known.versions:
                self._change.refuse("the program writes into its batches: the same one would not be the same twice")
            self._change.times += 1
            return _fresh(known.batch)

        return call


def _of(alike: list[_First], sampler: Any) -> _First | None:
    """The first batch of that sampler's loader, or of one like it that is gone."""
    for one in alike:
        if one.sampler() is sampler:
            return one
    for one in alike:
        if one.sampler() is None:
            one.sampler = _weakly(sampler)
            return one
    return None


def _likeness(iterator: Any) -> tuple[Any, ...]:
    """Return what two loaders that are built by the same line have in common."""
    dataset, sampler = iterator._dataset, iterator._index_sampler
    size = len(dataset) if hasattr(type(dataset), "__len__") else None
    return type(dataset), size, getattr(sampler, "batch_size", None), iterator._drop_last, iterator._num_workers


def _weakly(sampler: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(sampler)
    except TypeError:  # a list of batches
        return lambda: sampler


def _advance(iterator: Any) -> None:
    """Draw one batch's indices, or use up one of those that workers hold. Raises StopIteration at an epoch's end."""
    if iterator._num_yielded == 0 or not hasattr(iterator, "_diagnose_held"):
        iterator._diagnose_held = getattr(iterator, "_tasks_outstanding", 0)
    try:
        iterator._next_index()
    except StopIteration:
        if iterator._diagnose_held <= 0:
            if iterator._num_workers and not iterator._persistent_workers:
                iterator._shutdown_workers()
            raise
        iterator._diagnose_held -= 1


def _fresh(batch: Any) -> Any:
    """The batch with containers of its own and the same tensors: programs take entries out of a batch."""
    if isinstance(batch, dict):
        made = copy.copy(batch)
        for key, value in batch.items():
            made[key] = _fresh(value)
        return made
    if isinstance(batch, tuple):
        parts = [_fresh(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, list):
        return [_fresh(part) for part in batch]
    if hasattr(batch, "_version") or not hasattr(batch, "__dict__"):
        return batch
    return copy.copy(batch)


def _versions(batch: Any) -> list[int]:
    """Return how often each tensor of a batch was written to."""
    return [tensor._version for tensor in tensors_of(batch)]


def tensors_of(batch: Any) -> Iterator[Any]:
    """All tensors of a batch, also of one that is an object with tensors as attributes."""
    if hasattr(batch, "_version"):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors_of(value)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from tensors_of(part)
    elif hasattr(batch, "__dict__"):
        for value in vars(batch).values():
            yield from tensors_of(value) if hasattr(value, "_version") or isinstance(value, (dict, list, tuple)) else ()
