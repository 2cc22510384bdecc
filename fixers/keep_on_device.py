"""Keeps on the device what needs not travel between it and the host.

What it changes
    A tensor that is copied to the host in every step, to make one number of it there with NumPy, stays on the device:
    the same functions of torch make the number, and only that is read. A tensor that is the same in every step (class
    weights, a table) is made once, before the loop. A mask that is made on the host and then copied is made on the
    device at once.

Why it helps
    To copy a tensor to the host the program waits until the device has done all that was asked of it, and the device
    then has nothing to do until the host has caught up. The copy itself runs at the speed of the bus, a small part of
    that of the device's memory. What is made on the host anew in every step is copied the other way just so.

Fix safety
    Bitwise: largest and smallest values, counts, comparisons and means of comparisons are the same. Left alone: means
    and sums of floats, which would be added up in another order; arrays that are used for anything else (plots, metrics
    of other libraries, files); tensors that the loop writes to; constants within a module's `forward`, which a buffer
    would add to its checkpoints.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import scope_of, uses_of, within
from diagnose.source.dataflow.loop_invariants import on_device
from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.shared_constants import may_be_shared
from diagnose.source.device.transfers import Transfer, transfers
from diagnose.source.rewrite.leftovers import without_import
from diagnose.source.rewrite.numpy_to_torch import Translation, copied_tensor, leaf, translated_use
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.every_step import EveryStep, Stretch
from diagnose.source.tree.edits import Splice, free_name, insert_above, replace
from diagnose.source.tree.outline import called_name

_CHANGES = re.compile(r"param|weight|bias|\.grad\b|\.data\b|buffer|state")
"""What a step changes in place: a copy of it on the host stays as it was, the tensor itself does not."""


@dataclass
class _Plan:
    edits: list[tuple[str, Sequence[Splice]]] = field(default_factory=list)
    said: dict[str, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    seen: set[cst.CSTNode] = field(default_factory=set)


def rewrite(request: Request) -> Answer:
    """Take needless copies out of every step."""
    plan = _Plan()
    code = EveryStep(request.sources, request.finding.where)
    for stretch in code.stretches:
        if stretch.mentions([], ["cpu"]) and stretch.may_call(_may_copy):  # few functions of a large program are parsed
            _to_host(plan, stretch)
    for transfer in transfers(code):
        loops = ((each.source, each.loop) for each in code.stretches if each.loop is not None)
        around = next((loop for source, loop in loops if within(source, transfer.call, loop)), None)
        _to_device(plan, code, transfer, around)
    return request.answer(plan.edits, "; ".join(plan.said), reasons=plan.reasons)


@dataclass(frozen=True)
class _Copy:
    """`tensor.cpu().numpy()` in a stretch, with the name that it is given and the reads of that."""

    call: cst.Call
    tensor: str
    name: str | None
    reads: tuple[cst.BaseExpression, ...]

    def leaves(self) -> dict[cst.CSTNode, Translation]:
        """Return what stands for it in expressions."""
        if self.name is None:
            return {self.call: leaf(self.tensor, self.tensor)}
        return {read: leaf(self.name, self.tensor) for read in self.reads}


def _to_host(plan: _Plan, stretch: Stretch) -> None:
    """Tensors that go to the host: let the numbers be made where they are."""
    source = stretch.source
    copies = [each for each in _copies(stretch) if each.call not in plan.seen]
    plan.seen.update(each.call for each in copies)
    while True:
        leaves = {node: made for each in copies for node, made in each.leaves().items()}
        found = {each.call: [translated_use(source, read, leaves) for read in each.reads] for each in copies}
        lost = [each for each in copies if not each.reads or None in found[each.call]]
        for each in lost:
            where = f"{stretch.path}:{source.lines_of(each.call)[0]}"
            if each.name is not None or "numpy" in source.code(each.call):
                plan.reasons[f"{where} copies `{each.tensor}` to the host: make there what is needed of it."] = None
        if not lost:
            break
        copies = [each for each in copies if each not in lost]
    splices: dict[Splice, None] = {}
    for each in copies:
        for use in found[each.call]:
            assert use is not None  # those that have such a use are not among the copies any more
            splices[replace(source, use[0], use[1].code)] = None
        if each.name is not None:
            splices[replace(source, each.call, each.tensor)] = None
        plan.said[f"keep `{each.tensor}` on the device and read one number of it"] = None
    plan.edits.append((stretch.path, without_import(source, list(splices), "numpy")))


def _may_copy(call: ast.Call) -> bool:
    """Whether a call copies something to the host, as far as Python's own parser tells."""
    return called_name(call) == "cpu" or (
        called_name(call) == "to" and any(isinstance(each, ast.Constant) and each.value == "cpu" for each in call.args)
    )


def _copies(stretch: Stretch) -> list[_Copy]:
    source = stretch.source
    found: list[_Copy] = []
    for call in stretch.steady(cst.Call):
        tensor = copied_tensor(source, call)
        outer = source.parent(call)
        if tensor is None or (isinstance(outer, cst.Attribute) and outer.attr.value == "numpy"):
            continue
        target = outer.targets[0].target if isinstance(outer, cst.Assign) and len(outer.targets) == 1 else None
        if not isinstance(target, cst.Name):
            found.append(_Copy(call, tensor, None, (call,)))
            continue
        uses = uses_of(source, scope_of(source, call), target.value)
        plain = uses.lost is None and len(uses.assigned) == 1 and not uses.augmented and not _CHANGES.search(tensor)
        found.append(_Copy(call, tensor, target.value, uses.reads if plain else ()))
    return found


def _to_device(plan: _Plan, code: EveryStep, transfer: Transfer, loop: cst.For | cst.While | None) -> None:
    """A tensor that goes to the device: make it once, or make it there."""
    path, source, call, moved = transfer.path, transfer.source, transfer.call, transfer.moved
    if not isinstance(moved, cst.Call):
        return
    statement = source.statement(call)
    if loop is not None and statement is not None and may_be_shared(code.sources, path, source, call, loop):
        assign = source.parent(call)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        if isinstance(target, cst.Name) and isinstance(assign, cst.Assign):
            uses = uses_of(source, scope_of(source, call), target.value)
            if uses.lost or len(uses.assigned) != 1 or is_written(source, target.value, loop):
                return
            plan.edits.append((path, remove_statements(source, [assign])))
            plan.edits.append((path, [insert_above(source, loop, [source.code(assign)])]))
            plan.said[f"make `{target.value}` once, before the loop"] = None
        else:
            arg = source.parent(call)
            wanted = arg.keyword.value if isinstance(arg, cst.Arg) and arg.keyword is not None else "constant"
            name = free_name(source, wanted)
            lines = [f"{name} = {source.code(call)}"]
            plan.edits.append((path, [insert_above(source, loop, lines), replace(source, call, name)]))
            plan.said[f"make `{source.code(call)}` once, before the loop"] = None
        return
    only = call.args[0] if len(call.args) == 1 else None
    device = '"cuda"' if not call.args else source.code(only.value) if only is not None else None
    made = on_device(source, moved, device) if device is not None else None
    if made is not None:
        plan.edits.append((path, [replace(source, call, made)]))
        plan.said[f"make `{source.code(moved)}` on the device"] = None


_TOP = "import numpy as np\nimport torch\n\n"
_STEP = "    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"


def _recorded(text: str) -> Request:
    return example_request("device-to-host-copies", text)


def _left_alone(text: str) -> Example:
    return Example(_TOP + text, None, _recorded)


FIXER = Fixer(
    name="keep-on-device",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_copy+idle",
    order=20,
    examples=(
        Example(
            before=_TOP
            + "for x in loader:\n    hidden = model.encode(x)\n"
            + _STEP
            + "    a = hidden.detach().float().cpu().numpy()\n    peaks.append(float(np.abs(a[:, 0]).max()))\n",
            after="import torch\n\nfor x in loader:\n    hidden = model.encode(x)\n"
            + _STEP
            + "    a = hidden.detach().float()\n    peaks.append(a[:, 0].abs().max().item())\n",
            request=_recorded,
        ),
        Example(
            before=_TOP
            + "for x, y in loader:\n"
            + _STEP
            + "    guess = out.argmax(1).cpu().numpy()\n    right += int((guess == y.cpu().numpy()).sum())\n",
            after="import numpy as np\nimport torch\n\nfor x, y in loader:\n" + _STEP + "    guess = out.argmax(1)\n"
            "    right += (guess == y).sum().item()\n",
            request=_recorded,
        ),
        Example(
            before=_TOP + "for x, y in loader:\n    w = torch.tensor([1.0, 2.0]).to(device)  # rare\n"
            "    f = criterion(x, weight=torch.tensor([3.0]).cuda())\n" + _STEP,
            after=_TOP + "w = torch.tensor([1.0, 2.0]).to(device)\nweight_ = torch.tensor([3.0]).cuda()\n"
            "for x, y in loader:\n    f = criterion(x, weight=weight_)\n" + _STEP,
            request=_recorded,
        ),
        Example(
            before=_TOP
            + "for x in loader:\n    mask = torch.tril(torch.ones(x.size(1), x.size(1))).to(x.device)\n"
            + _STEP,
            after=_TOP + "for x in loader:\n"
            "    mask = torch.tril(torch.ones(x.size(1), x.size(1), device=x.device))\n" + _STEP,
            request=_recorded,
        ),
        Example(
            before=_TOP + "for x in loader:\n    at = torch.arange(0, x.size(1)).to(x.device)\n" + _STEP,
            after=_TOP + "for x in loader:\n    at = torch.arange(0, x.size(1), device=x.device)\n" + _STEP,
            request=_recorded,
        ),
        _left_alone("for x in loader:\n    at = torch.arange(0, x.size(1), 0.1).to(x.device)\n" + _STEP),
        _left_alone("for x in loader:\n" + _STEP + "    a = h.cpu().numpy()\n    plot(a)\n    m = float(a.max())\n"),
        _left_alone(
            "for x in loader:\n" + _STEP + "    if step % 100 == 0:\n        p = float(np.max(h.cpu().numpy()))\n"
        ),
        _left_alone("for x in loader:\n    noise = torch.randn(4).to(device)\n" + _STEP),
        _left_alone("for x in loader:\n    t = torch.tensor([0.0]).to(device)\n    t += x.sum()\n" + _STEP),
        _left_alone(
            "for x in loader:\n    w = model.weight.detach().cpu().numpy()\n" + _STEP + "    p.append(float(w.max()))\n"
        ),
        _left_alone("h = model(y).cpu().numpy()\nfor x in loader:\n" + _STEP),
    ),
)
