"""Runs the step with shorter and longer sequences, to where tokens per second are most.

What it takes away
    Making batches, as `cached-input` does. The sequences in the first batch of each loader are cut, or repeated, to a
    quarter, half, all and twice their length. That is the second dimension of the first tensor of whole numbers that
    has two, as tokens do; every tensor is cut or repeated in each dimension, after its first, that is as long.

What stays as it is
    All that the program does with a batch. Its losses would be wrong, but take as long.

When it refuses
    Whatever `cached-input` refuses, and a batch without a tensor of whole numbers that has two dimensions. A program
    that names its length elsewhere, as a table of positions does, fails with another one, and its error is the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import cached_input
from .batch_sweep import remade

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ()
BOUNDS = ()
SETTINGS = tuple({"length": factor} for factor in (0.25, 0.5, 1, 2))


def start(change: Change) -> None:
    """Stand where `cached-input` does, with sequences of another length."""
    cached_input.start(change, lambda batch: resized(change, batch))


def resized(change: Change, batch: Any) -> Any:
    """The batch with sequences of so many times their length, at least one."""
    length = next((tensor.shape[1] for tensor in cached_input.tensors_of(batch) if _has_tokens(tensor)), 0)
    if not length:
        change.refuse("no tensor of a batch has whole numbers in two dimensions, as tokens of sequences")
        return batch
    wanted = change.torch.arange(max(1, round(length * float(change.setting["length"])))) % length

    def of_tensor(tensor: Any) -> Any:
        for place in range(1, tensor.dim()):
            if tensor.shape[place] == length:
                tensor = tensor.index_select(place, wanted.to(tensor.device))
        return tensor

    return remade(batch, of_tensor)


def _has_tokens(tensor: Any) -> bool:
    return tensor.dim() == 2 and tensor.shape[1] > 1 and not tensor.is_floating_point() and not tensor.is_complex()
