"""The product that makes logits: a linear layer that the class holds, or `F.linear` and `@` with a weight."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from diagnose.source.losses.last_axis import is_last_size
from diagnose.source.patterns.cross_entropy import Unlaid
from diagnose.source.patterns.formula import built_module, constant, integer, operation, source_kind
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.syntax import Source

_ROWS = {"Embedding": ("num_embeddings", 0), "Linear": ("out_features", 1)}
"""What says how many rows the weight of a module has, and its place."""


@dataclass(frozen=True)
class OutputProduct:
    """`hidden` times `weight`, plus `bias`."""

    node: cst.BaseExpression
    hidden: cst.BaseExpression
    weight: str
    """Code of what has a row for each class."""
    bias: str | None
    layer: str | None = None
    """`self.head` where a layer is called."""
    classes: cst.BaseExpression | None = None
    """The size that the layer is built with."""


def output_product(source: Source, node: cst.BaseExpression) -> OutputProduct | None:
    """The product that an expression is; None for what is none."""
    made = operation(source, node) if isinstance(node, cst.Call | cst.BinaryOperation) else None
    if made is None or made.through or not made.operands:
        return None
    if made.module is not None and isinstance(node, cst.Call):
        if source_kind(source, made.module) != "Linear" or len(node.args) != 1:
            return None
        layer, given = source.code(node.func), argument(made.module, "bias", 2)
        bare = given is not None and source.code(given.value) == "False"
        out = argument(made.module, "out_features", 1)
        classes = out.value if out is not None else None
        return OutputProduct(
            node, made.operands[0], f"{layer}.weight", None if bare else f"{layer}.bias", layer, classes
        )
    if made.name == "linear" and not made.method and len(made.operands) + len(made.keywords) in {2, 3}:
        weight, bias = made.given("weight", 1), made.given("bias", 2)
        if weight is not None:
            code = source.code(bias) if bias is not None else None
            return OutputProduct(node, made.operands[0], source.code(weight), code, classes=_classes_of(source, weight))
    if made.name == "matmul" and len(made.operands) == 2:
        turned = operation(source, made.operands[1])
        numbers = [integer(each) for each in turned.operands[1:]] if turned is not None else []
        swaps = turned is not None and turned.name == "transpose" and set(numbers) in ({0, 1}, {-1, -2})
        if turned is not None and not turned.through and (turned.name in {"t", "T", "mT"} or swaps):
            weight = turned.operands[0]
            return OutputProduct(node, made.operands[0], source.code(weight), None, classes=_classes_of(source, weight))
    return None


def _classes_of(source: Source, weight: cst.BaseExpression) -> cst.BaseExpression | None:
    """The rows of an embedding's weight, or of a linear layer's, as its class builds it."""
    if not isinstance(weight, cst.Attribute) or weight.attr.value != "weight":
        return None
    module = built_module(source, weight.value)
    kind = source_kind(source, module) if module is not None else ""
    if module is None or kind not in _ROWS:
        return None
    given = argument(module, *_ROWS[kind])
    return given.value if given is not None else None


def has_size_of(source: Source, laid: Unlaid, product: OutputProduct, of: Source | None = None) -> bool:
    """Whether every size that rows of logits are given is that of the classes of the product, in the file `of`."""
    return all(_is_size(source, size, laid, product, of or source) for size in laid.sizes)


def _is_size(source: Source, size: cst.BaseExpression, laid: Unlaid, product: OutputProduct, of: Source) -> bool:
    names = {name for _, name in laid.steps} | {source.code(laid.base)}
    if integer(size) == -1:
        return True
    seen = is_last_size(source, size, names)
    if seen is not None:
        return seen
    code = source.code(size)
    if product.classes is None:
        return False
    value, wanted = constant(source, size), constant(of, product.classes)
    if value is not None and value == wanted:
        return True
    # `config.vocab_size` where it is built is `self.config.vocab_size` where it is used.
    last, built = code.rpartition(".")[2], of.code(product.classes).rpartition(".")[2]
    return last == built or code == f"{product.layer}.out_features"
