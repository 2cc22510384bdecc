"""What steps leave behind beside tensors: random generators, optimizers, and what a checkpoint would have in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any


def optimizers_differ(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]] | None) -> str:
    """How the optimizers of one moment differ in what they are made of; empty where they do not."""
    if after is None:
        return ""
    if len(before) != len(after):
        return f"{len(after)} optimizers take steps, not {len(before)} as before"
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        title = f"optimizer {number}"
        if len(one["groups"]) != len(other["groups"]):
            return f"{title} has {len(other['groups'])} groups of parameters, not {len(one['groups'])} as before"
        for at, (mine, theirs) in enumerate(zip(one["groups"], other["groups"], strict=True)):
            different = _groups_differ(mine, theirs, same_kind=one["kind"] == other["kind"])
            if different:
                return f"{title}, group {at}: {different}"
    return ""


def _groups_differ(before: Mapping[str, Any], after: Mapping[str, Any], *, same_kind: bool) -> str:
    for name, value in before["settings"].items():
        if name in after["settings"] and not _equal(after["settings"][name], value):
            return f"{name} is {after['settings'][name]}, was {value}"
    if len(before["shapes"]) != len(after["shapes"]):
        return f"{len(after['shapes'])} parameters, not {len(before['shapes'])} as before"
    pairs = zip_longest(before["shapes"], after["shapes"], before["kept"], after["kept"])
    for place, (shape, other_shape, kept, other_kept) in enumerate(pairs):
        if shape != other_shape:
            return f"parameter {place} has shape {other_shape}, was {shape}"
        if same_kind and kept != other_kept:
            return f"of parameter {place} it keeps {_listed(other_kept)}, not {_listed(kept)} as before"
    return ""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        # A schedule on the device counts in float32.
        return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    return bool(one == other)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
