"""Calls back when a module is about to be imported, and when it has been.

A finder at the head of `sys.meta_path` asks the others for the module's spec and lends its loader an `exec_module`
for one use. Once the modules that are waited for have come, the finder is gone again.
"""

from __future__ import annotations

import sys

from .guard import contained, guarded

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_before: dict[str, list[Callable[[], None]]] = {}
_after: dict[str, list[Callable[[ModuleType], None]]] = {}


def before_import(name: str, callback: Callable[[], None]) -> None:
    """Call `callback` once, right before module `name` runs for the first time (never, if it already has)."""
    if name not in sys.modules:
        _before.setdefault(name, []).append(callback)
        _install()


def after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback` with module `name` once it has run; at once if it already has."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        guarded(callback)(module)
        return
    _after.setdefault(name, []).append(callback)
    _install()


class _Finder:
    """Stands first on `sys.meta_path`; finds nothing by itself."""

    @contained
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, its loader prepared to call back."""
        if name not in _before and name not in _after:
            return None
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    _prepare(name, spec)
                    return spec
        return None


_finder = _Finder()


def _install() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _uninstall_if_idle() -> None:
    if not _before and not _after and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _prepare(name: str, spec: ModuleSpec) -> None:
    loader = spec.loader
    original = getattr(loader, "exec_module", None)
    if original is None:
        return

    def exec_module(module: ModuleType) -> None:
        loader.__dict__.pop("exec_module", None)
        for before in _before.pop(name, []):
            guarded(before)()
        original(module)
        for after in _after.pop(name, []):
            guarded(after)(module)
        _uninstall_if_idle()

    try:
        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
    except AttributeError:
        return  # a loader without a dictionary: the program runs unwatched
