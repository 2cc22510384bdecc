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
    return _resized(change.torch, batch, samples, max(1, round(samples * float(change.setting["factor"]))))


def _resized(torch: Any, part: Any, samples: int, wanted: int) -> Any:
    if isinstance(part, dict):
        for key, value in part.items():
            part[key] = _resized(torch, value, samples, wanted)
        return part
    if isinstance(part, tuple):
        parts = [_resized(torch, one, samples, wanted) for one in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    if hasattr(part, "_version"):
        if not part.dim() or len(part) != samples:
            return part
        chosen = part[torch.arange(wanted) % samples]
        return chosen.pin_memory() if part.is_pinned() else chosen
    if isinstance(part, list) and len(part) == samples and not hasattr(part[0], "_version"):
        return [part[at % samples] for at in range(wanted)]
    return [_resized(torch, one, samples, wanted) for one in part] if isinstance(part, list) else part
