"""The code that runs in the watched process. It imports torch and the standard library only.

It must not change the program's numbers, must never raise into it, prints nothing, and costs next to nothing until the
program imports torch: only then is the recipe read and `modes.<mode>.start(recipe, hub)` called, right before torch
runs.

The package is loaded under a private name (see `injected/sitecustomize.py`), so its modules import each other
relatively (`from ..writer import Writer`) and nothing else of `diagnose` but what lies beside it and
needs no more than it does: `records`, `calibrations`, `traced_ranks`.

    boot ──▶ imports ──▶ process_hooks ◀── hooks
                             │
                             ▼
    recipe ──────────────▶ modes ──▶ probes, process ──▶ writer ──▶ rank<k>/
    guard, transparency around everything that the program calls
"""

from __future__ import annotations

import os

from ..records import RECIPE_VARIABLE

TYPE_CHECKING = False  # the module `typing` costs 3 ms, and every Python that the program starts comes by here
if TYPE_CHECKING:
    from typing import Any

    from .process_hooks import ProcessHooks

__all__ = ["ProcessHooks", "boot"]


def boot() -> None:
    """Wait for torch to be imported, if there is a recipe."""
    if os.environ.get(RECIPE_VARIABLE):
        from .imports import before_import

        before_import("torch", _start)


def _start() -> None:
    import importlib
    import json

    from .process_hooks import ProcessHooks

    recipe = json.loads(os.environ[RECIPE_VARIABLE])
    hub = ProcessHooks(recipe)
    if "room" in recipe:
        importlib.import_module(".process.socket_dir", __name__).keep_sockets_in(recipe["room"], hub)
    hub.on_torch(importlib.import_module(".hooks.inductor_cache_workaround", __name__).refuse)
    mode = importlib.import_module(f".modes.{recipe['mode']}", __name__)
    mode.start(recipe, hub)


def __getattr__(name: str) -> Any:
    if name == "ProcessHooks":
        from .process_hooks import ProcessHooks

        return ProcessHooks
    raise AttributeError(name)
