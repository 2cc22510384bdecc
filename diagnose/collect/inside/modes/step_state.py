"""The state that a captured step leaves besides tensors: random generators, optimizers, held memory, and the contents
of a checkpoint.

`state.json` in `rank<k>/` has an entry a step, and the operators that torch has in no deterministic form. Generators
are told by a hash of their states: two programs that draw the same numbers in the same order have the same hashes, and
go on to shuffle their next epoch alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...records import STATE
from ..hooks.modules import Modules
from ..hooks.optimizers import Optimizers
from ..process.rng_state import states
from .checkpoint_contents import checkpoints

_TITLES = {"random": "Python's random", "torch": "torch on the CPU"}


class State:
    """Takes down the state after each step."""

    def __init__(self, torch: Any, modules: Modules) -> None:
        self._torch = torch
        self._modules = modules
        self._optimizers = Optimizers()
        self._steps: list[dict[str, Any]] = []

    def step_ended(self) -> None:
        """One entry more."""
        torch = self._torch
        on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._steps.append(
            {
                "random": self._random(on_device),
                "optimizers": self._optimizers.made_of(),
                "memory_bytes": int(torch.cuda.memory_allocated()) if on_device else None,
                "checkpoints": checkpoints(self._modules),
            }
        )

    def clear(self) -> None:
        """None of the steps so far were steps."""
        self._steps = []

    def write(self, folder: Path, nondeterministic: Sequence[str]) -> None:
        """Leave `state.json` there, with the operators that give other bits from run to run."""
        (folder / STATE).write_text(json.dumps({"steps": self._steps, "nondeterministic": nondeterministic}))

    def _random(self, on_device: bool) -> dict[str, str]:
        found = {_TITLES.get(name, name): _hash(state) for name, state in states(self._torch).items()}
        if on_device:
            found["torch on the device"] = _hash(self._torch.cuda.get_rng_state().numpy().tobytes())
        return found


def _hash(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()[:16]
