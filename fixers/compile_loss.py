"""Compiles the function that computes the loss from the logits.

What it changes
    Puts `@torch.compile` on a function of the program's own that holds a softmax over the logits, and little else:
    `def token_loss(logits, targets)`.

Why it helps
    Changes of format, the softmax, the entries of the targets and their mean, and all of that backward, each read and
    write the logits, which are the largest tensor where there are many classes. Compiled, a few kernels do them all,
    and nothing but the logits and their gradient is held.

Fix safety
    Rounding: the same operators, with intermediate results kept in wider formats; the gate compares with float64. The
    first steps take seconds longer. Left alone: functions that call the model, train, print, loop, or read values from
    tensors; functions that the program compiles by itself, under a condition or not; gradients of gradients, which
    compiled code does not have; with advice: a loss that is computed where no function of the program's holds it alone.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request, lines_with
from diagnose.source.derivatives import second_derivative
from diagnose.source.training.compilation import is_handed_to_compile
from diagnose.source.tree.edits import Source, call_name, ensure_import, insert_before, parse

_LOSSES = frozenset({"cross_entropy", "log_softmax", "nll_loss", "logsumexp"})
_NOT_ALONE = frozenset({"backward", "step", "item", "tolist", "cpu", "numpy", "print", "compile", "save", "zero_grad"})
_ADVICE = (
    "{at}: compile the loss together, from the change of format to the mean: put it into a function "
    "`def loss_of(logits, targets)` under @torch.compile. Not by us: no function of yours holds it alone."
)


def rewrite(request: Request) -> Answer:
    """Compile the functions that hold a recorded line, or that are the only one of their kind."""
    if second_derivative(request.sources) is not None:
        return None
    edits, others = [], []
    for path, text in request.sources.items():
        source = parse(text) if any(word in text for word in _LOSSES) else None
        if source is None:
            continue
        lines = {place.line for place in request.finding.where if place.file == path}
        alone = list(_alone(source))
        if lines:
            alone = [each for each in alone if any(line in range(*_rows(source, each)) for line in lines)]
            held = {line for each in alone for line in range(*_rows(source, each))}
            others += [f"{path}:{line}" for line in sorted(lines - held) if _is_loss(source, line)]
        elif len(alone) > 1:
            continue
        for function in alone:
            if is_handed_to_compile(request.sources, source, function):
                continue
            torch, imports = ensure_import(source, "torch")
            edits.append((path, [*imports, insert_before(source, function, [f"@{torch}.compile"])]))
    if edits:
        return Edits(request.edited(edits), "compile the loss")
    return Advice(_ADVICE.format(at=others[0])) if others else None


def _rows(source: Source, node: cst.CSTNode) -> tuple[int, int]:
    first, last = source.lines_of(node)
    return first, last + 1


def _alone(source: Source) -> list[cst.FunctionDef]:
    """Functions at the top of a file that compute a loss from tensors that they are given, and do nothing else."""
    found = []
    for function in source.module.body:
        if not isinstance(function, cst.FunctionDef) or function.decorators or function.asynchronous is not None:
            continue
        called = {call_name(call) for call in source.every(cst.Call, function.body)}
        given = {param.name.value for param in source.every(cst.Param, function.params)}
        calls_given = any(
            isinstance(call.func, cst.Name) and call.func.value in given for call in _calls(source, function)
        )
        if called & _LOSSES and not called & _NOT_ALONE and given and not calls_given and _returns(source, function):
            found.append(function)
    return found


def _calls(source: Source, function: cst.FunctionDef) -> list[cst.Call]:
    return list(source.every(cst.Call, function.body))


def _returns(source: Source, function: cst.FunctionDef) -> bool:
    """Whether a function gives something back, and has neither loops nor branches on what it is given."""
    branches = any(True for _ in source.every(cst.For, function)) or any(
        True for _ in source.every(cst.While, function)
    )
    return not branches and any(each.value is not None for each in source.every(cst.Return, function))


def _is_loss(source: Source, line: int) -> bool:
    return bool(re.search("|".join(_LOSSES), source.line_text(line)))


def _recorded(text: str) -> Request:
    lines = lines_with(text, "# here")
    return example_request("unfused-loss", text, lines=lines)


_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_LOSS = "def loss_of(logits, y):\n    return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())  # here\n"

FIXER = Fixer(
    name="compile-loss",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=60,
    after=("compile-model",),
    examples=(
        Example(_HEAD + _LOSS, _HEAD + "@torch.compile\n" + _LOSS, _recorded),
        Example(_HEAD + "@torch.compile(mode='default')\n" + _LOSS, None, _recorded),
        Example(_HEAD + _LOSS + "\n\nif args.compile:\n    loss_of = torch.compile(loss_of)\n", None, _recorded),
        Example(
            _HEAD + "def step(model, x, y):\n    return F.cross_entropy(model(x).float(), y)  # here\n", None, _recorded
        ),
        Example(
            _HEAD + "def step(logits, y):\n    loss = F.cross_entropy(logits, y)  # here\n    loss.backward()\n"
            "    return loss\n",
            None,
            _recorded,
        ),
        Example(_HEAD + "for x, y in data:\n    loss = F.cross_entropy(net(x), y)  # here\n", None, _recorded),
    ),
)
