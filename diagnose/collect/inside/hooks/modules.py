"""Knows the program's modules by the hooks that torch calls while they are put together.

Nothing is hooked to their calls: a global hook on those would have compiled code hook in as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any


class Modules:
    """All modules of a process that have buffers or parts, in the order in which they got them."""

    def __init__(self, torch: Any) -> None:
        self._noted: dict[int, weakref.ref[Any]] = {}
        module = torch.nn.modules.module
        module.register_module_buffer_registration_hook(self._got)
        module.register_module_module_registration_hook(self._got)

    def _got(self, module: Any, _name: str, part: Any) -> None:
        # A part may be a copy of a module, which got nothing registered itself.
        for one in (module, part):
            if hasattr(one, "_buffers"):
                known = self._noted.get(id(one))
                if known is None or known() is not one:
                    self._noted.pop(id(one), None)
                    self._noted[id(one)] = weakref.ref(one)

    def roots(self) -> list[Any]:
        """Return the modules that are no part of another, in the order in which they were put together."""
        alive = [module for reference in list(self._noted.values()) if (module := reference()) is not None]
        parts = {id(part) for module in alive for part in module.modules() if part is not module}
        return [module for module in alive if id(module) not in parts]

    def with_buffers(self) -> Iterator[Any]:
        """Yield the modules that have buffers, each once."""
        told: set[int] = set()
        for reference in list(self._noted.values()):
            owner = reference()
            for module in owner.modules() if owner is not None else ():
                if id(module) not in told and module._buffers:
                    told.add(id(module))
                    yield module
