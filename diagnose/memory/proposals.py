"""Plans that are worth a trial, from the one that computes least again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from diagnose.memory.planner import cheapest_plan, leanest_plan
from diagnose.memory.recorded_blocks import RecordedBlocks
from diagnose.model import Site

_BUDGETS = (0.92, 0.8, 0.65)
"""Shares of what the process may take: room is left for the allocator's fragments, and for inputs that are larger."""
_SHARES = (0.25, 0.5, 1.0)
_PARTS = (0.25, 0.5, 0.75, 1.0)
"""Shares of the blocks, where the peaks of a whole step are not known: the program ended in its first."""


def plans(known: RecordedBlocks, limit_bytes: int | None, sites: Iterable[Site] = ()) -> list[tuple[int, ...]]:
    """Blocks to relieve, by their numbers; none of the plans is empty.

    `limit_bytes` is what the process may take; `sites` tell of the optimizers.
    """
    if limit_bytes is None:
        found = _parts(known, 0)
    else:
        found = _planned(known, limit_bytes) if known.whole else _guess(known, limit_bytes, tuple(sites))
    return [plan for plan in dict.fromkeys(found) if plan]


def lighter_plans(known: RecordedBlocks, limit_bytes: int | None) -> list[tuple[int, ...]]:
    """Plans that compute less again than the recorded program does, perhaps nothing; none where peaks are unknown."""
    if limit_bytes is None or not known.whole:
        return []
    within = [cheapest_plan(known.chain, budget) for budget in _budgets(known, limit_bytes)]
    found = [plan.again for plan in within if plan is not None and len(plan.again) < len(known.again)]
    return list(dict.fromkeys(found))


def written_plan(plan: Sequence[int]) -> str:
    """`0-8,12` for the blocks of a plan."""
    spans: list[list[int]] = []
    for number in plan:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def read_plan(plan: str) -> frozenset[int]:
    """The blocks of what `written_plan` wrote."""
    found: set[int] = set()
    for span in plan.split(","):
        first, _, last = span.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _budgets(known: RecordedBlocks, limit_bytes: int) -> list[int]:
    """Return the budgets for tensors, in bytes: the limit bounds what the allocator takes, fragments included."""
    return [min(int(share * limit_bytes), limit_bytes - known.fragment_bytes) for share in _BUDGETS]


def state_shares(known: RecordedBlocks | None, limit_bytes: int | None, sites: Sequence[Site]) -> list[float]:
    """Return shares of the optimizers' state to keep on the host between steps, the least first; may be empty.

    All of it is back on the device as the optimizer steps. Where the peaks of a step are unknown, so is the share.
    """
    if known is None or limit_bytes is None or not known.whole:
        return list(_SHARES)
    held, most = known.chain.peak_bytes(), state_bytes(sites)
    found = []
    for budget in _budgets(known, limit_bytes):
        eighths = math.ceil(8 * (held - budget) / most) if most else 0
        if 0 < eighths <= 8 and known.chain.rest_peak_bytes <= budget:
            found.append(eighths / 8)
    return list(dict.fromkeys(found))


def _planned(known: RecordedBlocks, limit_bytes: int) -> list[tuple[int, ...]]:
    """The cheapest plan for each budget; where all fits already, for what is between that and the leanest."""
    within = [cheapest_plan(known.chain, budget) for budget in _budgets(known, limit_bytes)]
    found = [plan.again for plan in within if plan is not None and plan.again]
    if found:
        return found
    # The tensors fit, and yet memory was short: fragments and libraries take the rest.
    least = leanest_plan(known.chain)
    middle = cheapest_plan(known.chain, (known.chain.peak_bytes() + least.peak_bytes) // 2)
    return [middle.again if middle is not None else (), least.again]


def _guess(known: RecordedBlocks, limit_bytes: int, sites: Sequence[Site]) -> list[tuple[int, ...]]:
    """Parts of the blocks, from the fewest with which what is known of a step fits."""
    # Gradients, and what the optimizer keeps: not yet there in the first forward pass.
    held = known.held_bytes + gradient_bytes(sites) + state_bytes(sites)
    most = held + sum(block.kept_bytes for block in known.chain.blocks)
    least = 0
    for place in known.saving:
        if most <= _BUDGETS[0] * limit_bytes:
            break
        most -= known.chain.blocks[place].saved_bytes
        least += 1
    return _parts(known, least)


def _parts(known: RecordedBlocks, least: int) -> list[tuple[int, ...]]:
    numbers = [max(1, round(share * len(known.saving))) for share in _PARTS]
    return [known.saving[:number] for number in numbers if number >= least] or [known.saving]


_TENSORS = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "adamax": 2, "lion": 1, "rmsprop": 1, "adagrad": 1}
"""How many times the size of a parameter each optimizer keeps as its state, by the optimizer's class name."""
_BYTES = 4
"""Bytes of an element of float32."""


def gradient_bytes(sites: Iterable[Site]) -> int:
    """Bytes of the gradients of all that the optimizers train."""
    return sum(_BYTES * _elements(site) for site in sites if site.kind == "optimizer")


def state_bytes(sites: Iterable[Site]) -> int:
    """Return the bytes that the optimizers keep from step to step. Unknown optimizers count zero."""
    return sum(_BYTES * _elements(site) * _tensors(site) for site in sites if site.kind == "optimizer")


def _elements(site: Site) -> int:
    elements = site.arguments.get("elements")
    return elements if isinstance(elements, int) else 0


def _tensors(site: Site) -> int:
    name = str(site.arguments.get("name", "")).lower()
    return int(bool(site.arguments.get("momentum"))) if name == "sgd" else _TENSORS.get(name, 0)
