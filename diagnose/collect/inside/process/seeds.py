"""Gives a program other luck: the same program under another seed.

The generators of Python, NumPy and torch are seeded before the program's own code goes on. A program that seeds itself
with a constant would draw the same numbers under every seed, so what it passes to `torch.manual_seed`,
`numpy.random.seed` and the like is shifted by an offset that belongs to the seed; the offset of seed 0 is 0.
Generators that a program makes of its own (`torch.Generator`, `numpy.random.default_rng`) keep their seeds.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from types import ModuleType
from typing import Any

from ..imports import after_import
from ..transparency import unseen

APART = 1_000_003
"""The distance between the offsets of two seeds: far more than the ranks and workers that programs add to theirs."""
_NUMPY_SEEDS = 1 << 32
_TORCH_SEEDS = 1 << 63


class Seeds:
    """`set_all` seeds what has been imported; `shift` sees to the seeds that the program sets by itself."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.set_by_program = False
        """Whether the program has seeded torch by itself."""

    def set_all(self, torch: Any = None) -> None:
        """Seed Python, and NumPy and torch where they are there."""
        random.seed(self._seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            with contextlib.suppress(AttributeError):  # only half imported yet
                numpy.random.seed(self._seed)
        if torch is not None:
            torch.manual_seed(self._seed)

    def shift(self, torch: Any) -> None:
        """Add the offset to every seed that the program sets from now on."""
        self._wrap(torch, "manual_seed", _TORCH_SEEDS)
        torch.random.manual_seed = torch.manual_seed
        # `torch.manual_seed` seeds the devices with what it was given, by other names than these.
        for name in ("manual_seed", "manual_seed_all"):
            self._wrap(torch.cuda, name, _TORCH_SEEDS)
        self._wrap(random, "seed", None)
        after_import("numpy", self._shift_numpy)

    def _shift_numpy(self, numpy: ModuleType) -> None:
        self._wrap(numpy.random, "seed", _NUMPY_SEEDS)

    def _wrap(self, holder: Any, name: str, below: int | None) -> None:
        original = getattr(holder, name)
        offset = self._seed * APART

        @unseen
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            self.set_by_program = True
            first, *rest = args or (kwargs.pop("seed", None),)
            if isinstance(first, int) and offset:
                first = first + offset if below is None else (first + offset) % below
            return original(*(() if first is None and not args else (first,)), *rest, **kwargs)

        setattr(holder, name, seed)
