"""Where a program calls the blocks of its model one after the other, and how to have some of them computed again.

Either in a loop over them, `for block in self.blocks: x = block(x)`, or through their container, `x = self.blocks(x)`,
which then becomes such a loop. Which turns of it are computed again is written as short as it can be: `number < 9`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.flow import loops_around, scope_of
from diagnose.source.dataflow.iteration import numbered
from diagnose.source.rewrite.with_blocks import block_of, wrap_statements
from diagnose.source.tree.arguments import argument_code, put_first, set_keywords
from diagnose.source.tree.edits import call_name, ensure_from_import, ensure_import, insert_before, replace
from diagnose.source.tree.syntax import Source, Splice

_MODULE, _FUNCTION = "torch.utils.checkpoint", "checkpoint"
_OPTIONS = frozenset({"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"})
_LIST, _STACK = frozenset({"ModuleList"}), frozenset({"Sequential"})
_WIDEST = 110
_NO_NUMBER = "another loop hands it the blocks part by part, so that a turn's number does not tell the block"
_LATER = (cst.Lambda, cst.BaseComp, cst.IfExp, cst.BooleanOperation)
"""Expressions whose parts are not evaluated in any case, and once."""


@dataclass(frozen=True)
class BlockCall:
    """One such place."""

    source: Source = field(repr=False)
    call: cst.Call = field(repr=False)
    loop: cst.For | None = field(repr=False)
    """None where the container is called as a whole."""
    line: int

    @property
    def blocks(self) -> str:
        """The code of what holds the blocks."""
        return self.source.code(self.call.func if self.loop is None else self.loop.iter)


def block_calls(source: Source, line: int | None = None) -> Iterator[BlockCall]:
    """Yield the calls of blocks on a line; without one, all that a class shows to be over a list or a stack of
    modules it builds."""
    built = _containers(source) if line is None else {}
    for call in source.every(cst.Call):
        first, last = source.lines_of(call)
        if line is not None and not first <= line <= last:
            continue
        loop = _loop_over(source, call)
        if loop is not None and (line is not None or _built(source, _handed_by(source, loop, call), built)):
            yield BlockCall(source, call, loop, first)
        elif loop is None and _is_container_call(call) and (line is not None or _is_stack(source, call.func, built)):
            yield BlockCall(source, call, None, first)


def block_call_at(source: Source, line: int, container: str | None) -> BlockCall | None:
    """The call on a line of what runs in turns, or (where it has a name) of the container; None where it is unclear."""
    places = [place for place in block_calls(source, line) if (place.loop is None) == (container is not None)]
    if container is not None and len(places) > 1:
        places = [place for place in places if call_name(place.call) == container.rpartition(".")[2]]
    return places[0] if len(places) == 1 else None


def checkpointed(place: BlockCall, chosen: Collection[int], count: int | None) -> list[Splice] | str:
    """The edits with which the chosen turns of `count` are computed again; or why there are none.

    `count` None: it is not known, and all are chosen.
    """
    source, call = place.source, place.call
    within = place.loop or source.statement(call) or call
    if any(call_name(each) == _FUNCTION for each in source.every(cst.Call, within)):
        return "blocks are computed again there already"
    if any(arg.keyword is not None and arg.keyword.value in _OPTIONS for arg in call.args):
        return "an argument of the block bears the name of an option of `checkpoint`"
    checkpoint, splices = _imported(source)
    if place.loop is None:

        def body(block: str, name: str, test: str) -> list[str]:
            again = f"{checkpoint}({block}, {name}, use_reentrant=False)"
            return [f"{name} = {again} if {test} else {block}({name})" if test else f"{name} = {again}"]

        return _unrolled(place, chosen, count, body, splices)
    test, numbering = _numbered(source, place.loop, call, chosen, count)
    if test and _starts_again(source, place.loop):
        return _NO_NUMBER
    splices += numbering
    if not test and call.args and "\n" in source.code(call):
        first = [replace(source, call.func, checkpoint), put_first(source, call, source.code(call.func))]
        return [*splices, *first, *set_keywords(source, call, {"use_reentrant": "False"})]
    given = [argument_code(source, arg) for arg in call.args]
    again = f"{checkpoint}({', '.join([source.code(call.func), *given])}, use_reentrant=False)"
    return splices + _either(source, call, again, test)


def within_context(
    place: BlockCall, chosen: Collection[int], count: int | None, context: str, imports: Sequence[Splice] = ()
) -> list[Splice] | str:
    """The edits with which the chosen turns run in a context, `context(number < 9)`; or why there are none."""
    source, call = place.source, place.call
    if place.loop is None:

        def body(block: str, name: str, test: str) -> list[str]:
            return [f"with {context}({test}):", f"{source.indentation}{name} = {block}({name})"]

        return _unrolled(place, chosen, count, body, list(imports))
    statement = source.statement(call)
    if not isinstance(statement, cst.SimpleStatementLine) or block_of(source, statement) is None:
        return "it does not stand in a statement of its own"
    if isinstance(source.parent(source.parent(statement) or statement), cst.With):
        return "it stands in a context already"
    test, splices = _numbered(source, place.loop, call, chosen, count)
    if test and _starts_again(source, place.loop):
        return _NO_NUMBER
    return [*imports, *splices, *wrap_statements(source, [statement], f"with {context}({test}):")]


def condition(number: str, chosen: Collection[int], count: int | None) -> str:
    """The shortest test of a turn's number that is true for the chosen ones; empty where it is for all."""
    turns = sorted(chosen)
    if count is None or len(turns) >= count:
        return ""
    if turns == list(range(len(turns))):
        return f"{number} < {len(turns)}"
    if turns == list(range(count - len(turns), count)):
        return f"{number} >= {turns[0]}"
    for stride in range(2, count // 2 + 1):
        if turns == list(range(0, count, stride)):
            return f"{number} % {stride} == 0"
    if turns == list(range(turns[0], turns[-1] + 1)):
        return f"{turns[0]} <= {number} <= {turns[-1]}"
    return f"{number} in {{{', '.join(map(str, turns))}}}"


def _numbered(
    source: Source, loop: cst.For, call: cst.Call, chosen: Collection[int], count: int | None
) -> tuple[str, list[Splice]]:
    """The test of a loop's chosen turns, and the edits with which it counts them where it must."""
    number = _counter(source, loop, call)
    name = number or _free(source, call, "number")
    test = condition(name, chosen, count)
    if not test or number is not None:
        return test, []
    target = source.code(loop.target)
    several = isinstance(loop.target, cst.Tuple) and not target.startswith("(")
    numbered = f"{name}, ({target})" if several else f"{name}, {target}"
    counted = f"enumerate({source.code(loop.iter)})"
    return test, [replace(source, loop.target, numbered), replace(source, loop.iter, counted)]


def _starts_again(source: Source, loop: cst.For) -> bool:
    """Whether another loop gives it blocks again and again, `for stage in self.stages: for block in stage:`."""
    asked = {name.value for name in source.every(cst.Name, loop.iter)}
    outer = [each for each in loops_around(source, loop) if isinstance(each, cst.For)]
    return any(name.value in asked for each in outer for name in source.every(cst.Name, each.target))


def _either(source: Source, call: cst.Call, again: str, test: str) -> list[Splice]:
    """The call computed again, under a condition where there is one: on one line if it is short."""
    if not test:
        return [replace(source, call, again)]
    plain = source.code(call)
    alone = isinstance(source.parent(call), cst.Assign)
    either = f"{again} if {test} else {plain}"
    statement = source.statement(call)
    assert statement is not None  # a call that lies in a loop
    start, end = source.span(statement)
    before = len(source.text[source.line_start(start) : end]) - len(plain)
    short = before + len(either) <= _WIDEST and "\n" not in either
    if short or not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) > 1:
        return [replace(source, call, either if alone else f"({either})")]
    indent, step = source.indent(statement), source.indentation
    at, to = source.span(call)
    first = f"{source.text[start:at]}{again}{source.text[to:end]}"
    lines = [f"if {test}:", f"{step}{first}", "else:", f"{step}{source.text[start:end]}"]
    return [Splice(start, end, f"{source.newline}{indent}".join(lines))]


def _imported(source: Source) -> tuple[str, list[Splice]]:
    """Return how the file calls torch's `checkpoint`, and the edit of its imports for that."""
    (name,), splices = ensure_from_import(source, _MODULE, [_FUNCTION])
    if not splices or name == _FUNCTION:
        return name, splices
    module, splices = ensure_import(source, _MODULE)  # something else of the program's bears the name
    return f"{module}.{_FUNCTION}", splices


def _unrolled(
    place: BlockCall,
    chosen: Collection[int],
    count: int | None,
    body: Callable[[str, str, str], list[str]],
    splices: list[Splice],
) -> list[Splice] | str:
    """A loop in the place of the call of a container; `body` makes its lines from block, value and test."""
    source, call = place.source, place.call
    statement, given = source.statement(call), _plain_argument(call)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) > 1 or given is None:
        return "it does not stand in a statement of its own"
    small = statement.body[0]
    block, number = _free(source, call, "block"), _free(source, call, "number")
    test = condition(number, chosen, count)
    alone = isinstance(small, cst.Assign) and small.value is call and len(small.targets) == 1
    target = small.targets[0].target if alone and isinstance(small, cst.Assign) else None
    name = source.code(target) if isinstance(target, cst.Name) else _free(source, call, "hidden")
    head = f"for {number}, {block} in enumerate({place.blocks}):" if test else f"for {block} in {place.blocks}:"
    below = [f"{source.indentation}{line}" for line in body(block, name, test)]
    lines = [*([f"{name} = {given}"] if name != given else []), head, *below]
    if isinstance(target, cst.Name):
        start, end = source.span(statement)
        return [*splices, Splice(start, end, f"{source.newline}{source.indent(statement)}".join(lines))]
    if not _is_first(source, call, statement):
        return "what else its statement computes would change its turn"
    return [*splices, insert_before(source, statement, lines), replace(source, call, name)]


def _is_first(source: Source, call: cst.Call, statement: cst.CSTNode) -> bool:
    """Whether a call can be made before all else that its statement does."""
    around = {id(node) for node in source.ancestors(call)}
    if any(isinstance(node, _LATER) for node in source.ancestors(call) if source.statement(node) is statement):
        return False
    at, end = source.span(call)
    others = [each for each in source.every(cst.Call, statement) if id(each) not in around and each is not call]
    return all(at <= source.span(each)[0] < end or source.span(each)[0] > at for each in others)


def _free(source: Source, node: cst.CSTNode, name: str) -> str:
    """The name, or a longer one that the function around a node does not use."""
    names = {each.value for each in source.every(cst.Name, scope_of(source, node))}
    while name in names:
        name += "_"
    return name


def _is_stack(source: Source, callee: cst.BaseExpression, built: dict[str, str]) -> bool:
    """Whether what is called is itself a container of these: `self.blocks`, and not `self.blocks(x).mean`."""
    return built.get(source.code(callee)) in _STACK


def _is_container_call(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Name | cst.Attribute) and _plain_argument(call) is not None


def _plain_argument(call: cst.Call) -> str | None:
    """The code of the one thing that a container is called with."""
    if len(call.args) != 1 or call.args[0].keyword is not None or call.args[0].star:
        return None
    return cst.Module([]).code_for_node(call.args[0].value)


def _loop_over(source: Source, call: cst.Call) -> cst.For | None:
    """The loop one of whose values in each turn is what is called."""
    for loop in loops_around(source, call):
        if not isinstance(loop, cst.For):
            continue
        if isinstance(call.func, cst.Name) and any(source.named(call.func.value, loop.target)):
            return loop
        counted = isinstance(call.func, cst.Subscript) and isinstance(loop.target, cst.Name)
        if counted and isinstance(loop.iter, cst.Call) and source.code(loop.iter.func) == "range":
            assert isinstance(call.func, cst.Subscript)  # as `counted` says
            if [source.code(each) for each in call.func.slice] == [source.code(loop.target)]:
                return loop
    return None


def _counter(source: Source, loop: cst.For, call: cst.Call) -> str | None:
    """The variable that counts a loop's turns from 0."""
    if isinstance(call.func, cst.Subscript):
        counts = isinstance(loop.iter, cst.Call) and len(loop.iter.args) == 1
        return source.code(loop.target) if counts else None
    pair = numbered(loop)
    return pair.number.value if pair is not None and pair.from_zero and isinstance(pair.number, cst.Name) else None


def _containers(source: Source) -> dict[str, str]:
    """`self.blocks` → `ModuleList`, for what classes of the file assign; containers that are filled from one class."""
    found: dict[str, str] = {}
    for assign in source.every(cst.Assign):
        target, value = assign.targets[0].target, assign.value
        if isinstance(target, cst.Attribute) and isinstance(value, cst.Call):
            name = source.code(value.func).rpartition(".")[2]
            if name in _LIST | _STACK and any(isinstance(arg.value, cst.BaseComp) for arg in value.args):
                found[source.code(target)] = name
    return found


def _handed_by(source: Source, loop: cst.For, call: cst.Call) -> cst.BaseExpression:
    """What hands a loop the block that is called: `self.blocks` of `for pool, block in zip(pools, self.blocks)`."""
    over, target = loop.iter, loop.target
    if isinstance(over, cst.Call) and call_name(over) == "zip" and isinstance(target, cst.Tuple):
        for arg, element in zip(over.args, target.elements, strict=False):
            if source.code(element.value) == source.code(call.func):
                return arg.value
    return over


def _built(source: Source, node: cst.BaseExpression, built: dict[str, str]) -> bool:
    """Whether an expression is, or goes through, one of these containers: also `enumerate(self.blocks)`."""
    attributes = [source.code(node), *(source.code(each) for each in source.every(cst.Attribute, node))]
    return any(each in built for each in attributes)
