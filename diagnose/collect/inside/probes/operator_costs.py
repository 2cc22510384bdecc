"""Counts what operators would cost on a device, at the program's lines, while the program runs on the CPU.

Every operator below autograd passes by: one that computes on the device is a launch, with its bytes and, for matrix
products and convolutions, its FLOPs; one whose answer the host waits for is a sync.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ..hooks.pretended_device import Residence, is_device
from ..source_ownership import Ownership

Where = tuple[str, int]
NOWHERE: Where = ("", 0)

_READS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "bincount"})
"""Operators whose results, or whose results' shapes, the host waits for."""
_FREE = frozenset(
    {"detach", "detach_", "lift_fresh", "alias", "empty", "empty_like", "empty_strided", "new_empty", "set_"}
    | {
        "new_empty_strided",
        "_local_scalar_dense",
        "is_same_size",
        "resize_",
        "record_stream",
        "_has_same_storage_numel",
    }
)
"""Operators that launch nothing, besides those that return views."""


class OperatorCosts:
    """The counts of one step: `(kind, file, line)` with how often, and how many bytes or FLOPs."""

    def __init__(self, residence: Residence) -> None:
        self.residence = residence
        self.counts: Counter[tuple[str, str, int]] = Counter()
        self.sizes: Counter[tuple[str, str, int]] = Counter()
        self._ownership: Ownership | None = None
        self._flops: Any = {}
        self._views: dict[Any, bool] = {}
        self._torch: Any = None

    def watch(self, torch: Any) -> None:
        """See every operator of this thread from now on."""
        from torch.utils import _python_dispatch, flop_counter

        self._torch, self._flops = torch, flop_counter.flop_registry
        seen = self._note_call
        base: Any = _python_dispatch.TorchDispatchMode

        class Mode(base):  # type: ignore[misc]  # torch does not annotate it
            @classmethod
            def is_infra_mode(cls) -> bool:
                return True

            @classmethod
            def ignore_compile_internals(cls) -> bool:
                return True

            def __torch_dispatch__(
                self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
            ) -> Any:
                return seen(func, types, args, kwargs or {})

        mode: Any = Mode()
        mode.__enter__()

    def note(self, kind: str, count: int = 1, size: int = 0) -> None:
        """Count an event at the program's line that led here."""
        where = (kind, *self._where())
        self.counts[where] += count
        self.sizes[where] += size

    def _where(self) -> Where:
        if self._ownership is None or not self._ownership.roots:
            self._ownership = Ownership()
        _, user = self._ownership.caller(sys._getframe(2))
        return NOWHERE if user is None else (user.f_code.co_filename, user.f_lineno)

    def _note_call(self, func: Any, _types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on_device, where = False, kwargs.get("device")
        if where is not None and is_device(where):
            kwargs = {**kwargs, "device": self._torch.device("cpu")}
            on_device = True
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        tensors = list(_tensors((*args, *kwargs.values()), self._torch.Tensor))
        on_device = on_device or any(map(self.residence.holds, tensors))
        result = func(*args, **kwargs)
        if func.namespace == "c10d":
            self.note("collective", 1, sum(map(_size, tensors)))
        if not on_device and not self.residence.everything:
            return result
        name = func._schema.name.partition("::")[2]
        results = list(_tensors((result,), self._torch.Tensor))
        for made in results:
            self.residence.put(made)
        if func.namespace != "aten":
            return result
        if name in _READS or (name in ("index", "index_put_", "index_put") and self._by_mask(args)):
            self.note("sync")
        if name not in _FREE and not self._is_view(func):
            self._launch(func, args, kwargs, result, tensors, results)
        return result

    def _launch(self, func: Any, args: Any, kwargs: Any, result: Any, tensors: list[Any], results: list[Any]) -> None:
        file, line = self._where()
        moved = sum(map(_size, tensors)) + sum(map(_size, results))
        self.counts["launch", file, line] += 1
        self.sizes["launch", file, line] += moved
        if any(one.dtype == self._torch.float64 for one in results):
            self.counts["float64", file, line] += 1
        count = self._flops.get(func.overloadpacket)
        if count is not None:
            kind = f"flops {str(results[0].dtype).removeprefix('torch.')}" if results else "flops"
            self.counts[kind, file, line] += 1
            self.sizes[kind, file, line] += int(count(*args, **kwargs, out_val=result))
        if any(one.requires_grad for one in tensors) and self._torch.is_grad_enabled():
            self.counts["recorded", file, line] += 1

    def _by_mask(self, args: tuple[Any, ...]) -> bool:
        masks = (self._torch.bool, self._torch.uint8)
        indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
        return any(one is not None and one.dtype in masks for one in indices)

    def _is_view(self, func: Any) -> bool:
        known = self._views.get(func)
        if known is None:
            returned = [one.alias_info for one in func._schema.returns]
            known = self._views[func] = any(alias is not None and not alias.is_write for alias in returned)
        return known


def _tensors(values: Iterable[Any], kind: type) -> Iterator[Any]:
    for value in values:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value, kind)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
