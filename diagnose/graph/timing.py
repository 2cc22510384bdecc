"""Times a site as it was found and fused, forward and backward, on the device that it runs on.

The clock counts the host where the device waits for it, as a step does: an operator that moves less but takes longer to
launch from Python is no gain. Sites of one pattern, shapes and dtypes are timed once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from diagnose.graph.equivalence import forward_and_backward, fused_function, site_function
from diagnose.graph.site import Site

WARM_UP = 2
ROUNDS = 5
TURNS = 5
"""Passes between two waits for the device: its first is late, the others queue as they do in a step."""


@dataclass(frozen=True)
class Times:
    """Times of one forward and backward pass."""

    found_ns: int
    fused_ns: int

    @property
    def ratio(self) -> float:
        """Time of the fused operator over that of the site as it was found."""
        return self.fused_ns / max(1, self.found_ns)


class Stopwatch:
    """Times sites, those that are alike once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Times] = {}

    def times(self, site: Site, values: Sequence[torch.Tensor]) -> Times:
        """The median of rounds in which the two take turns, so that a drift of clocks meets both alike."""
        layouts = tuple((value.shape, value.stride(), value.dtype, value.device) for value in values)
        calls = tuple((node.op, str(node.target)) for node in site.removed)
        alike = (site.pattern, calls, layouts, repr(sorted(site.constants.items())))
        if alike not in self._known:
            ways = (site_function(site), fused_function(site))
            spent: tuple[list[int], list[int]] = ([], [])
            for place in range(WARM_UP + ROUNDS):
                for call, seen in zip(ways, spent, strict=True):
                    passed = _spent_ns(lambda call=call: forward_and_backward(call, site, values), values[0].device)  # type: ignore[misc]
                    seen += [passed] if place >= WARM_UP else []
            self._known[alike] = Times(round(median(spent[0])), round(median(spent[1])))
        return self._known[alike]


def _spent_ns(turn: Callable[[], object], device: torch.device) -> int:
    _wait(device)
    begun = time.perf_counter_ns()
    for _ in range(TURNS):
        turn()
    _wait(device)
    return (time.perf_counter_ns() - begun) // TURNS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
