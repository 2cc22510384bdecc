"""Which file of the user's an import leads to."""

from __future__ import annotations

import posixpath
from collections.abc import Collection


def module_file(module: str, importer: str, paths: Collection[str]) -> str | None:
    """The one of `paths` that a module lies in, as `importer` names it; dots in front go up from the importer.

    A plain name may start at the importer's folder or at any folder above it: which of them is on the search path
    only the running program knows, so the nearest file of that name counts.
    """
    ups = len(module) - len(module.lstrip("."))
    folder = posixpath.dirname(importer)
    for _ in range(ups - 1):
        folder = posixpath.dirname(folder)
    stem = module.lstrip(".").replace(".", "/")
    while True:
        base = posixpath.join(folder, stem) if stem else folder
        for candidate in (f"{base}.py", posixpath.join(base, "__init__.py")):
            if candidate in paths:
                return candidate
        above = posixpath.dirname(folder)
        if ups or above == folder:
            return None
        folder = above
