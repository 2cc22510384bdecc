"""The values that reach a site in a real call: the graph run once, as it is.

Nothing of the user's changes: buffers and batches are copied, random states are put back, gradients are not recorded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from diagnose.graph.autocasting import note_autocast
from diagnose.graph.nodes import fake_value, now, spelling
from diagnose.graph.site import Site
from diagnose.graph.site_search import GRADIENT_MODES, communicates, is_checkpoint, written_by


class NotCapturedError(Exception):
    """Why a graph cannot be run for its values; the message ends a sentence."""


Visit = Callable[[Site, list[torch.Tensor]], None]


def visit_sites(module: fx.GraphModule, inputs: Sequence[Any], sites: Sequence[Site], visit: Visit) -> None:
    """Call `visit` for each site with the values of its inputs; values that no one needs any more are freed."""
    _check(module, inputs)
    waiting: dict[fx.Graph, list[Site]] = {}
    for site in sites:
        waiting.setdefault(site.anchor.graph, []).append(site)
    with _as_it_was(inputs), torch.no_grad():
        entered: list[Any] = []
        try:
            _walk(module, [_own(value) for value in inputs], waiting, visit, entered)
        finally:
            for mode in reversed(entered):
                torch.amp.autocast_mode._exit_autocast(mode)  # type: ignore[no-untyped-call]


def _walk(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    waiting: Mapping[fx.Graph, list[Site]],
    visit: Visit,
    entered: list[Any],
) -> Any:
    """Interpret the graph and return its outputs; bodies of checkpoints are interpreted as parts of it."""
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    ends: dict[fx.Node, list[Site]] = {}
    for site in waiting.get(module.graph, ()):
        ends.setdefault(max(site.removed, key=order.__getitem__), []).append(site)
    last_use = _last_uses(module.graph, waiting.get(module.graph, ()), order)
    values: dict[fx.Node, Any] = {}
    given = iter(inputs)
    for place, node in enumerate(module.graph.nodes):
        arguments = fx.node.map_arg(node.args, values.__getitem__)
        keywords = fx.node.map_arg(node.kwargs, values.__getitem__)
        if node.op == "placeholder":
            value = next(given)
        elif node.op == "output":
            return arguments[0]
        elif is_checkpoint(node):
            body, *rest = arguments
            value = _walk(body, rest, waiting, visit, entered)
        else:
            note_autocast(node)
            value = _run(module, node, arguments, keywords, entered)
        if node in last_use:
            values[node] = value
        for site in ends.get(node, ()):
            visit(site, [values[each] for each in site.inputs])
        for gone in [each for each in values if last_use[each] <= place]:
            del values[gone]
    return None


def _last_uses(graph: fx.Graph, sites: Sequence[Site], order: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """The place after which each node's value is of no use, for nodes of any use."""
    last: dict[fx.Node, int] = {}
    for place, node in enumerate(graph.nodes):
        last.update(dict.fromkeys(node.all_input_nodes, place))
    for site in sites:
        end = max(order[node] for node in site.removed)
        for read in site.inputs:
            last[read] = max(last.get(read, 0), end)
    return last


def _run(
    module: fx.GraphModule, node: fx.Node, arguments: Sequence[Any], keywords: Mapping[str, Any], entered: list[Any]
) -> Any:
    if node.op == "get_attr":
        constant: Any = module
        for name in str(node.target).split("."):
            constant = getattr(constant, name)
        return _own(constant)
    if spelling(node) in GRADIENT_MODES:
        return None
    if node.op == "call_method":
        owner, *rest = arguments
        return getattr(owner, str(node.target))(*rest, **keywords)
    called: Any = module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    if node.op == "call_module" and next(called.buffers(), None) is not None:
        raise NotCapturedError("the graph calls a module that has buffers")
    found = called(*arguments, **keywords)
    if spelling(node) == "_enter_autocast":
        entered.append(found)
    if spelling(node) == "_exit_autocast":
        entered.remove(arguments[0])
    return found


def _own(value: Any) -> Any:
    """A value that the graph may write into; parameters are large, and a graph that writes into one is not run."""
    if not isinstance(value, torch.Tensor):
        return now(value) if isinstance(value, torch.SymInt) else value
    return value.detach() if isinstance(value, torch.nn.Parameter) else value.detach().clone()


def _check(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Refuse what cannot be run once more than the program runs it."""
    parameters = []
    for node, value in zip((node for node in module.graph.nodes if node.op == "placeholder"), inputs, strict=False):
        if not isinstance(value, torch.Tensor):
            continue
        if torch._is_functional_tensor(value) or isinstance(value, torch._subclasses.FakeTensor):
            raise NotCapturedError("the graph came without values to check it on")
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise NotCapturedError(f"the graph's inputs are {type(value).__name__}s, whose parts lie elsewhere")
        if isinstance(value, torch.nn.Parameter):
            parameters.append(node)
    kept = _memory_of(parameters)
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if communicates(node):
                raise NotCapturedError("the graph exchanges values with other ranks, which need not run it beforehand")
            if kept & _memory_of(written_by(node)):
                raise NotCapturedError("the graph writes into a parameter")


def _memory_of(nodes: Iterable[fx.Node]) -> set[int]:
    """The storages that hold what nodes give: a view's is that of its base."""
    tensors = [value for node in nodes if (value := fake_value(node)) is not None]
    return {value.untyped_storage()._cdata for value in tensors if value.layout == torch.strided}


@contextmanager
def _as_it_was(inputs: Sequence[Any]) -> Iterator[None]:
    """Put the states of all random generators back afterwards."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield
