"""The backend: Dynamo gives a graph and real inputs; what pays and is equivalent is rewritten; the rest goes on."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from diagnose.graph import account
from diagnose.graph.decision import decide
from diagnose.graph.nodes import fake_value
from diagnose.graph.options import Options, parse_options
from diagnose.graph.patterns import PATTERNS
from diagnose.graph.site import Site
from diagnose.graph.site_search import modules_of

FIRST_STEPS = 3
"""Calls whose peak memory is reported: allocators and optimizers have what they need after two."""

Compiled = Callable[..., Any]


def backend(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """The entry point of `torch.compile(model, backend="diagnose")`, called with each graph of the model."""
    chosen = parse_options(options, mode, tuple(pattern.name for pattern in PATTERNS))
    return _later(module, chosen) if _lacks_values(inputs) else _compiled(module, inputs, chosen)


def _compiled(module: fx.GraphModule, inputs: Sequence[Any], chosen: Options) -> Compiled:
    device = _device(module)
    decisions, note = decide(module, inputs, chosen)
    if device.type == "cuda" and any(decision.checked for decision in decisions):
        # What the checks held is neither the program's memory nor its peak.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    accepted = [decision.site for decision in decisions if not decision.left]
    records = [decision.record(chosen) for decision in decisions]
    for part in modules_of(module):
        rewrite(part, [site for site in accepted if site.anchor.graph is part.graph])
    number = account.entered(str(device), _name(chosen), records, note, chosen.prints)
    compiled = _handed_on(module, inputs, chosen)
    return _watched(compiled, device, number, chosen.prints) if accepted and device.type == "cuda" else compiled


def _later(module: fx.GraphModule, chosen: Options) -> Compiled:
    """The graph, compiled when it is first called: the parts that DistributedDataParallel cuts come without values."""
    compiled: Compiled | None = None

    def first(*inputs: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            compiled = _compiled(module, inputs, chosen)
        return compiled(*inputs)

    return first


def _lacks_values(inputs: Sequence[Any]) -> bool:
    """Whether there are sizes but no values; symbolic sizes must be compiled while Dynamo knows them."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    sizes = [size for tensor in tensors for size in tensor.shape]
    fake = any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in tensors)
    return fake and all(isinstance(size, int) for size in sizes) and len(tensors) == len(inputs)


def _handed_on(module: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Compiled:
    if options.inner == "inductor":
        # Deferred: Inductor takes a second to import, and eager code goes on without.
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(module, inputs, config_patches=dict(options.handed_on))  # type: ignore[return-value]
    compiled: Compiled = torch._dynamo.lookup_backend(options.inner)(module, inputs)  # type: ignore[arg-type]
    return compiled


def _watched(compiled: Compiled, device: torch.device, number: int, prints: bool) -> Compiled:
    """The compiled graph, whose first calls' peak memory goes into the account."""
    calls = 0

    @functools.wraps(compiled)
    def watched(*inputs: Any) -> Any:
        nonlocal calls
        if calls <= FIRST_STEPS:
            if calls == FIRST_STEPS:
                account.peak_seen(number, torch.cuda.max_memory_allocated(device), prints)
            calls += 1
        return compiled(*inputs)

    return watched


def _device(module: fx.GraphModule) -> torch.device:
    """Return the device of the graph's first value that is not on the CPU; the CPU where there is none."""
    devices = [value.device for node in module.graph.nodes if (value := fake_value(node)) is not None]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _name(options: Options) -> str:
    return options.inner if isinstance(options.inner, str) else getattr(options.inner, "__name__", "another backend")


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
