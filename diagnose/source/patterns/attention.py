"""Attention written out: softmax(queries × keys · scale + mask) × values, in whatever words."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.flow import scope_of, within
from diagnose.source.dataflow.reaching_definitions import (
    Bound,
    all_reaching,
    definition_of,
    names_in,
    statement_of,
)
from diagnose.source.patterns.einsum import product_of_scores, product_of_values
from diagnose.source.patterns.formula import Operation, integer, operation
from diagnose.source.patterns.numeric import is_number
from diagnose.source.tree.syntax import Source

_CASTS = frozenset({"to", "type_as", "float", "type", "half", "bfloat16", "contiguous"})
_SOFTMAX = ("softmax", "Softmax")
_PRODUCTS = ("matmul", "bmm", "einsum")
Step = tuple[cst.CSTNode, str]


@dataclass(frozen=True)
class Refused:
    """Attention that cannot be replaced, and why."""

    node: cst.CSTNode
    reason: str


@dataclass(frozen=True)
class Mask:
    """One mask on the scores."""

    kind: str
    """`hide`: true where a key is not seen; `keep`: true where it is; `add`: added to the scores."""
    node: cst.BaseExpression
    fill: cst.BaseExpression | None = None
    condition: cst.BaseExpression | None = None


@dataclass(frozen=True)
class Operand:
    """Queries, keys or values: an expression, and the order of its axes where that is not the usual one."""

    node: cst.BaseExpression
    order: tuple[int, ...] | None = None
    transposed: bool = False
    """Whether its last two axes are swapped where it stands, and have to be swapped back."""


@dataclass
class WrittenAttention:
    """Attention written out as operators; `product` is the expression to be replaced."""

    source: Source
    product: cst.BaseExpression
    value: Operand
    result_order: tuple[int, ...] | None = None
    query: Operand | None = None
    key: Operand | None = None
    dropout: Operation | None = None
    masks: list[Mask] = field(default_factory=list)
    factors: list[tuple[str, cst.BaseExpression]] = field(default_factory=list)
    """`mul` or `div` with the number, outermost first."""
    steps: list[Step] = field(default_factory=list)
    """Statements, with the names that they bind, which nobody needs any more."""
    three_axes: bool = False
    modules: list[str] = field(default_factory=list)
    """Modules between the scores and the product, as they are called, which nothing calls any more."""

    @property
    def statement(self) -> cst.CSTNode:
        """The statement that contains the product."""
        return statement_of(self.source, self.product)


class CannotFuse(Exception):
    """Why no call of the fused kernel computes the same."""


class _NoAttention(Exception):
    """The expression is no attention; with a message, attention that must stay as it is."""


def written_attentions(source: Source) -> Iterator[WrittenAttention | Refused]:
    """Every attention of a file."""
    for node in _products(source):
        try:
            found = _attention(source, node)
            if found is not None:
                _check_uses(found)
                yield found
        except _NoAttention as refusal:
            if refusal.args:
                yield Refused(node, str(refusal))


def _products(source: Source) -> Sequence[cst.BinaryOperation | cst.Call]:
    """Return what may be a product with weights, in the order of the text; a file without both is not parsed."""
    if not source.may_name(*_SOFTMAX, *source.imported_as(*_SOFTMAX)):
        return ()
    called = source.calls_named(*_PRODUCTS, *source.imported_as(*_PRODUCTS))
    written = source.every(cst.BinaryOperation) if source.outline.every(ast.MatMult) else ()
    by_operator = [each for each in written if isinstance(each.operator, cst.MatrixMultiply)]
    return sorted([*called, *by_operator], key=source.extent)


def _attention(source: Source, node: cst.BinaryOperation | cst.Call) -> WrittenAttention | None:
    made = operation(source, node)
    if made is None or made.name not in {"matmul", "einsum"}:
        return None
    if made.name == "einsum":
        product = product_of_values(made)
        if product is None:
            return None
        weights = product.weights
        found = WrittenAttention(source, node, Operand(product.value, product.value_order), product.result_order)
        found.three_axes = len(product.value_order) == 3
    elif len(made.operands) == 2:
        weights = made.operands[0]
        found = WrittenAttention(source, node, Operand(made.operands[1]))
        found.three_axes = isinstance(node, cst.Call) and "bmm" in source.code(node.func)
    else:
        return None
    scores = _weights(found, weights)
    if not _scores(found, scores):
        raise _NoAttention
    return found


def _weights(found: WrittenAttention, node: cst.BaseExpression) -> cst.BaseExpression:
    """Follow the weights back to the scores that go into the softmax."""
    while True:
        made = operation(found.source, node)
        if made is None or not made.operands:
            raise _NoAttention
        found.steps += made.through
        if made.module is not None and isinstance(made.node, cst.Call):
            found.modules.append(found.source.code(made.node.func))
        if made.name == "softmax":
            if made.condition is not None or not _over_keys(found, made):
                raise _NoAttention
            return made.operands[0]
        if made.name == "dropout" and made.condition is None and found.dropout is None:
            found.dropout = made
        elif made.name not in _CASTS or made.condition is not None:
            raise _NoAttention
        node = made.operands[0]


def _over_keys(found: WrittenAttention, made: Operation) -> bool:
    """Whether a softmax goes over the last axis."""
    given = made.given("dim", 1)
    if made.module is not None:
        argument = next(
            (arg.value for arg in made.module.args if arg.keyword is None or arg.keyword.value == "dim"), None
        )
        given = argument
    axis = integer(given)
    return axis in {-1, 3} or (axis == 2 and found.three_axes)


def _scores(found: WrittenAttention, node: cst.BaseExpression) -> bool:
    """Follow the scores back to the product of queries and keys; False where there is none."""
    source = found.source
    made = operation(source, node)
    if made is None or len(made.operands) < (1 if made and made.name in _CASTS else 2):
        return False
    before = (len(found.steps), len(found.masks), len(found.factors))
    found.steps += made.through
    if _is_product(found, made) or _through(found, made):
        return True
    del found.steps[before[0] :], found.masks[before[1] :], found.factors[before[2] :]
    return False


def _through(found: WrittenAttention, made: Operation) -> bool:
    """One step back from the softmax: a mask, a scale, a change of format."""
    left, right = made.operands[0], made.operands[-1]
    if made.name in _CASTS and made.condition is None:
        return _scores(found, left)
    if made.name in {"mul", "div"} and made.condition is None and len(made.operands) == 2:
        for scores, number in ((left, right), (right, left)):
            if (made.name == "mul" or number is right) and not _is_tensor_like(found.source, number):
                found.factors.append((made.name, number))
                if _scores(found, scores):
                    return True
                found.factors.pop()
        return False
    if made.name == "masked_fill" and len(made.operands) == 3:
        found.masks.append(Mask("hide", made.operands[1], made.operands[2], made.condition))
        return _scores(found, left) and _with_fill(found, made.operands[2])
    if made.name == "masked_fill" and "value" in made.keywords and len(made.operands) == 2:
        found.masks.append(Mask("hide", made.operands[1], made.keywords["value"], made.condition))
        return _scores(found, left)
    if made.name == "where" and len(made.operands) == 3 and not made.method:
        for kind, scores, fill in (("keep", made.operands[1], right), ("hide", right, made.operands[1])):
            found.masks.append(Mask(kind, left, fill, made.condition))
            if _scores(found, scores):
                return _with_fill(found, fill)
            found.masks.pop()
        return False
    if made.name == "add" and len(made.operands) == 2 and not made.keywords:
        return _added(found, made)
    return False


def _with_fill(found: WrittenAttention, fill: cst.BaseExpression) -> bool:
    """The statements that make a fill value of the scores' format go with the scores; always true."""
    while isinstance(fill, cst.Name):
        seen = definition_of(found.source, fill)
        if seen.assigned is None or ".dtype" not in found.source.code(seen.assigned) or seen.statement is None:
            break
        found.steps.append((seen.statement, fill.value))
        inner = operation(found.source, seen.assigned)
        fill = inner.operands[1] if inner is not None and inner.name == "full" and inner.operands[1:] else seen.assigned
    return True


def _added(found: WrittenAttention, made: Operation) -> bool:
    """A mask that is added to the scores: a factor further out would scale it too."""
    left, right = made.operands
    scaled = bool(found.factors)
    for scores, mask in ((left, right), (right, left)):
        found.masks.append(Mask("add", mask, None, made.condition))
        if _scores(found, scores):
            if scaled:
                raise _NoAttention("its scale comes after the mask that is added, and would have to be put on the mask")
            return True
        found.masks.pop()
        if made.condition is not None:
            return False
    return False


def _is_tensor_like(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a factor may be a product of scores itself."""
    made = operation(source, node)
    return made is not None and made.name in {"matmul", "einsum", "masked_fill", "where", "softmax"}


def _is_product(found: WrittenAttention, made: Operation) -> bool:
    if made.condition is not None:
        return False
    if made.name == "einsum":
        product = product_of_scores(made)
        if product is None:
            return False
        found.query = Operand(product.query, product.query_order)
        found.key = Operand(product.key, product.key_order)
        return True
    if made.name != "matmul" or len(made.operands) != 2:
        return False
    query, key = made.operands
    found.three_axes = found.three_axes or _is_plain_projection(found.source, query)
    found.query, found.key = _unscaled(found, query), _untransposed(found, key)
    return found.key is not None


def _is_plain_projection(source: Source, node: cst.BaseExpression) -> bool:
    """Whether queries are a linear layer's output for an input of three axes: the fused kernels want four."""
    made = operation(source, node)
    if made is None or made.module is None or not made.operands or not isinstance(made.operands[0], cst.Name):
        return False
    shapes = {f"{made.operands[0].value}.shape", f"{made.operands[0].value}.size()"}
    for assign in source.every(cst.Assign, scope_of(source, node)):
        target = assign.targets[0].target
        if isinstance(target, cst.Tuple) and len(target.elements) == 3 and source.code(assign.value) in shapes:
            return any(name == "torch.nn.Linear" for name in source.names(made.module.func))
    return False


def _unscaled(found: WrittenAttention, query: cst.BaseExpression) -> Operand:
    """`(q * scale) @ …`: the scale is one of the scores'."""
    if isinstance(query, cst.BinaryOperation):
        made = operation(found.source, query)
        if made is not None and made.name in {"mul", "div"} and is_number(found.source, made.operands[1]):
            found.factors.append((made.name, made.operands[1]))
            return Operand(made.operands[0])
    return Operand(query)


def _untransposed(found: WrittenAttention, node: cst.BaseExpression) -> Operand | None:
    made = operation(found.source, node)
    swaps = made is not None and made.condition is None and made.name in {"transpose", "permute", "mT"}
    if made is not None and swaps and _swaps_last(found, made):
        found.steps += made.through
        return Operand(made.operands[0])
    if isinstance(node, cst.Name) and (made is None or made.name in {"permute", "transpose"}):
        return Operand(node, transposed=True)
    return None


def _swaps_last(found: WrittenAttention, made: Operation) -> bool:
    if made.name == "mT":
        return True
    axes = made.operands[1:]
    if len(axes) == 1 and isinstance(axes[0], cst.Tuple | cst.List):
        axes = tuple(element.value for element in axes[0].elements)
    if not axes:
        axes = tuple(made.keywords[name] for name in ("dim0", "dim1") if name in made.keywords)
    numbers = [integer(axis) for axis in axes]
    if made.name == "transpose":
        return set(numbers) in ({-1, -2}, {2, 3}) or (set(numbers) == {1, 2} and _has_three(found, made))
    return numbers in ([0, 1, 3, 2], [0, 2, 1])


def _has_three(found: WrittenAttention, made: Operation) -> bool:
    """Axes 1 and 2 are the last ones of three."""
    if found.three_axes:
        return True
    inner = operation(found.source, made.operands[0])
    viewed = inner is not None and inner.name in {"view", "reshape", "transpose", "permute"}
    return inner is not None and not viewed and inner.module is not None


def _check_uses(found: WrittenAttention) -> None:
    """Refuse where something that stays reads what goes."""
    source = found.source
    removed = {id(statement) for statement, _ in found.steps}
    names = {name for _, name in found.steps}
    scope = scope_of(source, found.product)
    if any(scope_of(source, statement) is not scope for statement, _ in found.steps):
        raise _NoAttention
    for name in names_in(source, scope):
        if name.value not in names or within(source, name, found.product):
            continue
        if any(id(above) in removed for above in source.ancestors(name)):
            continue
        if scope_of(source, name) is not scope or source.inside(name, cst.Lambda) is not None:
            raise _NoAttention("its weights are used by another function")
        if _is_target(source, name):
            continue
        seen = list(all_reaching(source, statement_of(source, name), name.value))
        bound = [each for one in seen for each in (one, one.inner) if each is not None]
        if any(id(one.statement) in removed for one in bound):
            raise _NoAttention("its scores or weights are used elsewhere: a fused kernel does not have them")
        if any(one.bound is Bound.LOST for one in seen) and not _comes_before(source, name, found):
            raise _NoAttention("what becomes of its weights is not clear")


def _is_target(source: Source, name: cst.Name) -> bool:
    """Whether a name is bound there, and not read."""
    below: cst.CSTNode = name
    for above in source.ancestors(name):
        if isinstance(above, cst.AssignTarget | cst.Param):
            return True
        if isinstance(above, cst.AnnAssign | cst.For) and above.target is below:
            return True
        if not isinstance(above, cst.Tuple | cst.List | cst.Element | cst.StarredElement):
            return False
        below = above
    return False


def _comes_before(source: Source, name: cst.Name, found: WrittenAttention) -> bool:
    first = min(source.span(statement)[0] for statement, _ in found.steps)
    return source.span(name)[0] < first


def mentions_fused(source: Source, node: cst.CSTNode) -> bool:
    """Whether an `if` around a node has the fused kernel in another branch: the program chooses by itself."""
    below: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If) and "scaled_dot_product_attention" in source.code(above):
            inner = source.code(below)
            return "scaled_dot_product_attention" not in inner or isinstance(below, cst.Else)
        below = above
    return False
