"""The state that steps leave behind besides tensors: random generators, optimizers, and the contents of a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from diagnose.units import format_bytes

_AHEAD = 3
"""Steps by which a program that fetches its input early may be ahead with its random numbers."""
_GROWS_BYTES = 64 << 10
"""A step."""

Steps = Sequence[Mapping[str, Any]]


def states_differ(before: Mapping[int, Steps], after: Mapping[int, Steps], *, random: bool = True) -> str:
    """Return how the steps of two programs leave different states behind, per rank; empty where they do not.

    `random` False: generators are not looked at (compiled code may draw in another order what it uses alike).
    """
    for rank, steps in before.items():
        others = after.get(rank, ())
        if not steps or not others:
            continue
        different = optimizers_differ(steps[-1]["optimizers"], others[-1]["optimizers"]) or _grows(steps, others)
        different = different or checkpoints_differ(steps[-1].get("checkpoints"), others[-1].get("checkpoints"))
        if not different and random:
            different = _random_differs(steps, others)
        if different:
            return different
    return ""


def checkpoints_differ(
    before: Sequence[Mapping[str, Sequence[int]]] | None, after: Sequence[Mapping[str, Sequence[int]]] | None
) -> str:
    """Why a checkpoint of one program does not fit the other; empty where it does, or where it is not known."""
    if before is None or after is None:
        return ""
    left = list(after)
    odd = [one for one in before if not _take_equal(one, left)]
    if not odd:
        return ""  # a module more, such as a loss with weights, is no part of a checkpoint that there was
    mine, theirs = odd[0], max(left, key=lambda other: len(odd[0].keys() & other.keys()), default={})
    for key, shape in mine.items():
        if key not in theirs:
            return f"a checkpoint has no {key} any more"
        if list(theirs[key]) != list(shape):
            return f"{key} of a checkpoint has shape {list(theirs[key])}, was {list(shape)}"
    return f"a checkpoint has {next(key for key in theirs if key not in mine)}, which it had not"


def _take_equal(one: Mapping[str, Sequence[int]], left: list[Mapping[str, Sequence[int]]]) -> bool:
    """Whether one of those left has the same keys and shapes; then it is gone from them."""
    at = next((place for place, other in enumerate(left) if dict(other) == dict(one)), None)
    if at is not None:
        del left[at]
    return at is not None


def _random_differs(before: Steps, after: Steps) -> str:
    for generator in before[0]["random"]:
        mine = [step["random"].get(generator) for step in before]
        theirs = [step["random"].get(generator) for step in after]
        if None not in theirs and not any(_shifted(mine, theirs, by) for by in range(-_AHEAD, _AHEAD + 1)):
            at = next(step for step, (one, other) in enumerate(zip(mine, theirs, strict=False), 1) if one != other)
            return f"random numbers of {generator} advance differently from step {at} on"
    return ""


def _shifted(mine: Sequence[object], theirs: Sequence[object], by: int) -> bool:
    """Whether one is the other, `by` steps later; two steps at least must tell."""
    common = min(len(mine), len(theirs)) - abs(by)
    late, early = (mine[by:], theirs) if by >= 0 else (mine, theirs[-by:])
    return common >= min(2, len(mine)) and list(late[:common]) == list(early[:common])


def _grows(before: Steps, after: Steps) -> str:
    """Whether the device holds more after each of the last three steps, and not so in the original."""
    mine, theirs = _least_growth(before), _least_growth(after)
    if theirs > _GROWS_BYTES + 2 * max(0, mine):
        return f"the memory held grows by {format_bytes(theirs)} every step"
    return ""


def _least_growth(steps: Steps) -> int:
    held = [int(step["memory_bytes"]) for step in steps[-4:] if step["memory_bytes"] is not None]
    if len(held) < 4:
        return 0
    return min(later - earlier for earlier, later in pairwise(held))


def optimizers_differ(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]] | None) -> str:
    """Return how the optimizers of one moment differ in what they are made of; empty where they do not."""
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
