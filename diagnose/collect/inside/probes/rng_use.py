"""Sees whether making a sample draws from the generators of the process: what a library's dataset does no source shows.

The states of Python's, NumPy's and torch's generators are compared around the first batches that the training process
makes by itself, on its main thread: beside what another thread makes, training may draw. Nothing is drawn for it.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from ..guard import guarded
from ..hooks.sites import Sites
from ..process.rng_state import states
from ..transparency import unseen

DRAWS = "draws"
"""The kind of site that says so: `dataset` is the class, `generators` those that were drawn from."""
_BATCHES = 4


class RngUse:
    """Looks at the first batches of one process."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._left = _BATCHES

    def install(self, torch: Any) -> None:
        """Wrap what makes a batch in the process itself."""
        from torch.utils.data._utils import fetch

        read = guarded(functools.partial(states, torch))
        note = guarded(self._note)
        in_worker, main = torch.utils.data.get_worker_info, threading.main_thread()

        def watched(original: Any) -> Any:
            @unseen
            @functools.wraps(original)
            def call(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
                if self._left <= 0 or in_worker() is not None or threading.current_thread() is not main:
                    return original(fetcher, *args, **kwargs)
                self._left -= 1
                before = read()
                batch = original(fetcher, *args, **kwargs)
                note(fetcher, before, read())
                return batch

            return call

        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = watched(kind.fetch)  # type: ignore[method-assign]

    def _note(self, fetcher: Any, before: dict[str, bytes] | None, after: dict[str, bytes] | None) -> None:
        if before is None or after is None:
            return  # a generator whose state could not be read
        drawn = [name for name, state in after.items() if name in before and before[name] != state]
        if drawn:
            self._sites.record(DRAWS, {"dataset": type(fetcher.dataset).__name__, "generators": ", ".join(drawn)})
