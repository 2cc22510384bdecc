"""GeGLU: `gelu(gate) * up`, by the error function or by tanh, where nothing else reads the activation."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.nodes import calls, operand
from diagnose.graph.patterns.gated_units import find_gated_units, saves
from diagnose.graph.site import Example, Pattern, Site, floats, left_to_compilers


def fused(gate: torch.Tensor, up: torch.Tensor, *, approximate: Any, out_dtype: torch.dtype) -> torch.Tensor:
    """`gelu(gate) * up`."""
    return kernels.geglu(gate, up, approximate).to(out_dtype)


def find(graph: fx.Graph) -> Iterator[Site]:
    """Products of a gelu and something of the same shape."""
    return find_gated_units(graph, PATTERN.name, _gelu, fused)


def _gelu(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...], dict[str, Any]] | None:
    approximate = operand(node, 1, "approximate", "none")
    if not calls(node, "gelu") or approximate not in ("none", "tanh"):
        return None
    return operand(node, 0, "input"), (node,), {"approximate": approximate}


def _as_gemma(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, gate), approximate="tanh") * functional.linear(x, up)


def _as_diffusers(x: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    up, gate = functional.linear(x, both).chunk(2, dim=-1)
    return up * functional.gelu(gate)


def _plain_gelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(functional.gelu(x), weight)


def _read_twice(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    activation = functional.gelu(gate)
    return activation * up, activation


def _scaled(gate: torch.Tensor) -> torch.Tensor:
    return functional.gelu(gate) * 2.0


PATTERN = Pattern(
    "geglu",
    find,
    saves,
    left_to_compilers,
    matches=(
        Example(_as_gemma, (floats(2, 3, 4), floats(6, 4), floats(6, 4))),
        Example(_as_diffusers, (floats(2, 3, 4), floats(12, 4))),
    ),
    leaves=(
        Example(_plain_gelu, (floats(4, 6), floats(3, 6))),
        Example(_read_twice, (floats(4, 6), floats(4, 6))),
        Example(_scaled, (floats(4, 6),)),
    ),
)
