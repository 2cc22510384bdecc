"""Counts what autograd saves within a block: on hosts that have no device's allocator to ask.

autograd hands what it saves to the last one who asked for it; somebody else who asks is left alone. Transforms of
`torch.func` refuse to begin while anybody asks at all: to them it steps aside. What could not be counted (a tensor
without a storage of its own, as sparse ones are) makes the whole count worthless, and then there is none. Nor is there
one with a torch that does not tell who asked last, as 2.6 does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...guard import guarded
from ...transparency import unseen

_SWITCH_OFF = "_saved_tensors_hooks_disable"
_WHO_ASKED = "_top_saved_tensors_default_hooks"


class SavedTensors:
    """The count of one process."""

    def __init__(self, torch: Any) -> None:
        self.sizes: dict[int, int] = {}
        """Bytes by address of the storage; the caller empties it."""
        self._autograd = torch._C._autograd
        self._top: Callable[..., Any] | None = getattr(self._autograd, _WHO_ASKED, None)
        self.whole = self._top is not None
        """False once something could not be counted."""
        self._weights: frozenset[int] = frozenset()
        self._hooks = (self._pack, lambda tensor: tensor)
        self._switch_off: Callable[..., Any] | None = getattr(self._autograd, _SWITCH_OFF, None) if self._top else None
        if self._switch_off is not None:
            setattr(self._autograd, _SWITCH_OFF, self._stepping_aside(self._switch_off))
        self.begin: Callable[[Any], bool | None] = guarded(self._begin)
        self.end: Callable[[], object] = guarded(self._end)

    def close(self) -> None:
        """Leave torch as it was."""
        if self._switch_off is not None:
            setattr(self._autograd, _SWITCH_OFF, self._switch_off)
            self._switch_off = None

    def _begin(self, module: Any) -> bool:
        """Count from now on what is saved beside the module's own weights; whether it does."""
        if not self.whole:
            return False
        self.whole = False  # unless all goes well
        if self._hooks_on_top() is not None:
            self.whole = True
            return False
        try:
            self._weights = frozenset(parameter.untyped_storage().data_ptr() for parameter in module.parameters())
        except RuntimeError:  # sharded ones have no storage of their own, and what stands in for them is not known
            return False
        self._autograd._push_saved_tensors_default_hooks(*self._hooks)
        self.whole = True
        return True

    def _end(self) -> None:
        if self._is_asked():
            self._autograd._pop_saved_tensors_default_hooks()

    def _hooks_on_top(self) -> Any:
        return self._top(True) if self._top is not None else None

    def _is_asked(self) -> bool:
        top = self._hooks_on_top()
        return top is not None and top[0] is self._hooks[0]

    @unseen
    def _pack(self, tensor: Any) -> Any:
        try:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._weights:
                self.sizes[storage.data_ptr()] = storage.nbytes()
        except Exception:  # noqa: BLE001 - this is called within the program's forward pass
            self.whole = False
        return tensor

    def _stepping_aside(self, switch_off: Callable[..., Any]) -> Callable[..., Any]:
        def step_aside() -> None:
            if self._is_asked():
                self.whole = False
                self._autograd._pop_saved_tensors_default_hooks()

        aside = guarded(step_aside)

        def stepping_aside(*args: Any, **kwargs: Any) -> Any:
            aside()
            return switch_off(*args, **kwargs)

        return stepping_aside
