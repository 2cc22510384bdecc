"""Lets `zero_grad` free the gradients.

What it changes
    Takes `set_to_none=False` out of `zero_grad(...)`. A loop that fills the gradients of `model.parameters()` with
    zeros becomes `model.zero_grad()`; one over another list sets `p.grad = None`.

Why it helps
    Gradients that are set to None are written by the backward pass; gradients that are kept are filled with zeros
    first, one launch for each tensor or group of tensors, and then read and added to.

Fix safety
    Bitwise where the source shows that every parameter gets a gradient in every step, or where the optimizer is SGD
    without momentum and weight decay. Training otherwise, with the line that leaves it open: the optimizer skips a
    parameter that has no gradient, where it would apply weight decay and momentum to a gradient of zeros. So
    is it where code lists or shows the gradients that there are. Left alone where the program reads `.grad` without
    asking whether it is None, or asks between `zero_grad` and `backward`, and where it captures CUDA graphs, which need
    gradients that stay where they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import scope_of, within
from diagnose.source.optimizers.gradient_coverage import idle_gradients
from diagnose.source.tree.arguments import argument, remove_argument
from diagnose.source.tree.edits import Source, Splice, call_name, replace
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches

_CAPTURED = re.compile(r"CUDAGraph\(|cuda\.graph\(")
_ZEROED = re.compile(r"\.grad(?:\.data)?\.(?:zero_\(\)|fill_\(0(?:\.0?)?\))$")
_HARMLESS = re.compile(r"\.grad\.(?:detach_\(\)|requires_grad_\(False\))$")
_NOT_NONE = re.compile(r"^{name}\.grad( is not None)?$".replace("{name}", r"\w+"))


def rewrite(request: Request) -> Answer:
    """Free the gradients wherever they are filled with zeros."""
    edits: list[tuple[str, list[Splice]]] = []
    changed: list[cst.CSTNode] = []
    parsed: list[tuple[str, Source]] = []
    for path, source in files_with(request.sources, "grad"):
        parsed.append((path, source))
        for call in source.calls_named("zero_grad"):
            given = argument(call, "set_to_none", 0)
            if given is not None and source.code(given.value) == "False":
                edits.append((path, [remove_argument(source, call, given)]))
        for loop in source.every(cst.For) if _has_loops_over_gradients(source) else ():
            found = _loop(source, loop)
            if found:
                edits.append((path, found))
                changed.append(loop)
    if not edits:
        return None
    if any_matches(_CAPTURED, request.sources.values()):
        return Advice("The program captures CUDA graphs: they need gradients that stay where they are.")
    reader = next((place for path, source in parsed if (place := _reader(path, source, changed))), None)
    told = [(path, source, node) for path, source in parsed for node in _asked(source, changed)]
    reader = reader or next((_at(*each) for each in told if _is_asked_of_zeros(*each[1:], changed)), None)
    if reader is not None:
        return Advice(
            f"{reader} reads or sets `.grad` as if it never were None: ask there first, then let zero_grad free it."
        )
    idle = idle_gradients(request.sources, also_sgd=bool(told))
    if idle is None:
        return Edits(request.edited(edits), "let zero_grad free the gradients")
    because = f"{idle}: a parameter without a new gradient is skipped, where it was decayed and kept its momentum"
    return Edits(request.edited(edits), "let zero_grad free the gradients", Gate.TRAINING, because)


def _has_loops_over_gradients(source: Source) -> bool:
    loops = source.outline.loops if "grad" in source.outline.attributes else ()
    nodes = (each for loop in loops for each in ast.walk(loop))
    return any(isinstance(each, ast.Attribute) and each.attr == "grad" for each in nodes)


def _loop(source: Source, loop: cst.For) -> list[Splice]:
    """The edit of a loop that does nothing but fill gradients with zeros; empty for any other."""
    body = loop.body.body
    if isinstance(loop.body, cst.IndentedBlock) and len(body) == 1 and isinstance(body[0], cst.If):
        branch = body[0]
        if branch.orelse is not None or not _NOT_NONE.match(source.code(branch.test)):
            return []
        body = branch.body.body
    lines = [small for line in body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
    codes = [source.code(small) for small in lines]
    zeroed = [small for small, code in zip(lines, codes, strict=True) if _ZEROED.search(code)]
    own = isinstance(loop.target, cst.Name) and all(code.startswith(f"{loop.target.value}.grad") for code in codes)
    others = [code for code in codes if not _ZEROED.search(code) and not _HARMLESS.search(code)]
    if len(zeroed) != 1 or not own or others or len(lines) != len(body) or loop.orelse is not None:
        return []
    owner = re.fullmatch(r"([\w.]+)\.parameters\(\)", source.code(loop.iter))
    if owner is not None:
        start, end = source.span(loop)[0], source.span(loop.body)[1]
        return [Splice(start, start + len(source.text[start:end].rstrip()), f"{owner[1]}.zero_grad()")]
    assert isinstance(loop.target, cst.Name)
    return [replace(source, zeroed[0], f"{loop.target.value}.grad = None")] if len(lines) == 1 else []


def _reader(path: str, source: Source, changed: list[cst.CSTNode]) -> str | None:
    """A line that uses a gradient in a function that never asks whether it is None, or puts another in its place."""
    for node in source.attributes_named("grad"):
        if any(within(source, node, loop) for loop in changed):
            continue
        if isinstance(node.value, cst.Name) and node.value.value == "autograd":
            continue
        called = source.parent(node)
        if source.code(node) == "torch.autograd.grad" or isinstance(called, cst.Call):
            continue
        if isinstance(called, cst.Comparison) and _is_counted(source, called):
            return f"{path}:{source.lines_of(node)[0]}"
        around = source.inside(node, cst.FunctionDef) or source.module
        asks = re.search(r"\.grad is (?:not )?None|if \w+\.grad\b(?!\.)|hasattr|getattr", source.code(around))
        assign = source.parent(called) if isinstance(called, cst.AssignTarget) else None
        freed = isinstance(assign, cst.Assign) and source.code(assign.value) == "None"
        if assign is not None and not freed:
            return f"{path}:{source.lines_of(node)[0]}"
        if not asks and not freed:
            return f"{path}:{source.lines_of(node)[0]}"
    return None


def _at(path: str, source: Source, node: cst.CSTNode) -> str:
    return f"{path}:{source.lines_of(node)[0]}"


def _asked(source: Source, changed: list[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield the gradients that code asks for and then does more than compute with: it tells which there are."""
    for node in source.attributes_named("grad"):
        if any(within(source, node, loop) for loop in changed):
            continue
        for above in source.ancestors(node):
            if isinstance(above, cst.CompIf) or (
                isinstance(above, cst.If) and within(source, node, above.test) and _tells(source, above)
            ):
                yield node
                break
            if isinstance(above, cst.BaseSmallStatement | cst.BaseCompoundStatement):
                break


def _tells(source: Source, branch: cst.If) -> bool:
    """Whether a branch does more than arithmetic; one that skips a turn stands for the rest of the loop."""
    skips = any(source.every(cst.Continue, branch))
    loop = source.inside(branch, cst.For) if skips else None
    for each in source.walk(loop.body if loop is not None else branch, cst.BaseSmallStatement):
        in_place = isinstance(each, cst.Expr) and isinstance(each.value, cst.Call) and call_name(each.value)[-1:] == "_"
        names = isinstance(each, cst.Assign) and all(isinstance(one.target, cst.Name) for one in each.targets)
        if not (in_place or names or isinstance(each, cst.AugAssign | cst.Continue | cst.Pass)):
            return True
    return False


def _is_asked_of_zeros(source: Source, node: cst.CSTNode, changed: list[cst.CSTNode]) -> bool:
    """Whether the function has filled gradients with zeros, and computed no new ones, where it asks for one."""
    scope = scope_of(source, node)
    calls = [*source.calls_named("zero_grad", "backward"), *changed]
    here = [each for each in calls if within(source, each, scope) and source.span(each)[1] <= source.span(node)[0]]
    last = max(here, key=lambda each: source.span(each)[0], default=None)
    return last is not None and not (isinstance(last, cst.Call) and call_name(last) == "backward")


def _is_counted(source: Source, asked: cst.Comparison) -> bool:
    """Whether the answer to `p.grad is None` is no condition, but a value: `sum(p.grad is None for p in model)`."""
    above = source.parent(asked)
    while isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
        above = source.parent(above)
    if isinstance(above, cst.GeneratorExp | cst.ListComp):
        call = source.parent(source.parent(above) or above)
        return not (isinstance(call, cst.Call) and call_name(call) in {"any", "all"})
    return not isinstance(above, cst.If | cst.IfExp | cst.CompIf | cst.Assert | cst.While)


def _recorded(text: str) -> Request:
    return example_request("slow-optimizer", text)


_LOOP = "for p in {}:\n    if p.grad is not None:\n        {}\n"

FIXER = Fixer(
    name="zero-grad-none",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+idle.python+idle.dispatch+idle.launch",
    order=50,
    examples=(
        Example("optimizer.zero_grad(set_to_none=False)\n", "optimizer.zero_grad()\n", _recorded),
        Example("opt.zero_grad(False)  # reset\n", "opt.zero_grad()  # reset\n", _recorded),
        Example(
            "def reset(self):\n    for p in self.model.parameters():\n        p.grad.zero_()\n    return self\n",
            "def reset(self):\n    self.model.zero_grad()\n    return self\n",
            _recorded,
        ),
        Example(
            _LOOP.format("model.parameters()", "p.grad.detach_()\n        p.grad.zero_()") + "step()\n",
            "model.zero_grad()\nstep()\n",
            _recorded,
        ),
        Example(_LOOP.format("weights", "p.grad.zero_()"), _LOOP.format("weights", "p.grad = None"), _recorded),
        Example("optimizer.zero_grad()\n", None, _recorded),
        Example("optimizer.zero_grad(set_to_none=args.free)\n", None, _recorded),
        Example("optimizer.zero_grad(set_to_none=False)\nold = [p.grad.clone() for p in params]\n", None, _recorded),
        Example(
            "optimizer.zero_grad(set_to_none=False)\nprint(sum(p.grad is not None for p in params))\n", None, _recorded
        ),
        Example(
            "optimizer.zero_grad(False)\nloss.backward()\nif any(p.grad is None for p in params):\n    idle()\n",
            "optimizer.zero_grad()\nloss.backward()\nif any(p.grad is None for p in params):\n    idle()\n",
            _recorded,
        ),
        Example("optimizer.zero_grad(False)\nif any(p.grad is None for p in params):\n    idle()\n", None, _recorded),
        Example("for p in params:\n    p.grad = flat[p]\noptimizer.zero_grad(set_to_none=False)\n", None, _recorded),
        Example("g = torch.cuda.CUDAGraph()\noptimizer.zero_grad(set_to_none=False)\n", None, _recorded),
        Example("for p in model.parameters():\n    p.grad.zero_()\n    count += 1\n", None, _recorded),
    ),
)
