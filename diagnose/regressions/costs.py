"""The costs of the first steps of a program, read from the files that its processes left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.collect.records import COSTS

Line = tuple[str, int]


@dataclass(frozen=True)
class Costs:
    """The counted steps of one rank; lines are of the program at its commit."""

    steps: int
    counts: Mapping[str, Mapping[Line, int]] = field(default_factory=dict)
    """Events of all steps by kind (launch, recorded, sync, copy to device, graph, compilation, …) and line."""
    sizes: Mapping[str, Mapping[Line, int]] = field(default_factory=dict)
    """Bytes of all steps by kind and line; FLOPs for the kinds `flops <dtype>`."""
    peak_bytes: int = 0
    live_bytes: tuple[int, ...] = ()
    """Bytes held at the end of each counted step."""
    recorded_tensors: tuple[int, ...] = ()
    """Living tensors that keep the graph of a backward pass, likewise."""
    graph_breaks: int = 0
    tensors: int = 0
    """The number of parameter tensors of all optimizers."""
    elements: int = 0
    """The number of elements of those tensors."""
    sites: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def count(self, kind: str) -> float:
        """Return how often a kind occurs in a step."""
        return sum(self.counts.get(kind, {}).values()) / self.steps

    def size(self, kind: str) -> float:
        """Return the bytes of a kind, or its FLOPs, in a step."""
        return sum(self.sizes.get(kind, {}).values()) / self.steps

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of a step by type of the results."""
        return {kind.partition(" ")[2]: self.size(kind) for kind in self.sizes if kind.startswith("flops ")}


def read_costs(folder: Path, rename: Callable[[str], str] = str) -> Costs | None:
    """Return the costs of the first rank of a run folder; None where it left none."""
    paths = sorted(folder.glob(f"rank*/{COSTS}"), key=lambda path: int(path.parent.name.removeprefix("rank")))
    return costs_of(json.loads(paths[0].read_bytes()), rename) if paths else None


def costs_of(found: Mapping[str, Any], rename: Callable[[str], str] = str) -> Costs:
    """Return the costs that a file's content stands for; `rename` maps the names of the program's files."""
    counts: dict[str, Counter[Line]] = {}
    sizes: dict[str, Counter[Line]] = {}
    for step in found["steps"]:
        for kind, file, line, count, size in step["costs"]:
            where = (rename(file) if file else "", line)
            counts.setdefault(kind, Counter())[where] += count
            sizes.setdefault(kind, Counter())[where] += size
    steps = found["steps"]
    return Costs(
        steps=len(steps),
        counts=counts,
        sizes=sizes,
        peak_bytes=max((step["peak_bytes"] for step in steps), default=0),
        live_bytes=tuple(step["live_bytes"] for step in steps),
        recorded_tensors=tuple(step["recorded_tensors"] for step in steps),
        graph_breaks=steps[-1]["graph_breaks"] if steps else 0,
        tensors=found["tensors"],
        elements=found["elements"],
        sites=tuple({**site, "file": rename(site["file"])} for site in found["sites"]),
        settings=found["settings"],
    )
