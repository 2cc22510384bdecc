"""How many bytes operators on lists of tensors move: joining them (`cat`), and optimizers' `_foreach_…` and `_fused_…`.

Profilers record the shapes in a list, if it is not too long, but no number format; that is read off the kernel's name.
A list that is not recorded is measured by the grid: each block of PyTorch's `multi_tensor_apply_kernel` treats CHUNK
elements of one tensor, so that the grid is exact where tensors are large.

Thresholds
    CHUNK 65536: elements of a block (`kChunkSize`, ATen/native/cuda/MultiTensorApply.cuh), less at a tensor's end.
"""

from __future__ import annotations

import re
from math import prod

from diagnose.measure.views.operands import Operands

CHUNK = 65_536
_ITEM = re.compile(r"OpaqueType<(\d+)u?>")
_TYPES = {"c10::BFloat16": 2, "c10::Half": 2, "double": 8, "float": 4}
_BY_CHUNKS = re.compile(r"multi_tensor_apply_kernel")
_ONLY_READ = re.compile(r"^aten::_foreach_(norm|max)$")
_OF_SQUARES = re.compile(r"^aten::_foreach_addcmul_$")
"""Adds products of two lists, which in an optimizer are both the gradients: they are read once."""
_FUSED = {"_fused_adam": (4, 3), "_fused_adamw": (4, 3), "_fused_sgd": (3, 2), "_fused_adagrad": (3, 2)}
"""How many lists a fused optimizer reads, and how many of them it writes."""


def is_on_lists(op_name: str) -> bool:
    """Whether an operator of this name works on lists of tensors, and this module knows how."""
    return re.match(r"^aten::(cat$|_foreach_|_amp_foreach_|_fused_(adam|adamw|sgd|adagrad)_$)", op_name) is not None


def bytes_of_lists(op_name: str, given: Operands, kernels: tuple[str, ...]) -> int | None:
    """Return the bytes that all of an operator's kernels move together; None where lists or format are not recorded."""
    lists = [shapes for shapes in given.lists if shapes]
    item = item_bytes(kernels[0])
    if not lists or item is None:
        return None
    sizes = [sum(map(prod, shapes)) * item for shapes in lists]
    if op_name == "aten::cat":
        return 2 * sizes[0]
    fused = _FUSED.get(op_name.removeprefix("aten::").rstrip("_"))
    if fused is not None:
        return sum(fused) * sizes[0]
    return _passes(op_name, len(sizes)) * sizes[0]


def bytes_by_grid(op_name: str, given: Operands, kernel: str, blocks: int) -> int | None:
    """Return the bytes that one kernel moves, from its grid; None where the grid does not tell."""
    item, lists = item_bytes(kernel), given.dtypes.count("TensorList")
    fused = _FUSED.get(op_name.removeprefix("aten::").rstrip("_"))
    if item is None or not lists or _BY_CHUNKS.search(kernel) is None:
        return None
    return (sum(fused) if fused else _passes(op_name, lists)) * blocks * CHUNK * item


def _passes(op_name: str, lists: int) -> int:
    """Return how many lists are read and written: every one is read, and one written."""
    read = lists - 1 if _OF_SQUARES.match(op_name) else lists
    return read if _ONLY_READ.match(op_name) else read + 1


def item_bytes(kernel: str) -> int | None:
    """Bytes of one element, as a kernel's name tells them; None where it does not."""
    if (match := _ITEM.search(kernel)) is not None:
        return int(match[1])
    found = [(place, size) for word, size in _TYPES.items() if (place := kernel.find(word)) >= 0]
    return min(found)[1] if found else None
