"""Nothing of ours may raise into the program that is watched."""

from __future__ import annotations

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

failures: list[str] = []
"""The errors of the watcher itself; told in facts.json, so that a gap in the recording has its reason."""

_KEPT = 20


class _Nothing:
    """A context without effect."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_error: object) -> None:
        """Do nothing."""


apart: type = _Nothing
"""The context that callbacks run in: `transparency.Apart`, once torch has been imported."""


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """`function`, but an exception in it is noted in `failures` and None returned."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            with apart():
                return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            note(function, error)
            return None

    return call


def contained(function: Callable[P, R]) -> Callable[P, R | None]:
    """Wrap a function like the context manager of this module does, for functions that call nothing of torch's and run
    too often for a context.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            note(function, error)
            return None

    return call


def note(function: Callable[..., object], error: BaseException) -> None:
    """Keep `error` for facts.json, once."""
    if len(failures) < _KEPT:
        where, trace = "", error.__traceback__
        while trace is not None:
            where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
        told = f"{getattr(function, '__qualname__', function)}: {type(error).__name__}: {error} ({where})"
        if told not in failures:
            failures.append(told)
