"""Where the program builds the model that a training step calls: the statements that give the name its value.

A parameter is followed to what the callers pass for it, an attribute of `self` to the method that sets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from diagnose.source.dataflow.flow import Scope, loops_around, scope_of
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source, parse

_MOST_CALLS = 6
"""Functions that a model is followed through before it is given up."""
SAME_MODULE = frozenset({"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_"})
"""Methods of a module that give the module itself."""


@dataclass(frozen=True)
class Built:
    """Where a model comes from."""

    path: str
    source: Source = field(repr=False)
    scope: Scope = field(repr=False)
    name: str
    """The variable, or `self.name`, in that scope."""
    assigned: tuple[cst.Assign | cst.AnnAssign, ...] = field(repr=False)
    """Every statement that gives it a value there, in the order of the text: built, moved, wrapped, compiled."""

    @property
    def statement(self) -> cst.Assign | cst.AnnAssign:
        """The last of them that runs in any case; the first one where each stands under a condition."""
        plain = [each for each in self.assigned if _is_unconditional(self.source, each, self.scope)]
        return plain[-1] if plain else self.assigned[0]


def built_model(step: TrainingStep, sources: Mapping[str, str]) -> Built | None:
    """Return where the model of a step is built; None where the text does not tell."""
    if step.model is None:
        return None
    built = built_as(step.path, step.source, step.scope, step.model, sources)
    if built is None or (
        isinstance(built.scope, cst.FunctionDef) and not isinstance(built.scope.body, cst.IndentedBlock)
    ):
        return None  # a function on one line has no room for another
    return _before(step, built)


def _before(step: TrainingStep, built: Built) -> Built:
    """Return the construction without bindings that come when training is over: `model = torch.load(path)` at the
    end of a script."""
    source = step.source
    if built.source is not source:
        return built
    begins: list[cst.CSTNode] = [step.backward]
    if built.scope is not step.scope and isinstance(step.scope, cst.FunctionDef):
        trains = _with_callers(source, step.scope, built.scope)
        named = [call for call in source.every(cst.Call) if call_name(call) in trains]
        begins = [call for call in named if scope_of(source, call) is built.scope]
    end = min((source.span(each)[0] for each in begins), default=len(source.text))
    early = tuple(each for each in built.assigned if source.span(each)[1] <= end)
    return replace(built, assigned=early) if early else built


def _with_callers(source: Source, function: cst.FunctionDef, outside: Scope) -> set[str]:
    """The names of a function and of those of its file through which it is called, without the one it is called from.

    `model = train_model(model, loader)` trains by an epoch function, and gives the model that was built before.
    """
    found, new = set[str](), {function.name.value}
    while new:
        found |= new
        callers = [source.inside(call, cst.FunctionDef) for call in source.every(cst.Call) if call_name(call) in new]
        new = {each.name.value for each in callers if each is not None and each is not outside} - found
    return found


def built_as(path: str, source: Source, scope: Scope, name: str, sources: Mapping[str, str]) -> Built | None:
    """Return where what a scope calls by a name is built; None where the text does not tell."""
    return _trace(path, source, scope, name, sources, _MOST_CALLS)


def _trace(path: str, source: Source, scope: Scope, name: str, sources: Mapping[str, str], left: int) -> Built | None:
    if left == 0:
        return None
    if name.startswith("self."):
        return _attribute(path, source, scope, name, sources, left)
    if "." in name:
        return None
    assigned = _assigned(source, scope, name)
    if isinstance(scope, cst.FunctionDef) and name in _parameters(scope):
        passed = _argument(path, scope, name, sources)
        if passed is not None:
            found = _trace(passed.path, passed.source, passed.scope, passed.code, sources, left - 1)
            if found is not None:
                return found
    if assigned:
        other = _alias(source, scope, assigned, name)
        if isinstance(scope, cst.FunctionDef) and other is not None and _is_given(source, scope, other):
            return _part(path, source, scope, name, other, assigned[0], sources, left)
        if isinstance(scope, cst.FunctionDef) and _is_taken(scope, assigned[0]):
            return None  # each call of the function takes the same model, which is built elsewhere
        found = _trace(path, source, scope, other, sources, left - 1) if other is not None else None
        return found or Built(path, source, scope, name, _without_moves_of_turns(source, assigned, name))
    around = source.inside(scope, cst.FunctionDef) if scope is not source.module else None
    if around is not None:
        return _trace(path, source, around, name, sources, left - 1)
    if scope is not source.module:
        return _trace(path, source, source.module, name, sources, left - 1)
    return None


def _attribute(
    path: str, source: Source, scope: Scope, name: str, sources: Mapping[str, str], left: int
) -> Built | None:
    owner = source.inside(scope, cst.ClassDef)
    return _of_class(path, source, owner, name, sources, left) if owner is not None else None


def _of_class(
    path: str, source: Source, owner: cst.ClassDef, name: str, sources: Mapping[str, str], left: int
) -> Built | None:
    builds = _building(source, owner, name)
    if not builds and left > 0:
        above = _base(source, owner, sources)
        return _of_class(*above, name, sources, left - 1) if above is not None else None
    if len(builds) != 1:
        return None
    methods = list(builds)
    assigned = builds[methods[0]]
    value = assigned[0].value
    moved = all(_moves(source, each, name) for each in assigned[1:])
    if moved and isinstance(value, cst.Name) and value.value in _parameters(methods[0]):
        found = _trace(path, source, methods[0], value.value, sources, left - 1)
        if found is not None:
            return found
    return Built(path, source, methods[0], name, assigned)


def _base(source: Source, owner: cst.ClassDef, sources: Mapping[str, str]) -> tuple[str, Source, cst.ClassDef] | None:
    """The one class of the program's that a class is derived from."""
    names = {source.code(each.value).rpartition(".")[2] for each in owner.bases}
    found = [
        (path, other, each)
        for path, other in files_with(sources, *(f"class {name}" for name in names))
        for each in other.classes_named(*names)
    ]
    return found[0] if len(found) == 1 else None


def _building(
    source: Source, owner: cst.ClassDef, name: str
) -> dict[cst.FunctionDef, tuple[cst.Assign | cst.AnnAssign, ...]]:
    """The methods that give an attribute its first value, with all they give it; the others wrap, move or forget it.

    More than one, where any of them may be the one: a name of a file in `__init__`, and a model made of it later.
    """
    methods = {node: _assigned(source, node, name) for node in source.every(cst.FunctionDef, owner)}
    methods = {node: assigned for node, assigned in methods.items() if assigned}
    builds = {node: given for node, given in methods.items() if not all(_keeps(source, each, name) for each in given)}
    early = [node for node in builds if node.name.value == "__init__"]
    if len(builds) > 1 and early and all(_is_module(each) for each in builds[early[0]]):
        return {early[0]: builds[early[0]]}
    return builds or dict(list(methods.items())[:1])


def _keeps(source: Source, statement: cst.Assign | cst.AnnAssign, name: str) -> bool:
    """Whether an attribute is made of what it was before, or given nothing."""
    value = statement.value
    if value is None or (isinstance(value, cst.Name) and value.value == "None"):
        return True
    return any(source.code(each) == name for each in source.every(cst.Attribute, value))


def _is_module(statement: cst.Assign | cst.AnnAssign) -> bool:
    """Whether a value is evidently a module: a parameter's, or one of a class, which has a capital letter."""
    value = statement.value
    return isinstance(value, cst.Name) or (isinstance(value, cst.Call) and call_name(value)[:1].isupper())


def _alias(source: Source, scope: Scope, assigned: Sequence[cst.Assign | cst.AnnAssign], name: str) -> str | None:
    """Return what a variable is another name or a part of: `model = self.model`, `model, config = self.model, …`, and
    the parameter `models` of `model, critic = models`."""
    statement = assigned[0]
    if len(assigned) != 1 or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    targets, values = _elements(target), _elements(statement.value)
    if isinstance(statement.value, cst.Name):
        other = statement.value.value
        stays = all(source.span(each)[1] <= source.span(statement)[0] for each in _assigned(source, scope, other))
        return other if (isinstance(target, cst.Name) and stays) or _is_given(source, scope, other) else None
    code = [source.code(target) for target in targets]
    if len(targets) != len(values) or name not in code:
        return None
    value = source.code(values[code.index(name)])
    return value if re.fullmatch(r"self\.\w+", value) else None


def _is_given(source: Source, scope: Scope, name: str) -> bool:
    """Whether a name is a parameter of a function, which does not bind it anew."""
    return isinstance(scope, cst.FunctionDef) and name in _parameters(scope) and not _assigned(source, scope, name)


def _is_taken(scope: cst.FunctionDef, statement: cst.Assign | cst.AnnAssign) -> bool:
    """Whether a value is an item or an attribute of a parameter: `model = state["model"]`."""
    value = statement.value
    while isinstance(value, cst.Subscript | cst.Attribute):
        value = value.value
    if value is statement.value or not isinstance(value, cst.Name):
        return False
    return value.value not in {"self", "cls"} and value.value in _parameters(scope)


def _part(
    path: str,
    source: Source,
    scope: cst.FunctionDef,
    name: str,
    parameter: str,
    statement: cst.Assign | cst.AnnAssign,
    sources: Mapping[str, str],
    left: int,
) -> Built | None:
    """Return where the callers build what a function takes out of a parameter; None where their code does not tell."""
    passed = _argument(path, scope, parameter, sources)
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
    code = [source.code(each) for each in _elements(target)]
    values = [] if passed is None else _elements(cst.parse_expression(passed.code))
    if passed is None or name not in code or len(values) != len(code):
        return None
    value = cst.Module([]).code_for_node(values[code.index(name)])
    return _trace(passed.path, passed.source, passed.scope, value, sources, left - 1)


def _moves(source: Source, statement: cst.Assign | cst.AnnAssign, name: str) -> bool:
    """`self.model = self.model.to(device)`: a module stays the same one."""
    value = statement.value
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and call_name(value) in SAME_MODULE:
        value = value.func.value
    return value is not None and value is not statement.value and source.code(value) == name


def _without_moves_of_turns(
    source: Source, assigned: tuple[cst.Assign | cst.AnnAssign, ...], name: str
) -> tuple[cst.Assign | cst.AnnAssign, ...]:
    """Return the bindings without those that the turns of a loop give a model built before it: `model =
    model.train()`."""
    built = loops_around(source, assigned[0])
    return tuple(
        each
        for each in assigned
        if not (_moves(source, each, name) and any(loop not in built for loop in loops_around(source, each)))
    )


def _assigned(source: Source, scope: Scope, name: str) -> tuple[cst.Assign | cst.AnnAssign, ...]:
    found: list[cst.Assign | cst.AnnAssign] = []
    for node in source.walk(scope, cst.Assign, cst.AnnAssign):
        targets: list[cst.BaseExpression] = []
        if isinstance(node, cst.Assign):
            targets = [each for target in node.targets for each in _elements(target.target)]
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        if scope_of(source, node) is scope and any(source.code(target) == name for target in targets):
            assert isinstance(node, cst.Assign | cst.AnnAssign)
            found.append(node)
    return tuple(found)


def _elements(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The parts of `model, optimizer = …`."""
    if isinstance(target, cst.Tuple | cst.List):
        return [element.value for element in target.elements]
    return [target]


def _parameters(function: cst.FunctionDef) -> list[str]:
    given = function.params
    return [param.name.value for param in (*given.posonly_params, *given.params, *given.kwonly_params)]


@dataclass(frozen=True)
class _Passed:
    path: str
    source: Source
    scope: Scope
    code: str


def _argument(path: str, function: cst.FunctionDef, name: str, sources: Mapping[str, str]) -> _Passed | None:
    """Return what the one caller (or all of them alike) passes for a parameter."""
    called = function.name.value
    parameters = _parameters(function)
    found: dict[tuple[str, str], _Passed] = {}
    wanted = _constructors(function, sources[path]) if called == "__init__" else {called}
    for file, source in files_with(sources, *wanted):
        for call in source.every(cst.Call):
            code = _argument_given(source, call, name, parameters) if call_name(call) in wanted else None
            if code is not None:
                found.setdefault((file, code), _Passed(file, source, scope_of(source, call), code))
    return next(iter(found.values())) if len(found) == 1 else None


def _constructors(function: cst.FunctionDef, text: str) -> set[str]:
    source = parse(text)
    if source is None:
        return set()
    return {
        owner.name.value
        for owner in source.every(cst.ClassDef)
        if any(function.deep_equals(each) for each in source.every(cst.FunctionDef, owner))
    }


def _argument_given(source: Source, call: cst.Call, name: str, parameters: list[str]) -> str | None:
    for arg in call.args:
        if arg.star:
            return None
        if arg.keyword is not None and arg.keyword.value == name:
            return source.code(arg.value)
    bound = parameters[:1] in (["self"], ["cls"])
    position = parameters.index(name) - bound
    positional = [arg for arg in call.args if arg.keyword is None]
    return source.code(positional[position].value) if 0 <= position < len(positional) else None


def _is_unconditional(source: Source, node: cst.CSTNode, scope: Scope) -> bool:
    for above in source.ancestors(node):
        if above is scope:
            return True
        if isinstance(above, cst.If | cst.Else | cst.Try | cst.ExceptHandler | cst.For | cst.While):
            return False
    return True
