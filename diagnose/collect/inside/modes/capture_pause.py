"""Lets a capture that began early stand still between two of its steps, until it may go on.

Stopped at just any moment, a process may hold the lock of a compiler's cache or of a dataset that another one needs
before it can be measured, or have left its device with work. So it is asked first: as long as the run folder has a file
`stand`, it waits behind the step that it is in, with its devices idle, and says so by a file `stands` in its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...records import STAND, STANDS

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

_LOOK_EVERY_S = 0.01


def stand_still(hub: ProcessHooks) -> None:
    """Right after a step: wait as long as that is asked for."""
    asked, told = hub.folder.parent / STAND, hub.folder / STANDS
    if not asked.exists():
        return
    hub.synchronize()
    told.touch()
    while asked.exists():
        time.sleep(_LOOK_EVERY_S)
    told.unlink(missing_ok=True)
