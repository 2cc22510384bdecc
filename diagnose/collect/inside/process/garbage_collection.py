"""Keeps the garbage collector from walking over torch in a process that is there for a few steps' numbers.

What `import torch` makes stays until the end, and it is much: the collector passes over all of it many times while it
is made and, with what compilation support adds at the first optimizer, again afterwards. Of a small program's capture
that was a sixth of the processor's time. Numbers do not depend on it; step times may, so nothing that is timed runs
like this.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks


def pass_over_torch(hub: ProcessHooks) -> None:
    """Collect nothing until torch has been imported, and nothing of what is there by then. Leaves alone a program that
    has turned the collector off."""
    if gc.isenabled():
        gc.disable()
        hub.on_torch(lambda _torch: _go_on())


def _go_on() -> None:
    gc.freeze()
    gc.enable()
