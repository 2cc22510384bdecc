"""The numbers of a program's first steps, as `diagnose.collect.inside.modes.capture` left them on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from diagnose.collect.records import NUMBERS, STATE, VALUES
from diagnose.trace.schema import Float64


class Tensor(msgspec.Struct, frozen=True):
    """One captured tensor."""

    step: int
    kind: str
    """`loss`, `gradient`, `parameter`, `buffer`, or `state` of an optimizer."""
    name: str
    shape: tuple[int, ...]
    finite: bool
    sha256: str = ""
    elements: int = 0

    @property
    def key(self) -> tuple[int, str, str]:
        """The key under which another capture of the program has the same tensor."""
        return (self.step, self.kind, self.name)

    @property
    def title(self) -> str:
        """The tensor's name in messages."""
        return f"{self.kind} {self.name} of step {self.step + 1}"


@dataclass(frozen=True)
class Capture:
    """All tensors of all ranks; the key is the rank and the tensor's own key."""

    tensors: Mapping[tuple[int, int, str, str], Tensor]
    values: Mapping[tuple[int, int, str, str], Float64]
    """Sampled elements, float64, flat; empty where only hashes were kept."""
    states: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Per rank, step by step: random generators, optimizers, memory (`diagnose.collect.inside.modes.step_state`)."""
    nondeterministic: frozenset[str] = frozenset()
    """The operators called of which torch has no deterministic implementation: they may give other bits each time."""

    @property
    def steps(self) -> int:
        """How many steps were captured."""
        return len({tensor.step for tensor in self.tensors.values()})

    def has(self, kind: str) -> bool:
        """Whether a tensor of this kind was seen at all."""
        return any(tensor.kind == kind for tensor in self.tensors.values())


_decoder = msgspec.json.Decoder(Tensor)


def read_capture(folder: Path) -> Capture | None:
    """The capture below `folder`, or None where it did not come to its end."""
    tensors: dict[tuple[int, int, str, str], Tensor] = {}
    values: dict[tuple[int, int, str, str], Float64] = {}
    states: dict[int, list[dict[str, Any]]] = {}
    nondeterministic: set[str] = set()
    for index in sorted(folder.glob(f"rank*/{NUMBERS}")):
        rank = int(index.parent.name.removeprefix("rank"))
        state = json.loads((index.parent / STATE).read_bytes()) if (index.parent / STATE).exists() else {}
        states[rank] = state.get("steps", [])
        nondeterministic.update(state.get("nondeterministic", ()))
        stored = np.fromfile(index.parent / VALUES, np.float64)
        at = 0
        for line in index.read_bytes().splitlines():
            tensor = _decoder.decode(line)
            key = (rank, *tensor.key)
            tensors[key] = tensor
            if not tensor.sha256:
                values[key] = stored[at : at + tensor.elements]
                at += tensor.elements
    return Capture(tensors, values, states, frozenset(nondeterministic)) if tensors else None
