"""Finds variables of the program that collect tensors together with their graphs, step after step.

`losses.append(loss)` keeps all activations of every step; so does `total += loss`. A few times in a run, the owned
frames of the training thread are looked through twice, `APART` steps apart: a list, deque or dict whose tensors with a
graph, or a sum whose graph, grew meanwhile by about as much as steps went by, is noted with the line that adds to it.
The first two looks are over before tracing may begin.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import deque
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from ..hooks.sites import Sites

EARLY = (4, 9)
FIRST = 16
APART = 8
_LOOKS = 4
"""The first look in earnest, and so many more, each after twice as many steps."""
_FEWEST = APART // 2
_DEEPEST = 100_000
KEEPS = "keeps graphs"
_IS_FUNCTION = 0x1  # inspect.CO_OPTIMIZED: its variables are no dict of their own
_CONTAINERS = (list, tuple, dict, deque)

Key = tuple[str, int, str]
"""A variable: file and first line of the code that it belongs to, and its name."""


class Keeping:
    """The search in one process; `step_ended` belongs on the training thread."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._before: dict[Key, int] = {}
        self._looks = {*EARLY, *((FIRST << k) + extra for k in range(_LOOKS + 1) for extra in (0, APART))}

    def step_ended(self, index: int, torch: Any) -> None:
        """Look for kept graphs after step `index` (0-based), in a frame that the training loop called."""
        if index not in self._looks or sys.gettrace() is not None or torch is None:
            return
        now = {key: (count, code) for key, count, code in self._collections(sys._getframe(1), torch)}
        for key, (count, code) in now.items():
            if key in self._before and count - self._before[key] >= _FEWEST:
                line = _line_of(code, key[2])
                self._sites.add(KEEPS, key[0], line, code.co_qualname, {"name": key[2], "count": count})
        self._before = {key: count for key, (count, _) in now.items()}

    def _collections(self, frame: FrameType | None, torch: Any) -> Iterator[tuple[Key, int, CodeType]]:
        while frame is not None:
            code = frame.f_code
            if self._sites.ownership.owns(code.co_filename):
                for name, value in _variables(frame):
                    count = _graphs_in(value, torch)
                    if count:
                        yield (code.co_filename, code.co_firstlineno, name), count, code
            frame = frame.f_back


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values of a frame's variables, and of the attributes of its `self`."""
    names = frame.f_locals
    found = list(names.items())
    if frame.f_code.co_flags & _IS_FUNCTION and isinstance(names, dict):
        # Before Python 3.13 this is a copy that lives as long as the frame: it must not keep tensors alive.
        for name, value in found:
            if isinstance(value, _CONTAINERS) or hasattr(value, "grad_fn"):
                del names[name]
    owner = dict(found).get("self")
    attributes = getattr(owner, "__dict__", None)
    if isinstance(attributes, dict):
        found += [(f"self.{name}", value) for name, value in attributes.items()]
    return found


def _graphs_in(value: Any, torch: Any) -> int:
    """Return how many tensors with a graph a container holds, or how many sums a tensor is made of; 0 for anything
    else."""
    if isinstance(value, torch.Tensor):
        return _sums(value)
    if type(value) not in (list, dict, deque) or len(value) < _FEWEST:
        return 0
    last = next(reversed(value.values() if isinstance(value, dict) else value))
    parts = last.values() if isinstance(last, dict) else last if isinstance(last, list | tuple) else (last,)
    return len(value) if any(isinstance(one, torch.Tensor) and one.grad_fn is not None for one in parts) else 0


def _sums(tensor: Any) -> int:
    """Return how many additions in a row made a tensor."""
    node, count = tensor.grad_fn, 0
    while node is not None and count < _DEEPEST and type(node).__name__ == "AddBackward0":
        count += 1
        before = node.next_functions
        node = before[0][0] if before else None
    return count


def _line_of(code: CodeType, name: str) -> int:
    """The line of a function that adds to a variable; the function's first where none is found."""
    spelled = re.escape(name)
    adds = re.compile(
        rf"(?<![\w.]){spelled}\s*(?:\.(?:append|appendleft|extend|insert|setdefault)\(|\[.*\]\s*=[^=]|\+=|=.*\b{spelled}\b)"
    )
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    for line in range(code.co_firstlineno, last + 1):
        if adds.search(linecache.getline(code.co_filename, line)):
            return line
    return code.co_firstlineno
