"""The autocast regions of a graph: nodes of one site may stand in several.

A forward pass under autocast and its loss outside of it is a common one: the output layer multiplies in bfloat16, and
the loss is taken of its output in float32. Whoever runs such a site by itself has to run each node as it ran there.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from diagnose.graph.nodes import fake_value

Autocast = tuple[str, torch.dtype, bool, bool]
"""Kind of device, dtype, whether it is on, and whether casts are kept: what `_enter_autocast` takes."""

_NOTED = "diagnose_autocast"


def note_autocast(node: fx.Node) -> None:
    """Note, on a node that is about to run, the autocast that it runs under."""
    value = fake_value(node)
    kind = "" if value is None else value.device.type
    if kind and torch.amp.is_autocast_available(kind):
        node.meta[_NOTED] = (
            kind,
            torch.get_autocast_dtype(kind),
            torch.is_autocast_enabled(kind),
            torch.is_autocast_cache_enabled(),
        )


def autocast_of(node: fx.Node) -> Autocast | None:
    """Return the autocast state noted for a node; None where none was, as for nodes that have not run."""
    found: Autocast | None = node.meta.get(_NOTED)
    return found


def differ(nodes: Sequence[fx.Node]) -> bool:
    """Whether nodes ran under autocasts of which one is not another."""
    return len({noted[:3] for node in nodes if (noted := autocast_of(node)) is not None}) > 1


def run_under(node: fx.Node, autocast: Autocast) -> None:
    """Let a node of a graph that is being written run under an autocast of its own, which ends whatever happens."""
    if node.op not in ("call_function", "call_method"):
        return
    kind, dtype, enabled, kept = autocast
    target, is_method = node.target, node.op == "call_method"

    def run(*arguments: Any, **keywords: Any) -> Any:
        with torch.autocast(kind, dtype, enabled, kept):
            if is_method:
                return getattr(arguments[0], str(target))(*arguments[1:], **keywords)
            return target(*arguments, **keywords)  # type: ignore[operator]  # a function's

    node.op, node.target = "call_function", run
