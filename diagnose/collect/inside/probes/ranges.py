"""Stretches of host time that explain a late host: loader waits, garbage collections, compilation, checkpoints."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...records import RANGES
from ..guard import contained, guarded
from ..process_hooks import ProcessHooks
from ..transparency import unseen

SHORTEST_GC_NS = 50_000
"""Collections below it are not worth a line; the youngest generation is collected thousands of times a second."""
_KEPT_UNCLAIMED = 10_000

_clock = time.time_ns
_Range = tuple[str, int, int, str, int]


class RangeLog:
    """Collects ranges in memory; `drain` gives new ones as lines."""

    def __init__(self, hub: ProcessHooks) -> None:
        self._hub = hub
        self._thread = threading.get_native_id()
        self._new: list[_Range] = []
        self._gc_start = 0
        self._compile_start = 0
        self._on_compiled: Callable[[int], None] | None = None
        self._is_thin = False
        self._on_collection = contained(self._collected)
        hub.steps.on_range = self._loader_waited

    def install(self, torch: Any) -> None:
        """Watch `torch.save`; the collector is watched from the first step on."""
        save = torch.save
        add = guarded(self._add)

        @unseen
        @functools.wraps(save)
        def watched_save(*args: Any, **kwargs: Any) -> Any:
            start = _clock()
            try:
                return save(*args, **kwargs)
            finally:
                if self._hub.claimed and threading.get_ident() == self._hub.steps.thread:
                    add("checkpoint", start, _clock(), "torch.save", self._thread)

        torch.save = watched_save

    def thin(self) -> None:
        """Stop recording waits for the loader, which come with every step."""
        self._is_thin = True

    def thread_claimed(self) -> None:
        """Called on the training thread once it is known."""
        self._thread = threading.get_native_id()
        self.set_enabled(True)

    def set_enabled(self, enabled: bool) -> None:
        """Take the collector's callback out, or put it back."""
        present = self._on_collection in gc.callbacks
        if enabled and not present:
            gc.callbacks.append(self._on_collection)
        elif not enabled and present:
            gc.callbacks.remove(self._on_collection)

    def watch_compilation(self, on_compiled: Callable[[int], None]) -> None:
        """Tell `on_compiled` when torch.compile has worked, until when; to be called once torch._dynamo is loaded."""
        callback = sys.modules.get("torch._dynamo.callback")
        if callback is None or self._on_compiled is not None:
            return
        self._on_compiled = on_compiled
        handler: Any = getattr(callback, "callback_handler")  # noqa: B009 - a module without stubs for it
        handler.register_start_callback(guarded(self._compile_started))
        handler.register_end_callback(guarded(self._compile_ended))

    def drain(self) -> Iterator[tuple[str, str]]:
        """New ranges as lines of their file."""
        yield (
            RANGES,
            "".join(
                f'{{"k":"{kind}","s":{start},"e":{end},"n":"{name}","t":{tid}}}\n'
                for kind, start, end, name, tid in self.take()
            ),
        )

    def take(self) -> list[_Range]:
        """Ranges since the last call: kind, start, end, name, thread."""
        new, self._new = self._new, []
        return new

    def _add(self, kind: str, start: int, end: int, name: str, thread: int) -> None:
        if self._hub.claimed or len(self._new) < _KEPT_UNCLAIMED:
            self._new.append((kind, start, end, name, thread))

    def _loader_waited(self, start: int, end: int, name: str) -> None:
        if not self._is_thin:
            self._add("input", start, end, name, self._thread)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_start = _clock()
            return
        end = _clock()
        if self._gc_start and end - self._gc_start >= SHORTEST_GC_NS:
            name = f"generation {info.get('generation')}"
            self._add("gc", self._gc_start, end, name, threading.get_native_id())
        self._gc_start = 0

    def _compile_started(self, *_about: Any) -> None:
        self._compile_start = _clock()

    def _compile_ended(self, *_about: Any) -> None:
        end = _clock()
        if self._compile_start:
            self._add("compile", self._compile_start, end, "torch.compile", threading.get_native_id())
        self._compile_start = 0
        if self._on_compiled is not None:
            self._on_compiled(end)
