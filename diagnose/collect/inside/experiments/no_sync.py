"""Reads of the device answered from an earlier value: what a step takes without waiting for them.

What it takes away
    `.item()`, `.tolist()`, `.cpu()`, `.to("cpu")`, `bool()`, `int()` and `float()` of a tensor on a device, and
    `synchronize()` of devices, streams and events. Each place in the program asks the device itself in the first steps,
    and is given what it was given last from then on.

What stays as it is
    Places whose answer is of whole numbers or truth values that change: they may decide what is computed. Waits within
    an operator whose result has a size that only the device knows, such as `nonzero` or an index by a mask. Such waits
    are counted, and the answer is then a lower bound.

When it refuses
    A program that reads nothing of a device in one of these ways.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..probes.syncs import SyncWatch
from ..source_ownership import Ownership

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ("host-sync", "device-to-host-copies")
BOUNDS = ()
TRULY_STEPS = 4
"""Steps in which every place asks the device itself, so that it shows whether its answer changes."""
_WATCHED_STEP = TRULY_STEPS + 1
"""The step in which the waits that are left are counted."""
_SCALER = "grad_scaler.py"
_SCALARS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")


def start(change: Change) -> None:
    """Stand in the places of everything that reads."""
    torch = change.torch
    change.nothing = "the program reads nothing of a device that this probe could answer from an earlier value"
    places = Places(change)
    for name in _SCALARS:
        change.replace(torch.Tensor, name, places.scalar)
    for name in ("cpu", "to"):
        change.replace(torch.Tensor, name, places.copy)
    for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
        change.replace(owner, "synchronize", places.wait)
    change.least_steps = _WATCHED_STEP + 1
    change.on_step = _Left(change).step_ended


def is_elsewhere(tensor: Any) -> bool:
    """Whether a read of this tensor waits for a device."""
    return tensor.device.type not in ("cpu", "meta")


class Places:
    """The last answer that each place of the program got."""

    def __init__(self, change: Change, waits: Callable[[Any], bool] = is_elsewhere) -> None:
        self._change = change
        self._waits = waits
        self._answers: dict[Any, Any] = {}
        self._changing: set[Any] = set()

    def scalar(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for a method that returns numbers."""

        def call(tensor: Any) -> Any:
            if not self._waits(tensor):
                return read(tensor)
            return self._answer((*_place(), tensor.shape, tensor.dtype), lambda: read(tensor))

        return call

    def copy(self, move: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for a method that moves a tensor, active where it moves it to the host."""

        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            to_host = not args and not kwargs if move.__name__ == "cpu" else _is_host(args, kwargs)
            if not to_host or not self._waits(tensor) or tensor.requires_grad:
                return move(tensor, *args, **kwargs)
            key = (*_place(), tensor.shape, tensor.dtype, args[1:])
            return self._answer(key, lambda: move(tensor, *args, **kwargs))

        return call

    def wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for a function that waits and returns nothing."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._answer(_place(), lambda: wait(*args, **kwargs))

        return call

    def _answer(self, key: Any, ask: Callable[[], Any]) -> Any:
        self._change.times += 1
        if key in self._answers and key not in self._changing and self._change.steps >= TRULY_STEPS:
            known = self._answers[key]
            return list(known) if isinstance(known, list) else known  # a list may be written to
        answer = ask()
        if key in self._answers and _may_decide(answer) and _differs(answer, self._answers[key]):
            self._changing.add(key)
            self._change.leave(f"whole numbers or truth values that change, read at {key[0]}:{key[1]}")
        if not (key[0].endswith(_SCALER) and answer):  # an overflow skips the update, and would for ever
            self._answers[key] = answer
        return answer


def _may_decide(answer: Any) -> bool:
    """Whether an answer may hold sizes, places or conditions, rather than something to print."""
    if hasattr(answer, "is_floating_point"):
        return not answer.is_floating_point()
    if isinstance(answer, list):
        return bool(answer) and _may_decide(answer[0])
    return isinstance(answer, (bool, int)) or (isinstance(answer, float) and answer in (0.0, 1.0))


def _differs(answer: Any, before: Any) -> bool:
    """Whether two answers of one place are not the same; of tensors, which have one shape."""
    return not answer.equal(before) if hasattr(answer, "equal") else bool(answer != before)


def _place() -> tuple[str, int, str, int]:
    """The line that reads, and the one that called it: a helper may read for several."""
    frame: Any = sys._getframe(2)
    caller = frame.f_back or frame
    return frame.f_code.co_filename, frame.f_lineno, caller.f_code.co_filename, caller.f_lineno


def _is_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of `to` name the host."""
    target = kwargs.get("device", args[0] if args else None)
    return target == "cpu" or getattr(target, "type", None) == "cpu"


class _Left:
    """Counts the waits of one step that nothing was put in the place of."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._watch = SyncWatch(Ownership())

    def step_ended(self) -> None:
        """Begin after one step, end after the next."""
        torch, steps = self._change.torch, self._change.steps
        if steps == _WATCHED_STEP - 1 and torch.cuda.is_initialized():
            self._watch.begin(torch)
        elif steps == _WATCHED_STEP:
            self._watch.end()
            for record in self._watch.records(1):
                self._change.leave(f"a wait in {record['function']} at {record['file']}:{record['line']}")
