"""Random numbers that a program draws for each element of an image: laid out otherwise, elements get other numbers.

Torch draws in the order in which elements lie in memory. Rows of numbers lie alike in all programs: what a linear layer
returns, and images once they are flattened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import definition_of
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import is_of_self, members_named
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal
from diagnose.source.tree.syntax import Source

_ALIKE = re.compile(
    r"\b(?:rand|randn|randint)_like\(|\bbernoulli\(|_like\([^\n]*\)\.\w*(?:uniform|normal|bernoulli)_\("
)
_DROPS = ("Dropout", "dropout", "dropout_")
_PRODUCTS = frozenset({"matmul", "bmm"})
_SHAPES = re.compile(r"[Cc]onv|Unflatten|[Uu]psample|[Ii]nterpolate")
"""What makes images of rows, or another image of one."""
_DEEPEST = 12  # statements from a dropout to where its rows are made


def image_draw(sources: Mapping[str, str]) -> str | None:
    """Return the first code by which a step may draw a number for each element of an image."""
    code = EveryStep(sources)
    for source in code.sources.values():
        dropped = next((source.code(call) for call in source.calls_named(*_DROPS) if _draws(source, call)), None)
        if dropped is not None:
            return dropped
    models = (source.code(each) for source in code.sources.values() for each in source.every(cst.ClassDef))
    trained = (text for text in models if "def forward(" in text)
    found = (_ALIKE.search(text) for text in (*trained, *(stretch.text for stretch in code.stretches)))
    return next((each[0] for each in found if each is not None), None)


def _draws(source: Source, call: cst.Call) -> bool:
    """Whether a dropout drops anything, and its input is not seen to be rows of numbers."""
    share = argument(call, "p", 0 if call_name(call) == "Dropout" else 1)
    told = literal(share.value) if share is not None else None
    return not (told is not None and told.value == 0) and not _is_of_rows(source, call)


def _is_of_rows(source: Source, call: cst.Call) -> bool:
    chain = source.inside(call, cst.Call)
    if chain is not None and call_name(chain) == "Sequential":
        return _follows_rows(source, chain, call)
    kept = source.inside(call, cst.Assign) if call_name(call) == "Dropout" else None
    written = source.inside(call, cst.ClassDef)
    if written is None:
        return False
    target = source.code(kept.targets[0].target) if kept is not None else source.code(call.func)
    uses = [each for each in source.every(cst.Call, written) if source.code(each.func) == target]
    return bool(uses) and all(each.args and _are_rows(source, written, each.args[0].value) for each in uses)


def _follows_rows(source: Source, chain: cst.Call, dropout: cst.Call) -> bool:
    """Whether a layer of a sequence is given rows, as the layers before it and the next one tell."""
    at = next((number for number, each in enumerate(chain.args) if each.value is dropout), 0)
    layers = [call_name(each.value) if isinstance(each.value, cst.Call) else "" for each in chain.args]
    for layer, name in zip(reversed(chain.args[:at]), reversed(layers[:at]), strict=True):
        if name in {"Linear", "Flatten"}:
            return True
        if not isinstance(layer.value, cst.Call) or not _keeps_rows(source, layer.value):
            break
    return layers[at + 1 : at + 2] == ["Linear"]


def _are_rows(source: Source, written: cst.ClassDef, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a method of a model computes rows of numbers, which lie alike however the images before them lie."""
    inner: list[cst.BaseExpression | None] = []
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, cst.MatrixMultiply):
            return True
        inner = [each for each in (node.left, node.right) if literal(each) is None]
    elif isinstance(node, cst.Name):
        inner = [definition_of(source, node).assigned]
    elif isinstance(node, cst.Call):
        if _makes_rows(source, written, node):
            return True
        method = isinstance(node.func, cst.Attribute) and not is_of_self(node.func) and not source.imported(node.func)
        taken = node.func.value if method and isinstance(node.func, cst.Attribute) else None
        taken = node.args[0].value if taken is None and node.args else taken
        inner = [taken if _keeps_rows(source, node, written) else None]
    known = bool(inner) and depth < _DEEPEST
    return known and all(each is not None and _are_rows(source, written, each, depth + 1) for each in inner)


def _makes_rows(source: Source, written: cst.ClassDef, call: cst.Call) -> bool:
    """Whether a call gives rows of numbers, whatever it is given: a linear layer, a product, a flattened image."""
    name = call_name(call)
    method = isinstance(call.func, cst.Attribute) and not source.imported(call.func)
    told = [arg.value for arg in call.args[0 if method else 1 :]]
    if name == "flatten":
        return all(source.code(each) in {"0", "1"} for each in told[:1])
    if len(told) == 1 and isinstance(told[0], cst.Tuple | cst.List):
        told = [each.value for each in told[0].elements]
    if name in {"view", "reshape"}:
        one = [source.code(each) for each in told] == ["-1"]
        return one or (len(told) == 2 and not any(arg.star for arg in call.args))
    if name == "mean":
        return len(told) >= 2
    built = _built(source, written, call)
    return name in _PRODUCTS or (
        bool(built) and all(isinstance(each, cst.Call) and call_name(each) == "Linear" for each in built)
    )


def _keeps_rows(source: Source, call: cst.Call, written: cst.ClassDef | None = None) -> bool:
    """Whether a layer, a function or a method gives rows where it is given rows, as those of torch do but for a few."""
    layers = _built(source, written, call) if written is not None and is_of_self(call.func) else [call]
    called = [each.func if isinstance(each, cst.Call) else each for each in layers]
    of_others = {name for each in called for name in source.imported(each) if not name.startswith("torch.")}
    own = any(source.code(each) in source.defined_names for each in called)
    return bool(layers) and not of_others and not own and not any(_SHAPES.search(source.code(each)) for each in layers)


def _built(source: Source, written: cst.ClassDef, call: cst.Call) -> list[cst.BaseExpression]:
    return members_named(source, written, call_name(call)) if isinstance(call.func, cst.Attribute) else []
