"""Lets a capture that began early stand still, before its first step or between two, until it may go on.

Stopped at just any moment, a process may hold the lock of a compiler's cache or of a dataset that another one needs
before it can be measured, or have left its device with work. So it is asked first: as long as the run folder has a file
`stand`, it waits where its first optimizer is made or else behind the step that it is in, with its devices idle, and
says so by a file `stands` in its own. Before the first step it holds parameters alone: many can wait there at once.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from ...records import STAND, STANDS
from ..guard import guarded
from ..transparency import unseen

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

_LOOK_EVERY_S = 0.01


def stand_before_steps(hub: ProcessHooks, torch: Any) -> None:
    """Wait where the program makes its first optimizer, as long as that is asked for."""
    optimizer_class = torch.optim.Optimizer
    construct = optimizer_class.__init__
    stand = guarded(lambda: None if hub.is_child else stand_still(hub))

    @unseen
    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if optimizer_class.__init__ is constructed:
            optimizer_class.__init__ = construct
            stand()

    optimizer_class.__init__ = constructed


def stand_still(hub: ProcessHooks) -> None:
    """Wait as long as that is asked for; with nothing of a step under way."""
    asked, told = hub.folder.parent / STAND, hub.folder / STANDS
    if not asked.exists():
        return
    hub.synchronize()
    told.parent.mkdir(parents=True, exist_ok=True)
    told.touch()
    while asked.exists():
        time.sleep(_LOOK_EVERY_S)
    told.unlink(missing_ok=True)
