"""Finds what slows a PyTorch training run, proves what it costs, fixes it, and keeps what measurably helps.

    diagnose.analyze(path)       recordings, diagnosed
    diagnose.watch(loader)       a loop of this process, watched
    %load_ext diagnose           %%diagnose before a cell's loop

`import diagnose` loads none of it: each name is imported when it is first used.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # the module `typing` takes 4 ms to import
if TYPE_CHECKING:
    from typing import Any

    from diagnose.api.analysis import Analysis, analyze
    from diagnose.api.loop_watch import LoopWatch, watch
    from diagnose.api.notebook import load_ipython_extension

__all__ = ["Analysis", "LoopWatch", "analyze", "load_ipython_extension", "watch"]
__version__ = "0.1.0"

_HOME = {
    "Analysis": "diagnose.api.analysis",
    "analyze": "diagnose.api.analysis",
    "LoopWatch": "diagnose.api.loop_watch",
    "watch": "diagnose.api.loop_watch",
    "load_ipython_extension": "diagnose.api.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
