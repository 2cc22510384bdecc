"""`diagnose.background_saves` without a past, and a disk that writes when a test lets it."""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from watching import LIMIT_S


def made() -> Any:
    """The module, imported anew: no test sees what another has saved."""
    place = importlib.util.find_spec("diagnose.background_saves")
    assert place is not None and place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


class Disk:
    """Writes a file when the test lets it; tells what the threads do.

    Where the training thread waits for a file, that is noted, and the file is let go.
    """

    def __init__(self, module: Any, patch: pytest.MonkeyPatch) -> None:
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.waited_for: list[int] = []
        self.replaced: list[int] = []
        self.names: dict[int, str] = {}
        self.failing: set[int] = set()
        self._gates = [threading.Event() for _ in range(10)]
        self._steps: dict[threading.Thread, int] = {}
        self._save, self._replace, self._join = torch.save, os.replace, module._Save.join
        self._trains = threading.current_thread()
        patch.setattr(torch, "save", self.save)
        patch.setattr(os, "replace", self.replace)
        patch.setattr(module._Save, "join", lambda thread, timeout=None: self.join(thread, timeout))

    def save(self, state: dict[str, int], path: str) -> None:
        step = state["step"]
        self._steps[threading.current_thread()] = step
        self.names[step] = path
        Path(path).touch()
        self.told.put(f"{step} begins")
        assert self._gates[step].wait(LIMIT_S)
        if step in self.failing:
            raise OSError(f"no room for {step}")
        self._save(state, path)

    def replace(self, old: str, new: str) -> None:
        self._replace(old, new)
        self.replaced.append(self._steps[threading.current_thread()])
        self.told.put(f"{self.replaced[-1]} is there")

    def join(self, thread: threading.Thread, timeout: float | None) -> None:
        if threading.current_thread() is self._trains:
            self.waited_for.append(thread.state["step"] if thread.state else -1)  # type: ignore[attr-defined]
            self.let_all_go() if self.waited_for[-1] < 0 else self.let_go(self.waited_for[-1])
        self._join(thread, timeout)

    def let_go(self, *steps: int) -> None:
        for step in steps:
            self._gates[step].set()

    def let_all_go(self) -> None:
        self.let_go(*range(len(self._gates)))

    def heard(self) -> str:
        return self.told.get(timeout=LIMIT_S)
