"""Whether what an expression makes is made once for all epochs, anew in each, or for one pass alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.flow import is_repeated, within
from diagnose.source.dataflow.iteration import ADAPTERS, ITERATORS, OF_ONE_PASS
from diagnose.source.tree.attributes import whole
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with, parse_all, per_program, per_source
from diagnose.source.tree.outline import called_name
from diagnose.source.tree.syntax import Source

_ONLY_ASK = frozenset({"len", "print", "range", "type", "id", "isinstance", "hasattr"})


def is_built_again(sources: Mapping[str, str], source: Source, node: cst.CSTNode) -> bool:
    """Whether a loop evaluates an expression in each turn: one around it, or around calls of the function it is in.

    Each function is looked at once: where most call each other, as `__init__` does, the ways through them are too many.
    """
    pending, seen = [(source, node)], set[cst.CSTNode]()
    while pending:
        source, node = pending.pop()
        if is_repeated(source, node):
            return True
        function = source.inside(node, cst.FunctionDef)
        if function is not None and function not in seen:
            seen.add(function)
            pending += _calls_of(sources, source, function)
    return False


def is_for_one_pass(sources: Mapping[str, str], source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression, or all calls of the function that returns it, stand where a `for` goes through them.

    Each function is looked at once, as in `is_built_again`.
    """
    pending, seen, gone_through = [(source, node)], set[cst.CSTNode](), False
    while pending:
        source, node = pending.pop()
        user = _user_of(source, node)
        if isinstance(user, cst.For):
            gone_through = True
            continue
        function = source.inside(user, cst.FunctionDef) if user is not None else None
        calls = list(_calls_of(sources, source, function)) if function is not None and function not in seen else []
        if function is None or not (calls or function in seen):
            return False
        seen.add(function)
        pending += calls
    return gone_through


def _user_of(source: Source, node: cst.CSTNode) -> cst.For | cst.Return | None:
    """The `for` that goes through an expression, or the `return` that hands it on; None where it is kept."""
    for above in source.ancestors(node):
        if isinstance(above, cst.For):
            return above if above.iter is node else None
        if isinstance(above, cst.Return):
            return above
        if isinstance(above, cst.Call) and call_name(above) in OF_ONE_PASS:
            node = above
        elif not isinstance(above, cst.Arg):
            return None
    return None


def _calls_of(
    sources: Mapping[str, str], source: Source, function: cst.FunctionDef
) -> Iterator[tuple[Source, cst.Call]]:
    """Calls by its name elsewhere: of a method on any object, of a function by itself or from its module."""
    name = function.name.value
    method = isinstance(source.parent(source.parent(function) or function), cst.ClassDef)
    for _, other in files_with(sources, name):
        for call in other.calls_named(name):
            if within(other, call, function):
                continue
            if method or isinstance(call.func, cst.Name) or _is_of_a_module(other, call.func):
                yield other, call


def _is_of_a_module(source: Source, called: cst.BaseExpression) -> bool:
    while isinstance(called, cst.Attribute):
        called = called.value
    imported = {each.evaluated_alias or each.evaluated_name.partition(".")[0] for each in source.every(cst.ImportAlias)}
    return isinstance(called, cst.Name) and called.value in imported


@per_program
def opened_beside_itself(sources: Mapping[str, str], source: Source, node: cst.CSTNode) -> str | None:
    """The file and line where a program goes through a loader while it goes through it already; None where it does not.

    `node` builds the loader. A function's parameter may be it by another name.
    """
    parsed = parse_all(sources)
    own = names_holding(sources, source, node)
    names = {*own, *(name for each in parsed.values() for name in _attributes_given(each))}
    for name in sorted(names) or [""]:
        held: dict[str, str] = {}
        passed = False
        for path, each in parsed.items():
            if name not in _may_be_gone_through(each) and not _may_open_parameters(each):
                continue
            for call in each.calls_named(*ITERATORS):
                its = [code for arg in call.args if _last(code := each.code(arg.value)) == name]
                where = f"{path}:{each.lines_of(call)[0]}"
                # `zip(image.size, mask.size)` goes through two objects, whose names differ.
                if len(its) > 1 and (name in own or len(set(its)) < len(its)):
                    return where
                assign = each.parent(call)
                if its and isinstance(assign, cst.Assign):
                    held[each.code(assign.targets[0].target)] = where
            for loop in each.walk(None, cst.For, cst.CompFor):
                if not isinstance(loop, cst.For | cst.CompFor):
                    continue
                through = any(_last(code) == name for code in _gone_through(each, loop.iter))
                if isinstance(loop, cst.For) and (again := _opened_in(parsed, each, loop, name)) is not None:
                    return f"{path}:{each.lines_of(again)[0]}"
                if through and isinstance(loop, cst.For):
                    other = _opened_by_call(parsed, each, loop, name)
                    if other is not None:
                        return other
                if through and any(each.every(cst.Yield, loop)):
                    held[f"{path}:{each.lines_of(loop)[0]}"] = f"{path}:{each.lines_of(loop)[0]}"
                else:
                    passed = passed or through
        if len(held) + passed > 1:
            return next(iter(held.values()))
    return None


@per_source
def _may_be_gone_through(source: Source) -> frozenset[str]:
    """The names and attributes in what loops go through and in what is given to calls that open something."""
    outline = source.outline
    gone: list[ast.expr | ast.keyword] = [each.iter for each in (*outline.loops, *outline.every(ast.comprehension))]
    for call in outline.every(ast.Call):
        gone += [*call.args, *call.keywords] if called_name(call) in ITERATORS else []
    nodes = (node for each in gone for node in ast.walk(each))
    return frozenset(
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Name)
    )


@per_source
def _may_open_parameters(source: Source) -> bool:
    """Whether a loop goes through a parameter of its function, and its turns do or hand it on."""
    for function in source.outline.every_function:
        given = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for loop in (each for each in ast.walk(function) if isinstance(each, ast.For | ast.AsyncFor)):
            through = {each.id for each in ast.walk(loop.iter) if isinstance(each, ast.Name)} & given
            if through and not through.isdisjoint(_taken_in(loop)):
                return True
    return False


def _taken_in(loop: ast.For | ast.AsyncFor) -> Iterator[str]:
    """The names that calls take, or that loops go through or set, in the turns of a loop."""
    for node in (node for statement in loop.body for node in ast.walk(statement)):
        taken: list[ast.expr] = []
        if isinstance(node, ast.Call):
            taken = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            taken = [node.iter, node.target]
        for each in taken:
            value = each.value if isinstance(each, ast.Starred) else each
            if isinstance(value, ast.Name):
                yield value.id


def names_holding(sources: Mapping[str, str], source: Source, node: cst.CSTNode) -> set[str]:
    """The last parts of the variables and attributes that hold what an expression, or its function, returns."""
    found: set[str] = set()
    pending, seen = [(source, node)], set[cst.CSTNode]()
    while pending:
        its, each = pending.pop()
        for above in its.ancestors(each):
            if isinstance(above, cst.Assign | cst.AnnAssign):
                targets = above.targets if isinstance(above, cst.Assign) else (above,)
                names = (name for each in targets for name in its.every(cst.Name, each.target))
                found |= {name.value for name in names} - {"self"}
            if isinstance(above, cst.FunctionDef) and above not in seen and above.name.value != "__init__":
                seen.add(above)
                pending += _calls_of(sources, its, above)
            if isinstance(above, cst.FunctionDef | cst.ClassDef):
                break
    return found


@per_source
def _attributes_given(source: Source) -> Sequence[str]:
    """Attributes that functions bind to their parameters, `self.loader = loader`: what they hold is seen elsewhere."""
    found: list[tuple[int, int, str]] = []
    for function in source.outline.every_function:
        given = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for target, value in _bound_in(function.body):
            if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in given:
                found.append((target.lineno, target.col_offset, target.attr))
    return [name for _, _, name in sorted(found)]


def _bound_in(body: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield what statements bind, and to what; without those of functions within."""
    pending = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.AnnAssign):
            yield node.target, node.value
        for target in node.targets if isinstance(node, ast.Assign) else ():
            value = node.value if isinstance(node, ast.Assign) else None
            yield target, value
            if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
                several = [*target.elts, *value.elts]
                if len(target.elts) == len(value.elts) and not any(isinstance(each, ast.Starred) for each in several):
                    yield from zip(target.elts, value.elts, strict=True)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            pending.extend(ast.iter_child_nodes(node))


def _last(code: str) -> str:
    return code.rpartition(".")[2]


def _gone_through(source: Source, node: cst.BaseExpression) -> list[str]:
    """The code of the names and attributes that an expression goes through: `loader` of `enumerate(tqdm(loader))`."""
    if isinstance(node, cst.Call) and call_name(node) in ADAPTERS:
        return [code for arg in node.args for code in _gone_through(source, arg.value)]
    return [source.code(node)] if isinstance(node, cst.Name | cst.Attribute) else []


def _opened_by_call(sources: Mapping[str, Source], source: Source, loop: cst.For, loader: str) -> str | None:
    """Return where a function that the turns of a loop call goes through the loader, by the name that the loop has for
    it."""
    called = {call_name(call) for call in source.every(cst.Call, loop.body)}
    for path, other in sources.items():
        if called.isdisjoint(other.function_names) or loader not in _may_be_gone_through(other):
            continue
        for function in other.every(cst.FunctionDef):
            if function.name.value not in called or within(source, loop, function):
                continue
            for inner in other.walk(function, cst.For, cst.CompFor):
                through = _gone_through(other, inner.iter) if isinstance(inner, cst.For | cst.CompFor) else []
                given = {each.name.value for each in other.every(cst.Param, function.params)}
                if any(_last(code) == loader and code not in given for code in through):
                    return f"{path}:{other.lines_of(inner)[0]}"
    return None


def _opened_in(sources: Mapping[str, Source], source: Source, loop: cst.For, loader: str) -> cst.CSTNode | None:
    """Return where the turns of a loop through the loader go through it too, or hand it to whoever may."""
    function = source.inside(loop, cst.FunctionDef)
    given = {each.name.value for each in source.every(cst.Param, function.params)} if function is not None else set()
    for code in _gone_through(source, loop.iter):
        if _last(code) != loader and code not in given:
            continue
        for each in source.named(_last(code), loop.body):
            user = source.parent(whole(source, each))
            taker = source.parent(user) if isinstance(user, cst.Arg) else None
            asks = isinstance(taker, cst.Call) and isinstance(user, cst.Arg) and _only_asks(sources, taker, user)
            same = source.code(whole(source, each)) == code
            if same and not asks and isinstance(user, cst.Arg | cst.For | cst.CompFor):
                return each
    return None


def _only_asks(sources: Mapping[str, Source], call: cst.Call, given: cst.Arg) -> bool:
    """Whether what a call is given is only asked for its length and the like: by the functions of that name too."""
    name = call_name(call)
    if name in _ONLY_ASK:
        return True
    if not isinstance(call.func, cst.Name) or any(arg.star for arg in call.args):
        return False
    functions = [(source, each) for source in sources.values() for each in source.functions_named(name)]
    parameters = [_parameter_given(each, call, given) for _, each in functions]
    return bool(functions) and all(
        parameter is not None and _is_only_asked(source, function, parameter)
        for (source, function), parameter in zip(functions, parameters, strict=True)
    )


def _parameter_given(function: cst.FunctionDef, call: cst.Call, given: cst.Arg) -> str | None:
    listed = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    if given.keyword is not None:
        named = {*listed, *(each.name.value for each in function.params.kwonly_params)}
        return given.keyword.value if given.keyword.value in named else None  # one of `**options`
    at = list(call.args).index(given)
    return listed[at] if at < len(listed) and listed[0] not in {"self", "cls"} else None


def _is_only_asked(source: Source, function: cst.FunctionDef, name: str) -> bool:
    for each in source.named(name, function.body):
        user = source.parent(each)
        asker = source.parent(user) if isinstance(user, cst.Arg) and user.value is each else None
        if isinstance(asker, cst.Call) and call_name(asker) in _ONLY_ASK:
            continue
        if not isinstance(user, cst.Attribute) or (user.value is each and _is_called(source, user)):
            return False
    return True


def _is_called(source: Source, node: cst.CSTNode) -> bool:
    call = source.parent(node)
    return isinstance(call, cst.Call) and call.func is node
