"""Keeps a trial's copy of the program from writing into the user's own files.

The guard itself is `diagnose.program.guard`; the recipe says where that file lies, as nothing but this package can be
imported here.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks


def protect(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Install the guard that the recipe asks for, if any; where it cannot be, the program does not go on."""
    wanted = recipe.get("guard")
    if not wanted:
        return
    try:
        told, scratch = wanted.get("told"), wanted.get("scratch", ())
        guard = _load(wanted["module"]).Guard(wanted["originals"], wanted["copy"], told=told, scratch=scratch)
        guard.install()
    except Exception as error:  # noqa: BLE001 - the hub would swallow it, and the copy run unguarded
        os.write(2, f"diagnose: the user's files cannot be protected: {error!r}\n".encode())
        os._exit(1)
    hub.on_torch(guard.watch_torch)


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_diagnose_guard", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no guard in {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
