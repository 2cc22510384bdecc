"""The states of the random generators of a process, as what can be compared."""

from __future__ import annotations

import random
import sys
from typing import Any


def states(torch: Any) -> dict[str, bytes]:
    """The state of each generator of the host, by the module that draws from it; NumPy's where the program has loaded
    it.
    """
    found = {"random": repr(random.getstate()).encode(), "torch": bytes(torch.get_rng_state().tolist())}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        # The other form of a state warns of a generator that the program has set, and is no tuple then.
        found["numpy.random"] = repr(_plain(numpy.random.get_state(legacy=False))).encode()
    return found


def _plain(state: Any) -> object:
    """A state of NumPy's, whichever generator it is of, with its arrays whole."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state
