"""Callbacks run apart from the program's modes; frames around the program's functions count in no warning."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.collect.inside import guard, transparency


@pytest.fixture(autouse=True)
def torch_is_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(transparency, "_torch", transparency._Torch())
    monkeypatch.setattr(guard, "apart", guard.apart)
    transparency.arrived(torch)
    yield


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(operator)
        return operator(*args, **(kwargs or {}))


class Told(torch.Tensor):
    """A tensor that notes what is asked of it."""

    seen: list[Any] = []  # noqa: RUF012 - one for the class

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def around(original: Callable[..., None]) -> Callable[..., None]:
    @transparency.unseen
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)

    return wrapper


def warns(level: int) -> None:
    warnings.warn("look there", stacklevel=level)


def test_a_callback_is_seen_by_no_mode_of_the_program() -> None:
    with Functions() as functions, Operators() as outer, Operators() as inner:
        total = guard.guarded(lambda: float(torch.ones(2).add(1).sum()))()
        assert total == 4
        assert (functions.seen, outer.seen, inner.seen) == ([], [], [])
        torch.ones(2)
    assert len(functions.seen) == len(outer.seen) == len(inner.seen) == 1


def test_modes_are_back_where_a_callback_fails() -> None:
    with Functions() as functions, Operators() as operators:
        guard.guarded(lambda: torch.ones(2).view(7))()
        assert "invalid for input" in guard.failures.pop()
        torch.ones(2)
    assert len(functions.seen) == len(operators.seen) == 1


def test_a_callback_asks_no_tensor_of_the_programs_own_kind() -> None:
    tensor = torch.ones(2).as_subclass(Told)
    Told.seen.clear()
    assert guard.guarded(lambda: tensor.numel())() == 2
    assert Told.seen == []
    tensor.numel()
    assert len(Told.seen) == 1


@pytest.mark.parametrize("level", [2, 3])
def test_a_warning_does_not_count_a_frame_that_stands_around(level: int) -> None:
    shown = []
    for function in (warns, around(around(warns))):
        with pytest.warns(UserWarning, match="look there") as caught:
            function(level)
        shown += [(one.filename, one.lineno) for one in caught]
    assert shown[0] == shown[1]


def test_what_stands_around_a_function_shows_that_ones_source() -> None:
    assert inspect.getsource(around(warns)) == inspect.getsource(warns)


def test_functions_within_functions_and_methods_are_known() -> None:
    names = {code.co_qualname for code in transparency._codes_of(vars(guard).values())}
    assert {"guarded", "guarded.<locals>.call", "note"} <= names
    names = {code.co_qualname for code in transparency._codes_of(vars(transparency).values())}
    assert {"Apart.__enter__", "Apart.__exit__"} <= names
