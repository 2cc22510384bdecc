"""Finds the sites of a graph that can be rewritten: complete, and undisturbed by in-place writes."""

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from diagnose.graph.nodes import size_of_now, spelling
from diagnose.graph.site import Pattern, Site

IN_PLACE = frozenset(
    {"setitem"}
    | {f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "matmul")}
)
GRADIENT_MODES = ("_set_grad_enabled", "set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode")


def modules_of(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """A graph and the bodies of the checkpoints that it calls, and theirs."""
    yield module
    for node in module.graph.nodes:
        if is_checkpoint(node):
            body = getattr(module, str(node.args[0].target))
            yield from modules_of(body)


def is_checkpoint(node: fx.Node) -> bool:
    """Whether a node calls a part of the graph that the backward pass computes again."""
    return node.op == "call_function" and node.target is torch.ops.higher_order.tag_activation_checkpoint


def sites_of(graph: fx.Graph, patterns: Sequence[Pattern]) -> Iterator[tuple[Pattern, Site]]:
    """The sites of all patterns, those of earlier patterns first; a node may belong to sites of several patterns."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for pattern in patterns:
        for site in pattern.find(graph):
            if _stands_alone(site, order) and not _disturbed(site, graph, order):
                yield pattern, site


def writes_in_place(node: fx.Node) -> bool:
    """Whether a node writes into one of its arguments."""
    name = spelling(node)
    if name in IN_PLACE or (name.endswith("_") and not name.endswith("__")):
        return True
    return node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True


def written_by(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose values a node writes into."""
    if not writes_in_place(node):
        return ()
    targets = (*node.args[:1], node.kwargs.get("input"), node.kwargs.get("out"))
    found: list[fx.Node] = []
    fx.node.map_arg(targets, found.append)
    return tuple(found)


def communicates(node: fx.Node) -> bool:
    """Whether a node is an operation of several ranks: it waits for all of them."""
    if node.op != "call_function":
        return False
    return "c10d" in str(node.target) or str(getattr(node.target, "__module__", "")).startswith("torch.distributed")


def _stands_alone(site: Site, order: dict[fx.Node, int]) -> bool:
    """Whether others read nothing but its outputs, it reads nothing but its inputs and sizes, and these come first."""
    inside, outputs = set(site.removed), set(site.outputs)
    if any(not set(node.users) <= inside for node in inside - outputs):
        return False
    strangers = {read for node in inside for read in node.all_input_nodes} - inside - set(site.inputs)
    if any(size_of_now(read) is None for read in strangers):
        return False
    first = min(order[node] for node in outputs)
    return all(order[node] < first for node in site.inputs)


def _disturbed(site: Site, graph: fx.Graph, order: dict[fx.Node, int]) -> bool:
    """Whether gradients are switched while the site is under way, or something is written in place since its beginning.

    What is written later may share memory with an input, and the operator keeps its inputs for the backward pass,
    which torch's own operators need not: torch would raise there.
    """
    places = [order[node] for node in site.removed]
    first, last = min(places), max(places)
    since = [node for node in graph.nodes if first <= order[node]]
    return any(writes_in_place(node) or (order[node] <= last and spelling(node) in GRADIENT_MODES) for node in since)
