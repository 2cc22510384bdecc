"""Products of an activation that nothing else reads and something of the same shape: gated units."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from diagnose.graph.nodes import dtype, equal_sizes, factors, only_read_by, shape
from diagnose.graph.site import Inner, Site

Activation = Callable[[fx.Node], tuple[fx.Node, tuple[fx.Node, ...], dict[str, Any]] | None]
"""Tells of a node what the activation is taken of, the nodes it consists of, and its constants; None for what is
none."""


def find_gated_units(
    graph: fx.Graph, pattern: str, activation: Activation, fused: Callable[..., torch.Tensor]
) -> Iterator[Site]:
    """The products, each with the gate and what it is multiplied with as inputs."""
    for node in graph.nodes:
        out_dtype = dtype(node)
        if out_dtype is None or not out_dtype.is_floating_point:
            continue
        for activated, up in factors(node, "mul"):
            found = activation(activated) if isinstance(activated, fx.Node) else None
            if found is None or not isinstance(up, fx.Node) or not only_read_by(activated, (node,)):
                continue
            gate, nodes, constants = found
            if up not in nodes and equal_sizes(shape(up), shape(node)) and equal_sizes(shape(gate), shape(node)):
                removed = (*nodes, node)
                yield Site(pattern, removed, (gate, up), (node,), fused, {**constants, "out_dtype": out_dtype}, (0, 1))
                break


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:  # noqa: ARG001 as all are called
    """The activation, which eager code keeps for the backward pass beside its inputs; a compiler computes it again."""
    if inner == "compiled":
        return 0
    kept: int = inputs[0].numel() * inputs[0].dtype.itemsize
    return kept
