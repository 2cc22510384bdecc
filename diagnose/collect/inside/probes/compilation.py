"""Follows torch.compile in a process that is measured or captured: what it does to the hooks, and how often it works.

A program that compiles does so in its first steps, in its first backward passes, and again for what it did not foresee;
CUDA graphs are recorded later still. Whoever waits for steady steps has to know of all of these.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from ..guard import guarded
from ..transparency import unseen

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks


class Compiling:
    """`times`: how often something has been compiled, or recorded as a CUDA graph, so far."""

    def __init__(self, hub: ProcessHooks) -> None:
        self.times = 0
        self._hub = hub
        self._followed = False
        hub.on_torch(self._install)

    def _install(self, torch: Any) -> None:
        compile_ = torch.compile
        used = guarded(self._used)

        # `nn.Module.compile` comes by here too: it looks this name up on every call.
        @unseen
        @functools.wraps(compile_)
        def watched_compile(*args: Any, **kwargs: Any) -> Any:
            result = compile_(*args, **kwargs)
            used()
            return result

        torch.compile = watched_compile

    def _used(self) -> None:
        self._hub.steps.hook_again()
        callback = sys.modules.get("torch._dynamo.callback")
        if callback is not None and not self._followed:
            self._followed = True
            handler: Any = getattr(callback, "callback_handler")  # noqa: B009 - a module without stubs for it
            handler.register_end_callback(self._worked)

    def _worked(self, *_about: Any) -> None:
        self.times += 1
