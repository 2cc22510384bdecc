"""A loss over logits that the same function computes: whether the logits can be left out, and what would go with them.

The logits are often returned beside the loss, or used where there are no targets. What is read where the loss is not
computed keeps its logits; what is returned with a loss is left to the caller of this module to look after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.flow import scope_of, within
from diagnose.source.dataflow.reaching_definitions import (
    Bound,
    names_in,
    reaching,
    statement_of,
    unchanged_until,
)
from diagnose.source.losses.loss_forms import losses
from diagnose.source.losses.output_layer import OutputProduct, has_size_of, output_product
from diagnose.source.patterns.attention import Refused
from diagnose.source.patterns.cross_entropy import CrossEntropy, Step, Unlaid, flattened, follow_names, unlaid
from diagnose.source.rewrite.leftovers import reads_of
from diagnose.source.tree.syntax import Source


@dataclass(frozen=True)
class Output:
    """Where logits are returned together with a loss."""

    statement: cst.Return
    position: int | None
    """The position in a tuple; None where a name says what they are."""
    length: int = 0
    name: str = ""
    """The keyword of a call or the key of a dictionary."""


@dataclass(frozen=True)
class OutputLoss:
    """A cross entropy of `product`."""

    loss: CrossEntropy
    laid: Unlaid
    product: OutputProduct
    targets: cst.BaseExpression
    flat_targets: bool
    """`targets` have to be made one axis."""
    gone: tuple[cst.CSTNode, ...]
    """Statements that nobody needs any more."""
    made: cst.CSTNode | None = None
    """The statement that computes the logits, where somebody still reads the name."""
    branch: tuple[cst.If, bool] | None = None
    """The `if` that decides whether the loss is computed, and in which case: only in the other one are logits made."""
    outputs: tuple[Output, ...] = field(default=())


class _NotOne(Exception):
    """The logits are needed, for this reason."""


def output_losses(source: Source) -> Iterator[OutputLoss | Refused]:
    """Yield the losses of a file; what looks like one and needs its logits is refused with the reason."""
    for loss in losses(source):
        laid = unlaid(loss)
        product = output_product(source, laid.base) if laid is not None else None
        if laid is None or product is None:
            continue
        try:
            yield _whole(loss, laid, product)
        except _NotOne as reason:
            yield Refused(loss.root, str(reason))


def _whole(loss: CrossEntropy, laid: Unlaid, product: OutputProduct) -> OutputLoss:
    source, at = loss.source, statement_of(loss.source, loss.root)
    if loss.refused is not None:
        raise _NotOne(loss.refused)
    if not has_size_of(source, laid, product):
        raise _NotOne("rows of logits are not seen to be whole")
    if not unchanged_until(source, product.hidden, at):
        raise _NotOne("what the output layer is given has changed until the loss is computed")
    made = laid.steps[-1][0] if laid.steps else None
    layouts: list[Step] = [step for step in laid.steps if step[0] is not made]
    scope = scope_of(source, loss.root)
    shapes = [*_shapes(source, scope, {name for _, name in laid.steps}), *_module(source, loss.root)]
    rows: list[Step] = []
    targets, flat = flattened(source, loss.targets, rows)
    written = [statement for statement, _ in loss.steps]
    without = [loss.root, *written, *(statement for statement, _ in (*layouts, *rows, *shapes))]
    sized = {name.value for name in names_in(source, loss.targets)} & {name for _, name in shapes}
    if (not rows and not sized) or _read_outside(source, scope, rows, without):
        targets, flat, rows = loss.targets, False, []
        without = [loss.root, *written, *(statement for statement, _ in (*layouts, *shapes))]
    for statement in {id(one): one for one, _ in shapes}.values():
        if _read_outside(source, scope, [step for step in shapes if step[0] is statement], without):
            without = [each for each in without if each is not statement]
    reads = list(reads_of(source, scope, laid.steps, without))
    gone, flat = tuple(without[1:]), flat or loss.column
    if made is None or not reads:
        return OutputLoss(loss, laid, product, targets, flat, (*gone, made) if made is not None else gone)
    branch = _deciding(source, loss.root, made)
    outputs = tuple(_output(source, read) for read in reads if not _is_elsewhere(source, read, loss.root, branch))
    return OutputLoss(loss, laid, product, targets, flat, gone, made, branch, outputs)


def _module(source: Source, root: cst.BaseExpression) -> list[Step]:
    """`criterion = nn.CrossEntropyLoss()` in the function itself."""
    steps: list[Step] = []
    if isinstance(root, cst.Call) and isinstance(root.func, cst.Name):
        follow_names(source, root.func, steps)
    return steps


def _shapes(source: Source, scope: cst.CSTNode, names: set[str]) -> list[Step]:
    """`B, T, C = logits.shape` and `n = logits.size(-1)`, once for each name that is bound."""
    found: list[Step] = []
    for assign in source.every(cst.Assign, scope):
        statement, code = source.statement(assign), source.code(assign.value)
        if statement is not None and any(code.startswith((f"{name}.shape", f"{name}.size(")) for name in names):
            bound = [each for target in assign.targets for each in source.every(cst.Name, target)]
            found += [(statement, each.value) for each in bound]
    return found


def _read_outside(source: Source, scope: cst.CSTNode, steps: Sequence[Step], without: Sequence[cst.CSTNode]) -> bool:
    return any(True for _ in reads_of(source, scope, steps, without))


def _deciding(source: Source, root: cst.CSTNode, made: cst.CSTNode) -> tuple[cst.If, bool] | None:
    """The `if` behind the statement that makes the logits which leads to the loss, or away from it for good."""
    around = [above for above in source.ancestors(root) if isinstance(above, cst.If)]
    around = [one for one in around if not within(source, made, one)]
    if len(around) > 1:
        raise _NotOne("whether the loss is computed hangs on several conditions")
    if around:
        found = around[0]
        if isinstance(source.parent(found), cst.If) or isinstance(found.orelse, cst.If):
            raise _NotOne("whether the loss is computed hangs on several conditions")
        return _asking(source, found, made), within(source, root, found.body)
    block = source.parent(made)
    if not isinstance(block, cst.IndentedBlock):
        return None
    rows = list(block.body)
    own = next((row for row in rows if row is statement_of(source, root)), None)
    if own is None:
        return None
    between = rows[rows.index(made) + 1 : rows.index(own)]  # type: ignore[arg-type]
    leaving = [row for row in between if isinstance(row, cst.If) and row.orelse is None and _leaves(row)]
    return (_asking(source, leaving[0], made), False) if len(leaving) == 1 else None


def _asking(source: Source, found: cst.If, made: cst.CSTNode) -> cst.If:
    """The `if`, whose question can as well be asked where the logits are made."""
    if any(source.every(cst.Call, found.test)) or any(source.every(cst.NamedExpr, found.test)):
        raise _NotOne("whether the loss is computed is found out by a call")
    for name in names_in(source, found.test):
        here, there = reaching(source, found, name.value), reaching(source, made, name.value)
        if here.statement is not there.statement or Bound.LOST in (here.bound, there.bound):
            raise _NotOne("what decides whether the loss is computed is made after the logits")
    return found


def _leaves(row: cst.If) -> bool:
    last = row.body.body[-1] if row.body.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(small, cst.Return | cst.Raise)


def _is_elsewhere(source: Source, read: cst.Name, root: cst.CSTNode, branch: tuple[cst.If, bool] | None) -> bool:
    """Whether a read is made only where the loss is not computed."""
    if branch is not None and not within(source, root, branch[0]):
        return within(source, read, branch[0].body)
    for above in source.ancestors(root):
        if isinstance(above, cst.If) and within(source, read, above):
            return within(source, read, above.body) != within(source, root, above.body)
    return False


def _output(source: Source, read: cst.Name) -> Output:
    """Return where a read hands the logits to the caller; raises for any other use."""
    for above in source.ancestors(read):
        if isinstance(above, cst.Return):
            break
        if isinstance(above, cst.Element) and isinstance(source.parent(above), cst.Tuple):
            listed = source.parent(above)
            returned = source.parent(listed) if listed is not None else None
            if isinstance(returned, cst.Return) and isinstance(listed, cst.Tuple) and above.value is read:
                return Output(returned, list(listed.elements).index(above), len(listed.elements))
        if isinstance(above, cst.Arg) and above.keyword is not None and above.value is read:
            returned = source.inside(above, cst.Return)
            if returned is not None and returned.value is source.parent(above):
                return Output(returned, None, name=above.keyword.value)
        if isinstance(above, cst.DictElement) and above.value is read and isinstance(above.key, cst.SimpleString):
            returned = source.inside(above, cst.Return)
            if returned is not None and returned.value is source.parent(above):
                return Output(returned, None, name=str(above.key.evaluated_value))
        if isinstance(above, cst.BaseStatement):
            break
    line = source.lines_of(read)[0]
    raise _NotOne(f"`{read.value}` is read for something else too, in line {line}")
