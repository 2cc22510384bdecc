"""Keeps on the device what every step fetches from the host and takes back there.

What it changes
    Where a list of tensors is made in host memory once (`[torch.empty_like(w, device="cpu", pin_memory=True) for w in
    weights]`, `[w.detach().cpu().clone() for …]`) and each step moves it to the device, changes it there and copies it
    back, as moving averages of the weights do, it is made on the device. The copies in the step stay in the text: they
    then find everything where it should be, and do nothing. `.cpu()` of what is added to such a list goes.

Why it helps
    The copies move as many bytes as the model has, twice a step, over a bus that is fifty times slower than the memory
    of the device, which waits for them.

Fix safety
    Bitwise where the arithmetic is done on the device already, rounding where it moves there. The list costs device
    memory: with advice instead where it would not fit beside the measured peak. Left alone: lists that are used for
    anything else, and copies that are not taken back, which may be changed without the list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import scope_of, within
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.arguments import argument, argument_code
from diagnose.source.tree.attributes import is_label, is_of_self
from diagnose.source.tree.edits import Source, Splice, call_name, replace
from diagnose.source.tree.outline import called_name

_LIKE = frozenset({"empty_like", "zeros_like", "ones_like", "full_like", "clone"})
_MOVES = frozenset({"to", "cuda"})
_UPDATES = frozenset({"mul_", "add_", "lerp_", "sub_", "div_", "copy_", "detach", "zero_"})
_USABLE = 0.9
"""The part of a device's memory that a program can count on."""


@dataclass
class _State:
    """A list of tensors in host memory."""

    path: str
    source: Source
    assign: cst.Assign
    element: cst.BaseExpression
    name: str
    """The tensor's name as code: `self.kept`."""
    fetched: list[str] = field(default_factory=list)
    """The name that a step has for the tensors, or a list of them, once they are on the device."""
    taken_back: list[str] = field(default_factory=list)
    """The tensors that it copies into the list."""
    operands: list[cst.Call] = field(default_factory=list)
    """`x.cpu()` that is added to it."""

    @property
    def travels(self) -> bool:
        """Whether every step moves it there and back, or what is added to it."""
        back = bool(self.fetched) and set(self.fetched) == set(self.taken_back)
        return back if self.fetched else bool(self.operands)


def rewrite(request: Request) -> Answer:
    """Make every such list on the device."""
    edits: list[tuple[str, list[Splice]]] = []
    names: list[str] = []
    rounding = False
    code = EveryStep(request.sources, request.finding.where)
    for path, source in {stretch.path: stretch.source for stretch in code.stretches}.items():
        for state in _states(path, source):
            steps = [stretch.body for stretch in code.stretches if stretch.path == path]
            if not _follow(state, steps) or not state.travels:
                continue
            if not _fits(request):
                return Advice(
                    f"{path}:{source.lines_of(state.assign)[0]} keeps `{state.name}` in host memory, and every step "
                    "moves it. Beside the measured peak there is no room for it on the device: update it less often."
                )
            names.append(state.name)
            rounding = rounding or bool(state.operands)
            splices = _on_device(source, state.element)
            splices += [replace(source, call, _object(source, call)) for call in state.operands]
            edits.append((path, splices))
    if not edits:
        return None
    kept = " and ".join(f"`{name}`" for name in dict.fromkeys(names))
    return Edits(request.edited(edits), f"keep {kept} on the device", Gate.ROUNDING if rounding else None)


def _states(path: str, source: Source) -> Iterator[_State]:
    for assign in source.every(cst.Assign) if _may_have_states(source) else ():
        if len(assign.targets) == 1 and isinstance(assign.value, cst.ListComp) and _on_host(source, assign.value.elt):
            yield _State(path, source, assign, assign.value.elt, source.code(assign.targets[0].target))


def _may_have_states(source: Source) -> bool:
    """Whether a list is assigned whose elements are made by calls that may put a tensor into host memory."""
    lists = (each.value for each in source.outline.every(ast.Assign) if isinstance(each.value, ast.ListComp))
    calls = (node for each in lists for node in ast.walk(each.elt) if isinstance(node, ast.Call))
    return any(called_name(call) in _LIKE | {"cpu", "to"} for call in calls)


def _on_host(source: Source, element: cst.BaseExpression) -> bool:
    """Whether an expression makes a new tensor in host memory of one that may lie on a device."""
    return any(_is_host(source, call) for call in source.every(cst.Call, element))


def _is_host(source: Source, call: cst.Call) -> bool:
    device = argument(call, "device")
    to = argument(call, "device", 0) if call_name(call) == "to" else None
    if call_name(call) in _LIKE and device is not None and _says_cpu(source, device.value):
        return True
    return (call_name(call) == "cpu" and not call.args) or (to is not None and _says_cpu(source, to.value))


def _says_cpu(source: Source, node: cst.BaseExpression) -> bool:
    return source.code(node) in {'"cpu"', "'cpu'", 'torch.device("cpu")', "torch.device('cpu')"}


def _object(source: Source, call: cst.Call) -> str:
    assert isinstance(call.func, cst.Attribute)  # it is the call of a method
    return source.code(call.func.value)


def _on_device(source: Source, element: cst.BaseExpression) -> list[Splice]:
    """The element without what puts it into host memory; a copy all the same."""
    splices: list[Splice] = []
    calls = list(source.every(cst.Call, element))
    copies = any(call_name(call) in _LIKE | {"copy_"} for call in calls)
    for call in calls:
        if call_name(call) == "pin_memory" and isinstance(call.func, cst.Attribute):
            splices.append(_cut(source, call, ""))
        elif call_name(call) in _LIKE and argument(call, "device") is not None:
            gone = [arg for name in ("device", "pin_memory") if (arg := argument(call, name)) is not None]
            kept = [argument_code(source, arg) for arg in call.args if arg not in gone]
            splices.append(replace(source, call, f"{source.code(call.func)}({', '.join(kept)})"))
        elif _is_host(source, call):
            splices.append(_cut(source, call, "" if copies else ".clone()"))
    return splices


def _cut(source: Source, call: cst.Call, code: str) -> Splice:
    """Another method, or none, in the place of the last one of a chain."""
    assert isinstance(call.func, cst.Attribute)  # it is the call of a method
    return Splice(source.wide_span(call.func.value)[1], source.span(call)[1], code)


def _follow(state: _State, steps: list[cst.CSTNode]) -> bool:
    """Note what is done with the list; False where it is used for something that is not understood."""
    source = state.source
    home: cst.CSTNode = scope_of(source, state.assign)
    if state.name.startswith("self."):
        home = source.inside(state.assign, cst.ClassDef) or home
    attribute = state.name.rpartition(".")[2]
    for node in source.walk():
        if not isinstance(node, cst.Name | cst.Attribute) or source.code(node) != state.name:
            if isinstance(node, cst.Attribute) and node.attr.value == attribute and not is_of_self(node):
                return False  # somebody outside reads it
            continue
        if within(source, node, state.assign.targets[0]) or not within(source, node, home):
            continue
        loop = _loop(source, node)
        if loop is None:
            return False
        variable = _variable(loop, node)
        every = any(within(source, node, step) for step in steps)
        if variable is None or not all(_use(state, name, every) for name in _reads(source, loop, variable)):
            return False
    return True


def _loop(source: Source, node: cst.CSTNode) -> cst.For | cst.CompFor | None:
    """The loop over a list, alone or zipped with others."""
    parent = source.parent(node)
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        if not isinstance(call, cst.Call) or source.code(call.func) != "zip":
            return None
        node, parent = call, source.parent(call)
    return parent if isinstance(parent, cst.For | cst.CompFor) and parent.iter is node else None


def _variable(loop: cst.For | cst.CompFor, node: cst.CSTNode) -> str | None:
    target: cst.BaseExpression | cst.BaseAssignTargetExpression = loop.target
    if isinstance(loop.iter, cst.Call) and loop.iter is not node:
        at = next((number for number, arg in enumerate(loop.iter.args) if arg.value is node), None)
        if at is None or not isinstance(target, cst.Tuple) or at >= len(target.elements):
            return None
        target = target.elements[at].value
    return target.value if isinstance(target, cst.Name) else None


def _reads(source: Source, loop: cst.For | cst.CompFor, variable: str) -> list[cst.Name]:
    body = loop.body if isinstance(loop, cst.For) else source.parent(loop)
    assert body is not None  # a comprehension is around its loop
    names = [name for name in source.every(cst.Name, body) if name.value == variable]
    return [
        name
        for name in names
        if name is not loop.target and not is_label(source, name) and not within(source, name, loop.target)
    ]


def _use(state: _State, name: cst.Name, every: bool) -> bool:
    """Note one use of a tensor of the list: a method, with those that are called on its result."""
    source = state.source
    above = source.parent(name)
    outer = source.parent(above) if isinstance(above, cst.Arg) else None
    if isinstance(outer, cst.Call):
        return call_name(outer) == "copy_"  # it is copied somewhere else, from wherever it is
    node: cst.CSTNode = name
    while isinstance(parent := source.parent(node), cst.Attribute) and parent.value is node:
        call = source.parent(parent)
        if not isinstance(call, cst.Call):
            return False
        method = parent.attr.value
        if method in _MOVES and node is name and not _is_host(source, call):
            state.fetched += [_called(source, call)] if every else []
        elif method not in _UPDATES:
            return False
        elif every:
            hosts = [one for arg in call.args for one in source.every(cst.Call, arg) if _is_host(source, one)]
            state.operands += hosts
            if method == "copy_" and not hosts and call.args:
                state.taken_back.append(_list_of(source, call.args[0].value))
        node = call
    return node is not name


def _called(source: Source, call: cst.Call) -> str:
    """The name that a moved tensor gets, or the list of all of them; empty for none."""
    above = source.parent(call)
    if isinstance(above, cst.ListComp):
        above = source.parent(above)
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    return target.value if isinstance(target, cst.Name) else ""


def _list_of(source: Source, node: cst.BaseExpression) -> str:
    """The list that a loop takes a tensor from, or the name of the tensor itself; empty for another expression."""
    if not isinstance(node, cst.Name):
        return ""
    for above in source.ancestors(node):
        if isinstance(above, cst.For) and isinstance(above.iter, cst.Call) and source.code(above.iter.func) == "zip":
            for arg in above.iter.args:
                if _variable(above, arg.value) == node.value:
                    return source.code(arg.value)
    return node.value


def _fits(request: Request) -> bool:
    """Whether the device has room for as much as the parameters take; also where nothing is known of it."""
    capacity, peak = request.facts.device_memory_bytes, request.facts.peak_memory_bytes
    counts = [site.arguments.get("elements") for site in request.sites if site.kind == "optimizer"]
    elements = max((count for count in counts if isinstance(count, int)), default=0)
    return capacity is None or peak is None or peak + 4 * elements <= _USABLE * capacity


def _recorded(text: str) -> Request:
    return example_request("exposed-copies", text)


_AVERAGE = """import torch


class Average:
    def __init__(self, model):
        self.weights = [p.detach() for p in model.parameters()]
        self.kept = [{} for w in self.weights]

    def update(self):
        now = [kept.to(self.weights[0].device, non_blocking=True) for kept in self.kept]
        torch._foreach_lerp_(now, self.weights, 0.1)
        for kept, {} in zip(self.kept, {}):
            kept.copy_({})


average = Average(model)
for x in batches:
    model(x).mean().backward()
    optimizer.step()
    average.update()
"""
_LOOP = """import torch

ema = [{} for p in model.parameters()]
for x in batches:
    model(x).mean().backward()
    optimizer.step()
    for e, p in zip(ema, model.parameters()):
        e.mul_(0.99).add_({}, alpha=0.01)
{}"""
_EMPTY, _PINNED = "torch.empty_like(w)", 'torch.empty_like(w, device="cpu", pin_memory=True)'

FIXER = Fixer(
    name="state-on-device",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_copy+idle",
    order=25,
    examples=(
        Example(
            _AVERAGE.format(_PINNED, "average", "now", "average"),
            _AVERAGE.format(_EMPTY, "average", "now", "average"),
            _recorded,
        ),
        Example(
            _LOOP.format("p.detach().cpu().clone().pin_memory()", "p.detach().cpu()", ""),
            _LOOP.format("p.detach().clone()", "p.detach()", ""),
            _recorded,
        ),
        Example(
            _LOOP.format("p.detach().to('cpu')", "p.detach().to('cpu')", ""),
            _LOOP.format("p.detach().clone()", "p.detach()", ""),
            _recorded,
        ),
        # What is fetched is not what is taken back: on the device it would change with the list.
        Example(_AVERAGE.format(_PINNED, "weight", "self.weights", "weight"), None, _recorded),
        Example(
            _LOOP.format("p.detach().cpu().clone()", "p.detach().cpu()", "arrays = [e.numpy() for e in ema]\n"),
            None,
            _recorded,
        ),
        Example(_LOOP.format("p.detach().clone()", "p.detach()", ""), None, _recorded),
    ),
)
