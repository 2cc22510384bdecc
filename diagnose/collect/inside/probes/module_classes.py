"""Finds which of the program's classes of modules have instances: no step runs the code of the others.

The process's objects are looked through once, at the end of its first step. A program that has set objects aside from
garbage collection hides them from that look, and nothing is noted.
"""

from __future__ import annotations

import gc
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
        by_file: dict[str, list[str]] = {}
        for kind in modules:
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            if isinstance(file, str) and self._sites.ownership.owns(file):
                by_file.setdefault(file, []).append(kind.__name__)
        for file, names in by_file.items():
            self._sites.add(BUILT, file, 1, None, {"classes": ", ".join(sorted(names))})
