"""The arguments of `scaled_dot_product_attention` that compute what attention written out computes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import Bound, definition_of, names_in, same_value
from diagnose.source.patterns.added_masks import is_of_whole_numbers, swallows_scores
from diagnose.source.patterns.attention import CannotFuse, Mask, Operand, WrittenAttention
from diagnose.source.patterns.attention_dropout import dropped_share
from diagnose.source.patterns.attention_keys import has_as_many_keys, may_have_more_keys
from diagnose.source.patterns.causal_masks import Polarity, causal, fill_value
from diagnose.source.patterns.formula import certain, operation
from diagnose.source.patterns.numeric import canonical, is_number, last_size, root_of
from diagnose.source.rewrite.functional import operand_code
from diagnose.source.tree.attributes import member
from diagnose.source.tree.syntax import Source

_LARGE = 1e3
_AGREES = {"hide": Polarity.HIDE, "keep": Polarity.KEEP, "add": Polarity.ADD}


@dataclass(frozen=True)
class FusedCall:
    """Arguments in order, and what is written after the call."""

    arguments: tuple[str, ...]
    after: str
    unneeded: tuple[tuple[cst.CSTNode, str], ...]
    """Statements, with the names they bind, that made a mask which is now said in one word."""
    drops: bool
    """Weights are dropped at random: the fused kernel draws its own random numbers."""


def fused_call(found: WrittenAttention, sources: Mapping[str, str]) -> FusedCall:
    """Raises CannotFuse."""
    assert found.query is not None and found.key is not None
    source = found.source
    for operand in (found.query, found.key, found.value):
        _same(found, operand.node)
    found.query, found.key = _as_wide_as_values(found)
    query, *others = (_operand(source, operand) for operand in (found.query, found.key, found.value))
    unneeded: list[tuple[cst.CSTNode, str]] = []
    masks = _masks(found, unneeded)
    parts = [_with_even_rows(found, query, masks), *others]
    if found.three_axes:
        parts = [f"{part}.unsqueeze(0)" for part in parts]
    arguments = [*parts, *([masks.argument] if masks is not None else [])]
    dropped, drops = dropped_share(found, sources)
    arguments += [f"dropout_p={dropped}"] if dropped else []
    scale = _scale(found)
    arguments += [f"scale={scale}"] if scale else []
    after = ".squeeze(0)" if found.three_axes else ""
    after += _moved(found.result_order) if found.result_order else ""
    return FusedCall(tuple(arguments), after, tuple(unneeded), drops)


def _same(found: WrittenAttention, node: cst.BaseExpression) -> None:
    if not same_value(found.source, node, found.statement):
        raise CannotFuse(f"{found.source.code(node)} is changed between its two products")
    gone = {name for _, name in found.steps}
    for name in names_in(found.source, node):
        if name.value in gone and not _stays(found, name):
            raise CannotFuse(f"{name.value} is one of the tensors that would go")


def _as_wide_as_values(found: WrittenAttention) -> tuple[Operand, Operand]:
    """Queries and keys in the format of the values, which the kernel asks for: `q.float()` is `q` to it, as it adds up
    in float32 whatever they are.
    """
    assert found.query is not None and found.key is not None
    asked = [_format(found.source, each.node) for each in (found.query, found.key, found.value)]
    if len(set(asked)) == 1:
        return found.query, found.key
    query, key = found.query.node, found.key.node
    if asked != ["float", "float", None] or not isinstance(query, cst.Call) or not isinstance(key, cst.Call):
        raise CannotFuse("some of its queries, keys and values are put into another format, and others are not")
    made = [certain(found.source, each) for each in (query, key)]
    before = [each.operands[0] for each in made if each is not None]
    return replace(found.query, node=before[0]), replace(found.key, node=before[1])


def _format(source: Source, node: cst.BaseExpression) -> str | None:
    """The format that `….float()` and its like put a tensor into; None for another expression."""
    made = certain(source, node)
    if made is None or not made.method or made.name not in {"to", "float", "double", "half", "bfloat16"}:
        return None
    asked = made.given("dtype", 1)
    if made.name == "to":
        return "float" if asked is not None and source.names(asked) & {"torch.float32", "torch.float"} else None
    return made.name


def _stays(found: WrittenAttention, name: cst.Name) -> bool:
    """Whether a name that a removed statement binds means, where it is used here, something that stays."""
    seen = definition_of(found.source, name)
    return all(seen.statement is not statement for statement, _ in found.steps)


def _operand(source: Source, operand: Operand) -> str:
    moved = operand.order or operand.transposed
    code = operand_code(source, operand.node) if moved else source.code(operand.node)
    if operand.transposed:
        return f"{code}.transpose(-2, -1)"
    return code + (_moved(operand.order) if operand.order else "")


def _moved(order: tuple[int, ...]) -> str:
    """The call that puts axes into an order."""
    if order == tuple(range(len(order))):
        return ""
    moved = [axis for axis, there in enumerate(order) if axis != there]
    if len(moved) == 2:
        return f".transpose({moved[0]}, {moved[1]})"
    return f".permute({', '.join(map(str, order))})"


@dataclass(frozen=True)
class _Told:
    """How the masks are said to the kernel."""

    argument: str
    hidden: str | None = None
    """The code that is true where a key is not seen, of a finite fill value."""
    condition: cst.BaseExpression | None = None


def _masks(found: WrittenAttention, unneeded: list[tuple[cst.CSTNode, str]]) -> _Told | None:
    plain: list[Mask] = []
    is_causal: list[Mask] = []
    length = _length(found)
    for mask in found.masks:
        used: list[tuple[cst.CSTNode, str]] = []
        hides = mask.kind == "add" or _fill(found, mask) <= -_LARGE
        if not hides:
            raise CannotFuse("what it puts in the place of masked scores is not known to be very negative")
        if length is not None and causal(found.source, mask.node, used) is _AGREES[mask.kind]:
            is_causal.append(mask)
            unneeded += used
        else:
            plain.append(mask)
    if not plain and not is_causal:
        return None
    if not plain and len(is_causal) == 1:
        condition = is_causal[0].condition
        if condition is None:
            return _Told(f"is_causal={length or 'True'}")
        if isinstance(condition, cst.Name | cst.Attribute):
            return _Told(f"is_causal={found.source.code(condition)}{f' and {length}' if length else ''}")
        raise CannotFuse("its mask is causal or not from call to call")
    unneeded.clear()
    return _combined(found, [*is_causal, *plain])


def _length(found: WrittenAttention) -> str | None:
    """Return what the kernel's own causal mask needs to hold: nothing where there are as many keys as queries, else
    that there is more than one query; None where that cannot be said.

    A square mask fits scores of as many keys as queries, and those of a single query, of which it hides nothing.
    """
    assert found.query is not None
    if may_have_more_keys(found):
        return None
    if has_as_many_keys(found):
        return ""
    query = found.query
    plain = isinstance(query.node, cst.Name) and query.order is None and not query.transposed
    return f"{found.source.code(query.node)}.size(-2) > 1" if plain else None


def _fill(found: WrittenAttention, mask: Mask) -> float:
    value = fill_value(found.source, mask.fill)
    return math.nan if value is None else value


def _combined(found: WrittenAttention, masks: list[Mask]) -> _Told:
    source = found.source
    for mask in masks:
        if mask.kind == "add" and swallows_scores(source, mask.node):
            raise CannotFuse(
                "the mask that it adds may hide all keys of a query, whose gradients fused kernels get wrong"
            )
        _same(found, mask.node)
        if mask.condition is not None:
            _same(found, mask.condition)
    if len(masks) == 1:
        return _single(found, masks[0])
    added = [mask for mask in masks if mask.kind == "add"]
    others = [mask for mask in masks if mask.kind != "add"]
    plain = not any(mask.condition is not None for mask in masks)
    if plain and len(added) == 1 and all(math.isinf(_fill(found, mask)) for mask in others):
        hidden, fill = " | ".join(_hidden(source, mask, nested=len(others) > 1) for mask in others), others[0].fill
        assert fill is not None  # it is infinite
        return _Told(f"attn_mask={operand_code(source, added[0].node)}.masked_fill({hidden}, {source.code(fill)})")
    if added or not plain:
        raise CannotFuse("it has several masks, not all of them plain ones of booleans")
    seen = " & ".join(_seen(source, mask, nested=True) for mask in masks)
    if all(math.isinf(_fill(found, mask)) for mask in masks):
        return _Told(f"attn_mask={seen}")
    if len({_fill(found, mask) for mask in masks}) > 1:
        raise CannotFuse("its masks put different numbers in the place of scores")
    hidden = " | ".join(_hidden(source, mask, nested=True) for mask in masks)
    return _Told(f"attn_mask=({seen}) | {_whole(hidden)}", hidden)


def _single(found: WrittenAttention, mask: Mask) -> _Told:
    source = found.source
    hidden = None
    if mask.kind == "add":
        if is_of_whole_numbers(source, mask.node):
            raise CannotFuse("the mask that it adds may be of whole numbers")
        code = source.code(mask.node)
    elif math.isinf(_fill(found, mask)):
        code = _seen(source, mask)
    else:
        hidden = _hidden(source, mask)
        code = f"{_seen(source, mask, nested=True)} | {_whole(hidden)}"
    if mask.condition is None:
        return _Told(f"attn_mask={code}", hidden)
    return _Told(f"attn_mask={_only_if(source, mask.condition, code, 'None')}", hidden, mask.condition)


def _only_if(source: Source, condition: cst.BaseExpression, code: str, otherwise: str) -> str:
    """`code` where the condition holds, as a mask's `is not None` is best read."""
    test = source.code(condition)
    if otherwise == "None" and test == f"{code} is not None":
        return code
    if test.endswith(" is not None"):
        return f"{otherwise} if {test.removesuffix(' is not None')} is None else {code}"
    return f"{code} if {test} else {otherwise}"


def _whole(hidden: str) -> str:
    """True for the rows of which nothing is seen."""
    seen = re.fullmatch(r"~([\w.]+(?:\[[^\[\]]*\])?)", hidden)
    if seen is not None:
        return f"~{seen[1]}.any(-1, keepdim=True)"
    plain = hidden.isidentifier() or (hidden.startswith("(") and _closes_last(hidden))
    return f"{hidden if plain else f'({hidden})'}.all(-1, keepdim=True)"


def _closes_last(code: str) -> bool:
    """Whether the parenthesis that code begins with is closed by its last character."""
    depth = 0
    for at, character in enumerate(code):
        depth += (character == "(") - (character == ")")
        if not depth:
            return at == len(code) - 1
    return False


def _with_even_rows(found: WrittenAttention, query: str, told: _Told | None) -> str:
    """The queries, zero in rows of which nothing is seen.

    A finite fill value gives such a row even weights over all keys, and no gradient to its scores. So does a query of
    zeros that sees every key; booleans alone would give the row zeros, and a number that is added would let the
    gradient through.
    """
    if told is None or told.hidden is None:
        return query
    zeroed = f"{query}.masked_fill({_whole(told.hidden)}, 0.0)"
    return zeroed if told.condition is None else _only_if(found.source, told.condition, zeroed, query)


def _seen(source: Source, mask: Mask, nested: bool = False) -> str:
    return _told(source, mask.node, mask.kind == "hide", nested)


def _hidden(source: Source, mask: Mask, nested: bool = False) -> str:
    return _told(source, mask.node, mask.kind == "keep", nested)


def _told(source: Source, node: cst.BaseExpression, negated: bool, nested: bool) -> str:
    code = source.code(node)
    compound = isinstance(node, cst.Comparison | cst.BinaryOperation) and not code.startswith("(")
    if not negated:
        return f"({code})" if nested and compound else code
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        for operator, other in ((cst.Equal, "!="), (cst.NotEqual, "==")):
            if isinstance(node.comparisons[0].operator, operator):
                told = f"{source.code(node.left)} {other} {source.code(node.comparisons[0].comparator)}"
                return f"({told})" if nested or code.startswith("(") else told
    made = operation(source, node) if not isinstance(node, cst.Name) else None
    if made is not None and made.name == "invert":
        return source.code(made.operands[0])
    return f"~({code})" if compound else f"~{code}"


def _scale(found: WrittenAttention) -> str | None:
    """The code of the scale; None where it is the one that the fused kernel takes by itself."""
    source = found.source
    if not found.factors:
        return "1.0"
    for _, node in found.factors:
        _same(found, node)
    if len(found.factors) == 1:
        kind, node = found.factors[0]
        root = root_of(source, node, inverse=kind == "mul")
        if root is not None and _is_width(found, root):
            return None
        if is_number(source, node):
            return source.text[slice(*source.span(node))] if kind == "mul" else f"1 / {operand_code(source, node)}"
        if kind == "div" and (inner := _root_of_tensor(source, node)) is not None:
            return f"{operand_code(source, inner)} ** -0.5"
    if any(not is_number(source, node) for _, node in found.factors):
        raise CannotFuse("its scale is not known to be a plain number")
    return _product(found)


def _product(found: WrittenAttention) -> str:
    times = [operand_code(found.source, node) for kind, node in found.factors if kind == "mul"]
    by = [operand_code(found.source, node) for kind, node in found.factors if kind == "div"]
    return " / ".join([" * ".join(times) or "1", *by])


def _is_width(found: WrittenAttention, root: cst.BaseExpression) -> bool:
    """Whether a number is the width of queries and keys."""
    source = found.source
    made = operation(source, root)
    if made is not None and made.name in {"tensor", "FloatTensor", "float"} and made.operands:
        inner = made.operands[0]
        if isinstance(inner, cst.List) and len(inner.elements) == 1:
            inner = inner.elements[0].value
        return _is_width(found, inner)
    assert found.query is not None and found.key is not None
    operands = [each.node for each in (found.query, found.key) if not each.transposed]
    codes = {source.code(node) for node in operands}
    written = _unfollowed(source, root)
    if written is not None:
        return written in codes
    sizes = [size for size in (last_size(source, node) for node in operands) if size is not None]
    return canonical(source, root) in {canonical(source, size) for size in sizes}


def _unfollowed(source: Source, root: cst.BaseExpression) -> str | None:
    """The tensor whose last size an expression is: `k` for `k.size(-1)`, through a name."""
    while isinstance(root, cst.Name):
        seen = definition_of(source, root)
        if seen.bound is Bound.UNPACKED and isinstance(seen.statement, cst.SimpleStatementLine):
            return _last_of_shape(source, root.value, seen.statement)
        if seen.assigned is None:
            return None
        root = seen.assigned
    if isinstance(root, cst.Call) and isinstance(root.func, cst.Attribute) and root.func.attr.value == "size":
        return source.code(root.func.value) if [source.code(arg.value) for arg in root.args] == ["-1"] else None
    if isinstance(root, cst.Subscript) and isinstance(root.value, cst.Attribute) and root.value.attr.value == "shape":
        return source.code(root.value.value) if source.code(root).endswith("[-1]") else None
    return None


def _last_of_shape(source: Source, name: str, statement: cst.SimpleStatementLine) -> str | None:
    """The tensor of `batch, heads, length, name = tensor.shape`."""
    assign = statement.body[0]
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if not isinstance(assign, cst.Assign) or not isinstance(target, cst.Tuple):
        return None
    code = source.code(assign.value)
    tensor = code.removesuffix(".shape").removesuffix(".size()")
    return tensor if tensor != code and source.code(target.elements[-1].value) == name else None


def _root_of_tensor(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The number under the root of `self.scale = torch.sqrt(torch.FloatTensor([number]))`, if it can be said here."""
    inner = member(source, node)
    node = inner if inner is not None else node
    made = operation(source, node)
    while made is not None and made.name in {"to", "cuda", "float"} and made.method:
        made = operation(source, made.operands[0])
    if made is None or made.name != "sqrt":
        return None
    held = operation(source, made.operands[0])
    if held is None or held.name not in {"tensor", "FloatTensor"} or not held.operands:
        return None
    first = held.operands[0]
    if isinstance(first, cst.List) and len(first.elements) == 1:
        first = first.elements[0].value
    sayable = inner is None or all(name.value == "self" for name in names_in(source, first))
    return first if sayable and is_number(source, first) else None
