"""Runs the step with smaller and larger batches, up to where more samples per step cost no more time.

What it takes away
    Making batches, as `cached-input` does. The first batch of each loader is cut, or repeated, to a quarter, half, all,
    twice and four times its samples: every tensor and list whose first dimension is that of the batch.

What stays as it is
    All that the program does with a batch. Its sums and learning rates would be wrong, but take as long.

When it refuses
    Whatever `cached-input` refuses, and a batch in which no tensor has samples in its first dimension. A program that
    names its batch size elsewhere fails with another one, and its error is the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import cached_input

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ()
BOUNDS = ("small-batch",)
SETTINGS = tuple({"factor": factor} for factor in (0.25, 0.5, 1, 2, 4))


def start(change: Change) -> None:
    """Stand where `cached-input` does, with batches of another size."""
    cached_input.start(change, lambda batch: resized(change, batch))


def resized(change: Change, batch: Any) -> Any:
    """The batch with so many times its samples, at least one."""
    samples = next((len(tensor) for tensor in cached_input.tensors_of(batch) if tensor.dim()), 0)
    if not samples:
        change.refuse("no tensor of a batch has samples in its first dimension")
        return batch
    wanted = max(1, round(samples * float(change.setting["factor"])))

    def of_tensor(tensor: Any) -> Any:
        if not tensor.dim() or len(tensor) != samples:
            return tensor
        return tensor[change.torch.arange(wanted) % samples]

    def of_list(items: list[Any]) -> list[Any] | None:
        if len(items) != samples or hasattr(items[0], "_version"):
            return None
        return [items[at % samples] for at in range(wanted)]

    return remade(batch, of_tensor, of_list)


def remade(
    part: Any, of_tensor: Callable[[Any], Any], of_list: Callable[[list[Any]], list[Any] | None] = lambda _: None
) -> Any:
    """A part of a batch with `of_tensor(tensor)` in the place of each tensor that `cached_input.tensors_of` finds,
    pinned as that was, and `of_list(items)` in the place of each list for which it is not None.
    """
    if hasattr(part, "_version"):
        made = of_tensor(part)
        return made.pin_memory() if part.is_pinned() else made
    if isinstance(part, tuple):
        parts = [remade(one, of_tensor, of_list) for one in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    if isinstance(part, list):
        found = of_list(part)
        return [remade(one, of_tensor, of_list) for one in part] if found is None else found
    inner = part if isinstance(part, dict) else getattr(part, "__dict__", {})
    for key, value in inner.items():
        if inner is part or hasattr(value, "_version") or isinstance(value, (dict, list, tuple)):
            inner[key] = remade(value, of_tensor, of_list)
    return part
