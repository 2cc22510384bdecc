"""A traced window leaves no memory behind in the process, and its events are no Python objects."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import psutil
import torch

from diagnose.collect.inside.window.profiler_window import Window

EVENTS = 10_000
HELD_BYTES = 12 << 20
"""As many events hold about 30 MB in Kineto, and twice that as objects of Python."""


def test_a_window_is_given_back_once_it_is_saved(tmp_path: Path) -> None:
    ones = torch.ones(2)
    gc.disable()
    try:
        small = Window()  # what the profiler loads for good
        small.open(torch)
        small.close(tmp_path / "small.json.gz")
        before_bytes = psutil.Process().memory_info().rss
        window = Window()
        window.open(torch)
        for _ in range(EVENTS):
            ones.add(1)
        window.stop()
        recorded = weakref.ref(window._profile.profiler)
        assert recorded()._function_events is None  # type: ignore[union-attr]
        window.save(tmp_path / "trace.json.gz")
        assert recorded() is None
        assert psutil.Process().memory_info().rss - before_bytes < HELD_BYTES
    finally:
        gc.enable()
