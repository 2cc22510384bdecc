"""Notes the program's own files that are loaded: some it may import by names that it computes."""

from __future__ import annotations

from itertools import islice

from ...records import LOADED
from ..hooks.sites import Sites

_MOST = 100


def note_loaded_files(sites: Sites) -> None:
    """Add a site for each of the program's files that is loaded now, up to `_MOST`."""
    loaded = sites.ownership.of_modules().items()
    for file in islice((file for file, owned in loaded if owned and file.endswith(".py")), _MOST):
        sites.add(LOADED, file, 1, None, {})
