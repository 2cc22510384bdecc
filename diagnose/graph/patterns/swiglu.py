"""SwiGLU: `silu(gate) * up`, where nothing else reads the activation."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.nodes import calls, factors, only_read_by, operand
from diagnose.graph.patterns.gated_units import find_gated_units, saves
from diagnose.graph.site import Example, Pattern, Site, floats, left_to_compilers


def fused(gate: torch.Tensor, up: torch.Tensor, *, out_dtype: torch.dtype) -> torch.Tensor:
    """`silu(gate) * up`."""
    return kernels.swiglu(gate, up).to(out_dtype)


def find(graph: fx.Graph) -> Iterator[Site]:
    """Products of a silu and something of the same shape."""
    return find_gated_units(graph, PATTERN.name, _silu, fused)


def _silu(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...], dict[str, Any]] | None:
    """A silu, also where it is written `x * sigmoid(x)`."""
    if calls(node, "silu"):
        gate = operand(node, 0, "input")
        return None if operand(node, 1, "inplace", False) else (gate, (node,), {})
    for gate, share in factors(node, "mul"):
        if calls(share, "sigmoid") and share.args == (gate,) and only_read_by(share, (node,)):
            return gate, (share, node), {}
    return None


def _projected(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def _other_order(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, up) * functional.silu(functional.linear(x, gate))


def _halves(x: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    gate, up = functional.linear(x, both).chunk(2, dim=-1)
    return functional.silu(gate) * up


def _written_out(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate * torch.sigmoid(gate) * up


def _plain_silu(x: torch.Tensor) -> torch.Tensor:
    return functional.silu(x)


def _read_twice(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    activation = functional.silu(gate)
    return activation * up + activation


def _excitation(x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * share


def _gated_linear_unit(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(gate) * up


def _in_place(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate * 1.0, inplace=True) * up


def _squared(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    activation = functional.silu(gate)
    return activation * activation + up


_PAIR = (floats(4, 6), floats(4, 6))

PATTERN = Pattern(
    "swiglu",
    find,
    saves,
    left_to_compilers,
    matches=(
        Example(_projected, (floats(2, 3, 4), floats(6, 4), floats(6, 4))),
        Example(_other_order, (floats(2, 3, 4), floats(6, 4), floats(6, 4))),
        Example(_halves, (floats(2, 3, 4), floats(12, 4))),
        Example(_written_out, _PAIR),
    ),
    leaves=(
        Example(_plain_silu, (floats(4, 6),)),
        Example(_read_twice, _PAIR),
        Example(_excitation, (floats(4, 6), floats(4, 1))),
        Example(_gated_linear_unit, _PAIR),
        Example(_in_place, _PAIR),
        Example(_squared, _PAIR),
    ),
)
