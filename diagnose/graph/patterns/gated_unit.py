"""SwiGLU: `silu(gate) * up`, where nothing else reads the activation."""

from collections.abc import Iterator

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.nodes import alike, calls, dtype, factors, only_read_by, operand, shape
from diagnose.graph.site import FUSED_BY_COMPILER, Example, Inner, Pattern, Site, floats

LEAST_ELEMENTS = 1 << 22
"""Below this, the call of an operator written in Python costs more time than its memory traffic saves."""


def fused(gate: torch.Tensor, up: torch.Tensor, *, out_dtype: torch.dtype) -> torch.Tensor:
    """`silu(gate) * up`."""
    return kernels.swiglu(gate, up).to(out_dtype)


def find(graph: fx.Graph) -> Iterator[Site]:
    """Products of a silu and something of the same shape."""
    for node in graph.nodes:
        for activation, up in factors(node, "mul"):
            gate = _gate(activation, node)
            if gate is None or not alike(shape(up), shape(node)) or not alike(shape(gate[0]), shape(node)):
                continue
            out_dtype = dtype(node)
            if out_dtype is None or not out_dtype.is_floating_point or up in gate[1]:
                continue
            removed = (*gate[1], node)
            yield Site(PATTERN.name, removed, (gate[0], up), (node,), fused, {"out_dtype": out_dtype}, rows=(0, 1))
            break


def _gate(activation: object, reader: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """What a silu that only `reader` reads is taken of, and its nodes; also where it is written `x * sigmoid(x)`."""
    if not isinstance(activation, fx.Node) or not only_read_by(activation, (reader,)):
        return None
    if calls(activation, "silu"):
        gate = operand(activation, 0, "input")
        return None if operand(activation, 1, "inplace", False) else (gate, (activation,))
    for gate, share in factors(activation, "mul"):
        if calls(share, "sigmoid") and share.args == (gate,) and only_read_by(share, (activation,)):
            return gate, (share, activation)
    return None


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """The activation, which eager code keeps for the backward pass."""
    return 0 if inner == "compiled" else inputs[0].numel() * site.constants["out_dtype"].itemsize


def keeps(site: Site, inputs: list[torch.Tensor], inner: Inner) -> str:  # noqa: ARG001 the same for all patterns
    """A compiler fuses it with its neighbours; eager code gains two passes over memory each way."""
    if inner == "compiled":
        return FUSED_BY_COMPILER
    return "" if inputs[0].numel() >= LEAST_ELEMENTS else "too small to pay for another launch"


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


_PAIR = (floats(4, 6), floats(4, 6))

PATTERN = Pattern(
    "swiglu",
    find,
    saves,
    keeps,
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
    ),
)
