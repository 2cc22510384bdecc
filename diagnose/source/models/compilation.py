"""The program's own use of torch.compile, the class of its model, and the blocks that repeat in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from diagnose.model import Site
from diagnose.source.dataflow.flow import within
from diagnose.source.models.model_construction import SAME_MODULE, Built, built_as, built_model
from diagnose.source.training.model_calls import is_model
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.built_classes import Classes
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with, parse_all, per_program
from diagnose.source.tree.syntax import Source
from diagnose.source.tree.text_lines import matches


@dataclass(frozen=True)
class Compiled:
    """One use of torch.compile."""

    path: str
    source: Source = field(repr=False)
    node: cst.Call | cst.Decorator = field(repr=False)
    target: str
    """The code of what is compiled; for a decorator the name of the function or class."""

    @property
    def condition(self) -> cst.If | None:
        """The innermost `if` that decides on it."""
        below: cst.CSTNode = self.node
        for above in self.source.ancestors(self.node):
            if isinstance(above, cst.FunctionDef | cst.ClassDef):
                return None
            if isinstance(above, cst.If) and below is above.body:
                return above
            below = above
        return None


_COMPILE = re.compile(r"(?<!\bre\.)\bcompile\b")
"""What a file holds that compiles more than regular expressions."""
_OF_KERAS = frozenset({"optimizer", "loss", "metrics"})
"""Keyword arguments by which `compile` is that of a Keras model, and not torch's."""
_MODULES = re.compile(
    r"torch\.nn\.(?:modules\.(?:\w+\.)?|parallel\.)?(?!(?:Uninitialized)?Parameter$|Buffer$)[A-Z]\w*"
    r"|torchvision\.models\.(?:[a-z]\w*\.)*(?!get_(?!model$)|list_)\w+(?<!_Weights)"
)
"""Classes of modules, and torchvision's functions that build them."""
_MOST_NAMES = 4  # names behind names
_ASKED = "(?:named_)?parameters|train|zero_grad|(?:load_)?state_dict"


@per_program
def compilations(sources: Mapping[str, str]) -> tuple[Compiled, ...]:
    """Every use of torch.compile, or of a module's own `compile`, in the order of the text."""
    found: list[Compiled] = []
    for path, source in parse_all(sources).items():
        if not matches(_COMPILE, source.text) or not _names_compile(source):
            continue
        imported = _imported(source)
        for call in source.every(cst.Call):
            target = _compiled_by(source, call, imported)
            if target is not None:
                found.append(Compiled(path, source, call, target))
        for decorator in source.every(cst.Decorator):
            owner = source.parent(decorator)
            called = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
            if source.is_called(called, "torch.compile") and isinstance(owner, cst.FunctionDef | cst.ClassDef):
                found.append(Compiled(path, source, decorator, owner.name.value))
    return tuple(found)


def _names_compile(source: Source) -> bool:
    """Whether the code itself, and no comment, names something `compile` that is not `re.compile`."""
    attributes = (each.value for each in source.outline.every(ast.Attribute) if each.attr == "compile")
    return (
        any(not (isinstance(each, ast.Name) and each.id == "re") for each in attributes)
        or any(each.id == "compile" for each in source.outline.every(ast.Name))
        or bool(source.imported_as("compile"))
    )


def _compiled_by(source: Source, call: cst.Call, imported: set[str]) -> str | None:
    if source.is_called(call.func, "torch.compile"):
        given = _compiled_part(call)
        return source.code(given) if given is not None else None
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "compile":
        return None
    owner = source.code(call.func.value)
    others = any(arg.keyword is None or arg.keyword.value in _OF_KERAS for arg in call.args)
    # `re.compile(…)` is a module's function, and `pattern.compile("…")` takes what is to be compiled.
    named = isinstance(call.func.value, cst.Name | cst.Attribute | cst.Subscript)
    return owner if named and not others and owner.partition(".")[0] not in imported else None


def _compiled_part(call: cst.Call) -> cst.BaseExpression | None:
    """Return what a call of torch.compile is to compile."""
    return next((arg.value for arg in call.args if arg.keyword is None or arg.keyword.value == "model"), None)


def _imported(source: Source) -> set[str]:
    """Names that imports bind."""
    names: set[str] = set()
    for alias in source.every(cst.ImportAlias):
        bound = alias.asname.name if alias.asname is not None else alias.name
        names.add(source.code(bound).partition(".")[0])
    return names


@dataclass(frozen=True)
class ModelClass:
    """The class that a model is made of."""

    path: str
    source: Source = field(repr=False)
    definition: cst.ClassDef = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.definition.name.value

    @property
    def has_compile(self) -> bool:
        """Whether it has a method `compile` of its own, in the place of `Module.compile`."""
        own = self.definition.body.body
        return any(isinstance(each, cst.FunctionDef) and each.name.value == "compile" for each in own)

    @property
    def steps_through_time(self) -> bool:
        """Whether the model calls its modules once for each moment of a series."""
        for loop in self.source.every(cst.For, self.definition):
            over = self.source.code(loop.iter)
            if over.startswith("range(") and re.search(r"\.shape\[|\.size\(|\blen\(\w+\)", over):
                return any(len(call.args) > 1 for call in self.source.every(cst.Call, loop.body))
        return False

    def repeated_blocks(self, sources: Mapping[str, str]) -> str | None:
        """The attribute path of the one list of blocks of a class of the program's own: `blocks`, `transformer.h`."""
        classes = _classes(sources)
        found = [
            path
            for call in self.source.every(cst.Call, self.definition)
            if call_name(call) in {"ModuleList", "Sequential"} and _repeats(call) in classes
            for path in [_attribute_of(self.source, call)]
            if path is not None
        ]
        return found[0] if len(set(found)) == 1 else None


def model_class(built: Built, sources: Mapping[str, str], left: int = _MOST_NAMES) -> ModelClass | None:
    """The class of the program's own that a model is an instance of, where the text shows it.

    `left` other names for the model are followed at most.
    """
    classes = _classes(sources)
    for statement in built.assigned:
        value = _own_value(built, statement)
        for call in built.source.every(cst.Call, value) if value is not None else ():
            if call_name(call) in classes:
                return classes[call_name(call)]
        if isinstance(value, cst.Name) and value.value != built.name and left > 0:
            given = built_as(built.path, built.source, built.scope, value.value, sources)
            return model_class(given, sources, left - 1) if given is not None else None
    return None


def inner_model(outer: ModelClass, sources: Mapping[str, str], unused: Classes = frozenset()) -> Built | None:
    """Return where the module is built that a class keeps as an attribute and calls; None unless it is the one of a
    class of the program's, and no class but `unused` ones is derived from that which keeps it."""
    source = outer.source
    for path, other in files_with(sources, outer.name):
        derived = (made for made in other.every(cst.ClassDef) if (path, made.name.value) not in unused)
        bases = (other.code(base.value) for made in derived for base in made.bases)
        if any(base.rpartition(".")[2] == outer.name for base in bases):
            return None
    calls = (call.func for call in source.every(cst.Call, outer.definition) if isinstance(call.func, cst.Attribute))
    names = dict.fromkeys(code for code in map(source.code, calls) if re.fullmatch(r"self\.\w+", code))
    scopes = [each for each in source.every(cst.FunctionDef, outer.definition) if each.name.value == "__init__"]
    traced = (built_as(outer.path, source, scope, name, sources) for scope in scopes[:1] for name in names)
    found = {(built.path, built.name): built for built in traced if built is not None and _is_module(built, sources)}
    inner = next(iter(found.values())) if len(found) == 1 else None
    return inner if inner is not None and model_class(inner, sources) not in (None, outer) else None


def models_of(step: TrainingStep, sources: Mapping[str, str]) -> Iterator[Built]:
    """Yield where the models are built whose outputs reach the loss of a step, the one that gets gradients first.

    Of several, and where a function is given it, one is taken only where the program asks for its parameters, or its
    class is seen to be one of modules: a metric, a tokenizer or an engine may be named like a model. With each come
    those of its class that the step calls, such as the second of two critics, and their targets.
    """
    direct = (step.source.code(call.func) for call in step.forward)
    names = dict.fromkeys([step.model, *(name for name in direct if is_model(step.source, name))])
    for name in names:
        its = replace(step, model=name)
        built = built_model(its, sources) if name is not None else None
        called = len(names) == 1 and not _is_passed_on(step, name)
        if built is not None and (called or _has_parameters(step, built, name) or _is_module(built, sources)):
            yield from (built, *_twins(its, built, sources))


def _is_passed_on(step: TrainingStep, name: str | None) -> bool:
    """Whether the step hands a model to a function, which calls it or something of it."""
    return any(step.source.code(arg.value) == name for call in step.forward for arg in call.args)


def _twins(step: TrainingStep, built: Built, sources: Mapping[str, str]) -> Iterator[Built]:
    made = model_class(built, sources)
    called = dict.fromkeys(step.source.code(call.func) for call in step.source.every(cst.Call, step.turn))
    for name in called if made is not None else ():
        other = built_model(replace(step, model=name), sources) if name != step.model else None
        if other is not None and model_class(other, sources) == made:
            yield other


def _has_parameters(step: TrainingStep, built: Built, name: str | None) -> bool:
    """Whether the program asks a model for its parameters, or sets its mode, where it is built or trained."""
    asked = re.compile(rf"(?<![\w.])(?:{re.escape(name or built.name)}|{re.escape(built.name)})\.(?:{_ASKED})\(")
    return any(asked.search(text) for text in (step.source.text, built.source.text))


def _is_module(built: Built, sources: Mapping[str, str]) -> bool:
    """Whether all that a name is given is a module, or made of what it was before: `net = accelerator.prepare(net)`."""
    values = [_own_value(built, statement) for statement in built.assigned]
    new = [each for each in values if each is not None and not _reads(built, each)]
    return bool(new) and all(_makes_module(built.source, each, _classes(sources)) for each in new)


def _reads(built: Built, value: cst.BaseExpression) -> bool:
    kind = cst.Attribute if "." in built.name else cst.Name
    return any(built.source.code(each) == built.name for each in built.source.every(kind, value))


def _makes_module(source: Source, value: cst.BaseExpression, classes: Mapping[str, ModelClass]) -> bool:
    """Whether an expression makes a module: `Encoder()`, `nn.Linear(8, 8).to(device)`."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and call_name(value) in SAME_MODULE:
        value = value.func.value
    return isinstance(value, cst.Call) and _of_modules(source, value.func, classes)


def _of_modules(
    source: Source, named: cst.BaseExpression, classes: Mapping[str, ModelClass], seen: frozenset[str] = frozenset()
) -> bool:
    """Whether a name is that of a class of modules, torch's or the program's own, or of a function that builds one."""
    if any(_MODULES.fullmatch(name) for name in source.names(named)):
        return True
    own = source.code(named).rpartition(".")[2]
    if own not in classes or own in seen:
        return False
    made = classes[own]
    return any(_of_modules(made.source, base.value, classes, seen | {own}) for base in made.definition.bases)


def _own_value(built: Built, statement: cst.Assign | cst.AnnAssign) -> cst.BaseExpression | None:
    """Return what a statement gives the model: of `encoder, decoder = Encoder(), Decoder()`, its own part."""
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
    value = statement.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        for element, given in zip(target.elements, value.elements, strict=True):
            if built.source.code(element.value) == built.name:
                return given.value
    return value


def _classes(sources: Mapping[str, str]) -> dict[str, ModelClass]:
    """Classes of the sources by name; those whose name is there twice are left out."""
    found: dict[str, list[ModelClass]] = {}
    for path, source in files_with(sources, "class "):
        for definition in source.every(cst.ClassDef):
            found.setdefault(definition.name.value, []).append(ModelClass(path, source, definition))
    return {name: owners[0] for name, owners in found.items() if len(owners) == 1}


def _repeats(call: cst.Call) -> str | None:
    """The class that a list of modules repeats: `Block` in `ModuleList([Block(c) for _ in range(n)])`."""
    if len(call.args) != 1:
        return None
    value = call.args[0].value
    if isinstance(value, cst.ListComp | cst.GeneratorExp):
        return call_name(value.elt) if isinstance(value.elt, cst.Call) else None
    if isinstance(value, cst.List) and value.elements:
        made = {call_name(each.value) for each in value.elements if isinstance(each.value, cst.Call)}
        return made.pop() if len(made) == 1 and len(value.elements) > 1 else None
    return None


def _attribute_of(source: Source, call: cst.Call) -> str | None:
    """Return where the class keeps it: under `self.name`, perhaps as an entry of a ModuleDict."""
    entry = ""
    for above in source.ancestors(call):
        if isinstance(above, cst.Arg) and above.keyword is not None:
            entry = f".{above.keyword.value}" + entry
        elif isinstance(above, cst.DictElement):
            entry = f".{string(above.key)}" + entry
        elif isinstance(above, cst.Call) and call_name(above) not in {"ModuleDict", "dict"}:
            return None
        elif isinstance(above, cst.Assign):
            target = source.code(above.targets[0].target)
            return target.removeprefix("self.") + entry if target.startswith("self.") else None
        elif isinstance(above, cst.BaseStatement):
            return None
    return None


def is_compiled(
    sources: Mapping[str, str], sites: Sequence[Site], path: str, source: Source, node: cst.CSTNode
) -> bool:
    """Whether torch.compile gets to see a node: the program compiles its model, or the function around the node."""
    ran = any(site.kind == "compile" for site in sites)
    for found in compilations(sources):
        owner = found.source.parent(found.node) if isinstance(found.node, cst.Decorator) else None
        if isinstance(owner, cst.FunctionDef):
            if found.path == path and source.text == found.source.text and within(source, node, owner):
                return True
        elif found.condition is None or ran:
            return True
    return False
