"""Putting the calls of fused operators in the places of the nodes that they replace."""

import operator
from collections.abc import Sequence

from torch import fx

from diagnose.graph.site import Site

PLACES = ("stack_trace", "nn_module_stack")


def rewrite(module: fx.GraphModule, sites: Sequence[Site]) -> None:
    """Replace the nodes of sites that are in no other's way; nothing happens where there are none."""
    if not sites:
        return
    instead: dict[fx.Node, fx.Node] = {}
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    for site in sites:
        first = min(site.outputs, key=order.__getitem__)
        inputs = tuple(instead.get(node, node) for node in site.inputs)
        with module.graph.inserting_before(first):
            call = module.graph.call_function(site.fused, inputs, dict(site.constants))
            results = [call]
            if len(site.outputs) > 1:
                results = [
                    module.graph.call_function(operator.getitem, (call, place)) for place in range(len(site.outputs))
                ]
        call.meta.update({key: site.anchor.meta[key] for key in PLACES if key in site.anchor.meta})
        for old, new in zip(site.outputs, results, strict=True):
            if "example_value" in old.meta:
                new.meta["example_value"] = old.meta["example_value"]
            old.replace_all_uses_with(new)
            instead[old] = new
    removed = [node for site in sites for node in site.removed]
    for node in sorted(removed, key=order.__getitem__, reverse=True):
        module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
