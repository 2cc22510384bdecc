"""Runs a program under a recipe and comes back with a run folder.

`collect.launch` is the parent's side; `collect.inside` is what runs in the watched process, where `collect.injected`
brings it; `collect.counters` reads the machine beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnose.collect.recipe import Recipe
from diagnose.collect.records import RECIPE_VARIABLE

__all__ = ["INJECTED", "Recipe", "environment"]

INJECTED = Path(__file__).resolve().parent / "injected"
"""The folder that goes first on PYTHONPATH; it holds nothing but a `sitecustomize.py`."""


def environment(recipe: Mapping[str, Any], base: Mapping[str, str]) -> dict[str, str]:
    """`base` and what makes a Python started with it, and Pythons started by that one, carry out `recipe`.

    `recipe` has at least `mode` (`watch`, `ab_worker` or `capture`) and `folder` (absolute path of the run folder).
    """
    path = [str(INJECTED)]
    path += [entry for entry in (base.get("PYTHONPATH"),) if entry and entry != str(INJECTED)]
    return {**base, "PYTHONPATH": os.pathsep.join(path), RECIPE_VARIABLE: json.dumps(dict(recipe))}
