"""Finds which of the program's classes of modules have instances: no step runs the code of the others.

The process's objects are looked through once, at the end of its first step. A program that has set objects aside from
garbage collection hides them from that look, and nothing is noted.
"""

from __future__ import annotations

import gc
import inspect
import sys
from typing import Any

from ..hooks.sites import Sites

BUILT = "module classes"
"""The kind of site of a file some of whose classes have modules as instances, their own or those of derived classes:
`classes` has the names, `Block, Net`."""


class ModuleClasses:
    """The look of one process."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._set_aside = gc.get_freeze_count()

    def note(self, torch: Any) -> None:
        """Note the classes of the modules that exist now."""
        if gc.get_freeze_count() > self._set_aside:
            return
        kinds = {type(each) for each in gc.get_objects()}
        modules = {above for kind in kinds if issubclass(kind, torch.nn.Module) for above in kind.__mro__}
        by_file: dict[str, set[str]] = {}
        for kind in modules:
            for file in filter(self._sites.ownership.owns, _files(kind)):
                by_file.setdefault(file, set()).add(kind.__name__)
        for file, names in by_file.items():
            self._sites.add(BUILT, file, 1, None, {"classes": ", ".join(sorted(names))})


def _files(kind: type) -> set[str]:
    """Return where a class may be defined: the file of its module, of which there may be another of that name by now,
    and those of its methods."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    methods = (inspect.unwrap(each) for each in vars(kind).values() if inspect.isfunction(each))
    files = {each.__code__.co_filename for each in methods if inspect.isfunction(each)}
    return files | ({file} if isinstance(file, str) else set())
