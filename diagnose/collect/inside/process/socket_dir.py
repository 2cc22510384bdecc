"""Keeps the sockets of a trial's workers in a folder that goes when the trial does.

`multiprocessing` has a folder for them, made where it is first needed, and takes it away when the process comes to its
end. A trial's process is ended in the midst of its work, and each would leave one behind.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks


def keep_sockets_in(room: str, hub: ProcessHooks) -> None:
    """Name the folder, whose path is short enough for a socket's name, before the program starts any process."""
    hub.on_torch(lambda _torch: _name(room))


def _name(room: str) -> None:
    process: Any = sys.modules.get("multiprocessing.process")  # torch has imported it
    settings = getattr(process.current_process(), "_config", None) if process is not None else None
    if isinstance(settings, dict):  # those that it starts get a copy
        settings.setdefault("tempdir", room)
