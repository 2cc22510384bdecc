"""A site of a pattern, and the parts of every file in `patterns/`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

Inner = Literal["eager", "compiled"]
"""Whether what is not rewritten runs as it is, or a compiler fuses it."""

FUSED_BY_COMPILER = "the compiler fuses it with its neighbours"
"""Why elementwise sites stay where a compiler has the rest: an operator of ours would stand between the two sides."""

Draw = Callable[[torch.Generator], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Site:
    """Nodes of a graph that one call of a fused operator can replace."""

    pattern: str
    removed: tuple[fx.Node, ...]
    """The nodes that go, in the graph's order."""
    inputs: tuple[fx.Node, ...]
    """The tensors read from outside, in the order of `fused`'s arguments."""
    outputs: tuple[fx.Node, ...]
    """The outputs of `removed` that are read outside, in the order of `fused`'s results."""
    fused: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    """The `inputs` that have a row for each row of the result: a part of them gives a part of the result."""
    elements: int = 0
    """Elements of the largest tensor that exists only within the site, as it was found."""

    @property
    def anchor(self) -> fx.Node:
        """The node whose line in the source stands for the site."""
        return self.removed[-1]


@dataclass(frozen=True)
class Example:
    """A program that contains the pattern, or one that only looks like it."""

    program: Callable[..., Any]
    draws: tuple[Draw, ...]

    def inputs(self) -> list[torch.Tensor]:
        """Fresh inputs, the same at each call; gradients are wanted for all that can have one."""
        generator = torch.Generator().manual_seed(0)
        drawn = [draw(generator) for draw in self.draws]
        return [tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in drawn]


@dataclass(frozen=True)
class Pattern:
    """One kind of site: how it is found, when replacing it pays, what it saves."""

    name: str
    find: Callable[[fx.Graph], Iterator[Site]]
    saves: Callable[[Site, list[torch.Tensor], Inner], int]
    """Estimated bytes by which the peak of the site's forward and backward pass falls, for inputs of these sizes."""
    keeps: Callable[[Site, list[torch.Tensor], Inner], str]
    """Why a site on a device is better left as it is; empty where the rewrite pays."""
    trades: Literal["nothing", "time for memory"] = "nothing"
    """A site that trades nothing must be faster when it is checked on a device."""
    matches: tuple[Example, ...] = ()
    leaves: tuple[Example, ...] = ()


def left_to_compilers(site: Site, inputs: list[torch.Tensor], inner: Inner) -> str:  # noqa: ARG001 as all are called
    """Return why to leave sites that a compiler fuses with their surroundings. In eager code their time decides."""
    return FUSED_BY_COMPILER if inner == "compiled" else ""


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Normal numbers."""
    return lambda generator: torch.randn(shape, generator=generator).to(dtype)


def classes(count: int, *shape: int) -> Draw:
    """Labels among `count` classes."""
    return lambda generator: torch.randint(0, count, shape, generator=generator)


def flags(*shape: int) -> Draw:
    """Booleans."""
    return lambda generator: torch.rand(shape, generator=generator) < 0.5
