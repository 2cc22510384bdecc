"""Copies the next batch to the device while the present one is computed on.

What it changes
    Puts a small class into the file of the training loop, and wraps the loader of the loop in it. It copies each batch
    to the device one turn ahead, on a stream of its own. The lines that moved the batch before stay, and find nothing
    left to do.

Why it helps
    A copy that is asked for at the beginning of a step comes behind all work of the step before, and all work of its
    own step waits for it. The engines that copy work beside those that compute: asked for one step earlier, on another
    stream, the copy costs the step nothing.

Fix safety
    Bitwise: the same batches in the same order. The stream that computes waits for the copy of its batch alone, and the
    allocator is told of both streams, so that no memory is used again too early. One batch more is kept on the device.
    The loader is asked for a batch one step earlier, and for one more where the loop ends early. It is the last thing
    to try: left alone are loops whose copies wait or whose loader does not pin (`nonblocking-copies` comes first),
    whose batches are copied to several devices or used on the host too, loaders without workers whose samples draw
    random numbers, and programs that have streams of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Facts,
    Fixer,
    Gate,
    Request,
    Site,
    example_request,
    lines_with,
)
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.flow import binds, within
from diagnose.source.dataflow.iteration import OF_ALL_VALUES, numbered, unwrapped
from diagnose.source.device.transfers import Origin, Transfer, transfers
from diagnose.source.training.every_step import EveryStep
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.attributes import is_attribute_name
from diagnose.source.tree.edits import Source, Splice, call_name, ensure_import, free_name, replace, top_of_program

_NAME = "DevicePrefetcher"
_TELLS = frozenset({"size", "shape", "dim", "ndim", "dtype", "numel"})
"""Attributes of a tensor that are the same on each device."""
_CLASS = '''\
class {name}:
    """Goes through batches and copies each to the device one turn ahead, on a stream of its own."""

    def __init__(self, batches, device):
        self.batches = batches
        self.device = None if device is None else {torch}.device(device)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        if self.device is None or self.device.type != "cuda":
            yield from self.batches
            return
        stream = {torch}.cuda.Stream(self.device)
        ahead = None
        for batch in self.batches:
            with {torch}.cuda.stream(stream):
                copied = self.each(batch, lambda tensor: tensor.to(self.device, non_blocking=True))
                event = stream.record_event()
            if ahead is not None:
                yield self.ready(*ahead)
            ahead = copied, event
        if ahead is not None:
            yield self.ready(*ahead)

    def ready(self, batch, event):
        """The batch, for the stream that computes: it waits for this copy only."""
        current = {torch}.cuda.current_stream(self.device)
        current.wait_event(event)
        self.each(batch, lambda tensor: tensor.record_stream(current))
        return batch

    def each(self, batch, function):
        if isinstance(batch, {torch}.Tensor):
            return function(batch)
        if isinstance(batch, dict):
            return {{key: self.each(value, function) for key, value in batch.items()}}
        if isinstance(batch, (list, tuple)):
            return [self.each(value, function) for value in batch]
        return batch
'''


def rewrite(request: Request) -> Answer:
    """Wrap the loader of every training loop whose copies nobody waits for already."""
    if request.facts.device_name is None or any("Stream(" in text for text in request.sources.values()):
        return None
    files = _wrapped(request)
    if files:
        return Edits(files, "copy the next batch to the device while this one is computed on")
    return _by_hand(request)


def _by_hand(request: Request) -> Answer:
    """Return advice on copies that are no batches of a loader."""
    if request.finding.rule != "exposed-copies":
        return None
    code = EveryStep(request.sources, request.finding.where)
    named = {(place.file, place.line) for place in request.finding.where}
    lines = {
        f"{stretch.path}:{stretch.source.lines_of(call)[0]}"
        for stretch, call in code.calls(here=[".to", ".cuda", "copy_"])
        if call_name(call) in {"to", "cuda", "copy_"} and (stretch.path, stretch.source.lines_of(call)[0]) in named
    }
    if not lines:
        return None
    waits = {f"{each.path}:{each.source.lines_of(each.call)[0]}" for each in transfers(code) if each.waits} & lines
    if waits:
        return Advice(f"{', '.join(sorted(waits))} waits for its copy: let it not (non_blocking=True, pinned) first.")
    return Advice(
        f"{', '.join(sorted(lines))} copies on the stream that computes, and no batch of a pinned loader: make a "
        "torch.cuda.Stream for the copies, begin each as soon as its source is there, and let the other stream wait "
        "where the result is needed."
    )


def _wrapped(request: Request) -> dict[str, str]:
    loaders = request.loaders()
    pinned = [loader.options.value("pin_memory") is True for loader in loaders.loaders]
    pinned += [site.arguments.get("pin_memory") is True for site in loaders.foreign]
    if not pinned or not all(pinned):
        return {}
    if any(loader.why_not_ahead() or (loader.workers == 0 and loader.draw()) for loader in loaders.loaders):
        return {}
    found = [each for each in transfers(EveryStep(request.sources)) if each.origin is Origin.LOADER]
    edits: dict[str, list[Splice]] = {}
    names: dict[str, str] = {}
    for step in training_steps(request.sources, request.sites):
        loop = step.loop
        if not isinstance(loop, cst.For):
            continue
        moved = [each for each in found if each.path == step.path and within(step.source, each.call, loop)]
        iterated = _iterated(loop.iter)
        device = _device(step.source, moved, loop)
        if iterated is None or device is None or not _is_plain(step.source, loop, moved):
            continue
        name = names.setdefault(step.path, free_name(step.source, _NAME))
        code = f"{name}({step.source.code(iterated)}, {device})"
        edits.setdefault(step.path, []).append(replace(step.source, iterated, code))
    for path, name in names.items():
        edits[path] += _class(request.sources[path], path, name, request)
    return request.edited(edits.items())


def _iterated(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The loader in `loader`, `enumerate(loader)` and `enumerate(tqdm(loader))`."""
    inner = unwrapped(node, OF_ALL_VALUES)
    return inner if isinstance(inner, cst.Name | cst.Attribute) else None


def _device(source: Source, moved: Sequence[Transfer], loop: cst.For) -> str | None:
    """The one device that the batch goes to, as code that means the same before the loop."""
    codes = {'"cuda"' if each.device is None else source.code(each.device) for each in moved}
    if len(codes) != 1 or any(each.waits is not False for each in moved):
        return None
    device = moved[0].device
    if device is None or isinstance(device, cst.SimpleString):
        return codes.pop()
    root = device
    while isinstance(root, cst.Attribute):
        root = root.value
    if not isinstance(root, cst.Name) or binds(source, loop, root.value):
        return None
    known = root.value == "self" or binding_of(source, root) is not None
    return codes.pop() if known else None


def _is_plain(source: Source, loop: cst.For, moved: Sequence[Transfer]) -> bool:
    """Whether the loop takes a batch as tensors, by their names or by the keys of a dictionary, and uses each of them
    on the device alone.
    """
    target: cst.BaseExpression = loop.target
    if isinstance(loop.iter, cst.Call) and call_name(loop.iter) == "enumerate":
        pair = numbered(loop)
        if pair is None:
            return False
        target = pair.value
    names = [element.value for element in target.elements] if isinstance(target, cst.Tuple | cst.List) else [target]
    nodes = {each.moved for each in moved}
    return all(
        isinstance(name, cst.Name) and _is_moved_first(source, loop, name, nodes, whole=name is not target)
        for name in names
    )


def _is_moved_first(
    source: Source, loop: cst.For, name: cst.Name, moved: Collection[cst.CSTNode], *, whole: bool
) -> bool:
    """Whether no statement reads a tensor of the batch before one binds its name to the copy on the device.

    `whole`: the name is the tensor's; else each of its items is one.
    """
    scope = source.inside(loop, cst.FunctionDef) or source.module
    begin = source.span(loop.body)[0]
    later = [each for each in source.named(name.value, scope) if source.span(each)[0] >= begin]
    bound: cst.CSTNode | None = None
    for each in later:
        parent = source.parent(each)
        statement = source.statement(each)
        if bound is not None and statement is not bound:
            return True
        if isinstance(parent, cst.AssignTarget | cst.Element | cst.NamedExpr) and _is_target(source, each):
            bound = statement
            continue
        if is_attribute_name(source, each):
            continue
        item = each if whole else parent
        if not isinstance(item, cst.Name if whole else cst.Subscript):
            return False
        asks = source.parent(item)
        tells = isinstance(asks, cst.Attribute) and asks.attr.value in _TELLS
        if item not in moved and not tells and not (isinstance(asks, cst.Arg) and _is_length(source, asks)):
            return False
    return True


def _is_target(source: Source, name: cst.Name) -> bool:
    """Whether a statement binds the name here, by itself or as one of several."""
    for above in source.ancestors(name):
        if isinstance(above, cst.AssignTarget):
            return True
        if isinstance(above, cst.NamedExpr):
            return above.target is name
        if not isinstance(above, cst.Element | cst.Tuple | cst.List):
            return False
    return False


def _is_length(source: Source, arg: cst.Arg) -> bool:
    call = source.parent(arg)
    return isinstance(call, cst.Call) and call_name(call) == "len"


def _class(text: str, path: str, name: str, request: Request) -> list[Splice]:
    source = next(step.source for step in training_steps(request.sources, request.sites) if step.path == path)
    anchor = top_of_program(source)
    torch, imports = ensure_import(source, "torch")
    lines = _CLASS.format(name=name, torch=torch).splitlines()
    at = source.after_line(source.span(anchor)[1]) if anchor is not None else 0
    block = source.newline.join(["", "", *lines, "", ""])
    rest = text[at:]
    blank = len(rest) - len(rest.lstrip("\r\n"))
    lead = "" if text[:at].endswith(("\n", "\r")) or at == 0 else source.newline
    return [*imports, Splice(at, at + blank, lead + block + source.newline)]


def _recorded(text: str) -> Request:
    line = lines_with(text, "DataLoader(")[0]
    site = Site("DataLoader", "train.py", line, arguments={"pin_memory": "pin_memory=True" in text})
    return example_request("exposed-copies", text, sites=[site], facts=Facts(device_name="NVIDIA H200"))


_TOP = "import torch\nfrom torch.utils.data import DataLoader\n"
_LOADER = 'device = torch.device("cuda")\nloader = DataLoader(data, pin_memory=True)\n'
_BODY = (
    "    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)\n"
    "    loss = criterion(model(x), y)\n    loss.backward()\n"
)


def _left_alone(text: str) -> Example:
    return Example(_TOP + text, None, _recorded)


FIXER = Fixer(
    name="prefetch-to-device",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_copy",
    changes_loading=True,
    order=30,
    after=("loader-workers", "loader-pin", "nonblocking-copies"),
    examples=(
        Example(
            before=_TOP + "\n" + _LOADER + "for i, (x, y) in enumerate(loader):\n" + _BODY,
            after=_TOP
            + "\n\n"
            + _CLASS.format(name=_NAME, torch="torch")
            + "\n\n"
            + _LOADER
            + "for i, (x, y) in enumerate(DevicePrefetcher(loader, device)):\n"
            + _BODY,
            request=_recorded,
        ),
        _left_alone(_LOADER + "for x, y in loader:\n" + _BODY.replace(", non_blocking=True", "")),
        _left_alone(_LOADER.replace("True", "False") + "for x, y in loader:\n" + _BODY),
        _left_alone(_LOADER + "side = torch.cuda.Stream()\nfor x, y in loader:\n" + _BODY),
        _left_alone(_LOADER + "for x, y, at in loader:\n    seen[at] += 1\n" + _BODY),
        _left_alone(_LOADER + "for x, y in loader:\n    x = x + 0.1 * torch.randn_like(x)\n" + _BODY),
        _left_alone(_LOADER + "for x, y in loader:\n    log(x.numpy())\n" + _BODY),
        _left_alone(_LOADER + "for x, y in loader:\n" + _BODY.replace("x, y =", "a, b =") + "    log(y.numpy())\n"),
        _left_alone(
            "class Noisy:\n    def __getitem__(self, i):\n        return torch.randn(3)\n\ndata = Noisy()\n"
            + _LOADER
            + "for x, y in loader:\n"
            + _BODY
        ),
        _left_alone(
            _LOADER + "for batch in loader:\n    x = batch.x.to(device, non_blocking=True)\n    f(x).backward()\n"
        ),
    ),
)
