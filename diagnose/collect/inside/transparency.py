"""Keeps our frames and calls out of what the program can see of itself.

Warnings count frames outwards (`stacklevel`), modes and subclasses of tensors are asked about each call of torch, and
torch.compile looks at each function that runs below a compiled one. None of them is to meet the watcher:

    unseen           a function that stands around one of the program's or torch's: no warning counts its frame
    Apart            what a callback does: no mode or subclass of the program's is asked, nothing is compiled
    hide_functions   all functions of this package: torch.compile runs them as they are

A function that stands around another does not hide what that one calls: it is compiled, and asked about, as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, TracebackType
from typing import Any, TypeVar

from . import guard

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])

_INTERNAL = " (as importlib._bootstrap)"
"""`warnings` passes over frames whose file has both of these words in its name, in all releases of Python so far."""
_OURS = str(Path(__file__).parent)
_PACKAGE = __package__ or ""


class _Torch:
    """The functions of torch that are called at each callback."""

    def __init__(self) -> None:
        self.without_torch_function: Any = None
        self.dispatch_modes: Callable[[], int] = lambda: 0
        self.pop_dispatch_mode: Any = None
        self.push_dispatch_mode: Any = None
        self.set_eval_frame: Any = None
        self.skip: Callable[[CodeType], object] | None = None


_torch = _Torch()


def arrived(torch: Any) -> None:
    """Run callbacks apart from the program from now on, and make torch.compile skip this package. Called once torch is
    imported.
    """
    native = torch._C
    _torch.without_torch_function = native.DisableTorchFunction
    _torch.dispatch_modes = native._len_torch_dispatch_stack
    _torch.pop_dispatch_mode = native._pop_torch_dispatch_stack
    _torch.push_dispatch_mode = native._push_on_torch_dispatch_stack
    _torch.set_eval_frame = native._dynamo.eval_frame.set_eval_frame
    _torch.skip = _skipping(native._dynamo.eval_frame)
    guard.apart = Apart
    hide_functions()


class Apart:
    """A context in which calls of torch are asked of no mode and no subclass of the program's, and compile nothing."""

    __slots__ = ("_compiling", "_modes", "_without_torch_function")

    def __enter__(self) -> None:
        self._modes = [_torch.pop_dispatch_mode(None) for _ in range(_torch.dispatch_modes())]
        self._without_torch_function = _torch.without_torch_function()
        self._without_torch_function.__enter__()
        self._compiling = _torch.set_eval_frame(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _torch.set_eval_frame(self._compiling)
        self._without_torch_function.__exit__(kind, error, trace)
        while self._modes:
            _torch.push_dispatch_mode(self._modes.pop())


def unseen(wrapper: Wrapper) -> Wrapper:
    """`wrapper`, whose frames no warning counts and torch.compile passes over."""
    function: Any = wrapper
    code: CodeType = function.__code__
    function.__code__ = code.replace(co_filename=code.co_filename + _INTERNAL)
    _hide(function.__code__)
    return wrapper


def hide_functions() -> None:
    """Have torch.compile run the functions of all loaded modules of this package as they are."""
    for name, module in list(sys.modules.items()):
        if name == _PACKAGE or name.startswith(_PACKAGE + "."):
            for code in _codes_of(vars(module).values()):
                _hide(code)


def _hide(code: CodeType) -> None:
    if _torch.skip is not None:
        _torch.skip(code)


def _skipping(eval_frame: Any) -> Callable[[CodeType], object] | None:
    """Return how this torch is told to pass over a function, but not over what it calls; None where it cannot be."""
    if hasattr(eval_frame, "skip_code"):
        skip: Callable[[CodeType], object] = eval_frame.skip_code
        return skip
    if not hasattr(eval_frame, "set_code_exec_strategy"):
        return None
    action = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: eval_frame.set_code_exec_strategy(code, strategy)


def _codes_of(values: Any) -> Iterator[CodeType]:
    """The code of functions, of methods of classes, and of all functions within them, that this package defines."""
    for value in values:
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield from _nested(function.__code__)
        elif isinstance(value, type) and value.__module__.startswith(_PACKAGE):
            yield from _codes_of(vars(value).values())


def _nested(code: CodeType) -> Iterator[CodeType]:
    if code.co_filename.startswith(_OURS):
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _nested(constant)
