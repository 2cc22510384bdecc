"""Which rows of a table have a name that a pattern finds: each name is looked at once, each row by indexing."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from diagnose.trace.schema import Bool, Int32


def named(names: tuple[str, ...], column: Int32, pattern: re.Pattern[str]) -> Bool:
    """A mask over `column`: the name is found by `pattern`. A missing name is found by none."""
    return np.asarray(_found(names, pattern)[column], np.bool_)


@lru_cache(maxsize=256)
def _found(names: tuple[str, ...], pattern: re.Pattern[str]) -> Bool:
    # One entry more than there are names: index -1, the missing name, falls on it.
    return np.array([*(pattern.search(name) is not None for name in names), False], np.bool_)
