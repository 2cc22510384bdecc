"""Values that a program keeps by name: options of its command line, fields of its classes, keys of its dictionaries."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal, string, string_key
from diagnose.source.tree.memo import files_with, per_source
from diagnose.source.tree.syntax import Source

_HOLDERS = frozenset({"Namespace", "SimpleNamespace", "EasyDict", "DictConfig", "AttrDict", "ConfigDict"})
_SWITCH = ".BooleanOptionalAction, default={}"


@dataclass(frozen=True, slots=True)
class Default:
    """An expression that a name has where nothing else is given."""

    value: cst.BaseExpression
    template: str = "{}"
    """What is written in the place of `value`, around the new one."""
    stands_for: bool | None = None
    """The value that an expression of another meaning stands for: `action="store_true"` is False."""
    last: cst.BaseExpression | None = None
    """The end of what is replaced, where that is more than `value`."""


def defaults_of(source: Source, name: str) -> Iterator[Default]:
    """Defaults of command-line options and of class fields with that name."""
    for call in sorted([*options_named(source, name), *source.calls_named("set_defaults")], key=source.extent):
        if call_name(call) != "set_defaults":
            yield from _option(source, call)
        elif (given := argument(call, name)) is not None:
            yield Default(given.value)
    if name not in _variables(source):
        return
    for node in source.every(cst.AnnAssign):
        named = isinstance(node.target, cst.Name) and node.target.value == name
        if named and node.value is not None and _is_field(source, node):
            yield Default(field_default(node.value))
    for assign in source.every(cst.Assign):
        target = assign.targets[0].target
        if isinstance(target, cst.Name) and target.value == name and _is_field(source, assign):
            yield Default(assign.value)


@per_source
def _variables(source: Source) -> frozenset[str]:
    """The variables that assignments bind first, those of classes among them; the file is not parsed for them."""
    assigned = (each.targets[0] for each in source.outline.every(ast.Assign))
    targets = [*assigned, *(each.target for each in source.outline.every(ast.AnnAssign))]
    return frozenset(each.id for each in targets if isinstance(each, ast.Name))


def options_named(source: Source, name: str) -> Sequence[cst.Call]:
    """The declarations of options of a command line that fill the attribute of that name, in the order of the text."""
    return _options(source).get(name, ())


@per_source
def _options(source: Source) -> Mapping[str, Sequence[cst.Call]]:
    found: dict[str, list[cst.Call]] = {}
    for call in source.calls_named("add_argument", "option"):
        if (name := destination_of(call)) is not None:
            found.setdefault(name, []).append(call)
    return found


def _option(source: Source, call: cst.Call) -> Iterator[Default]:
    default = argument(call, "default")
    action = argument(call, "action")
    told = string(action.value) if action is not None else None
    kept = literal(default.value) if default is not None else None
    if action is None or told not in {"store_true", "store_false"}:
        yield from [Default(default.value)] if default is not None else []
    elif told == "store_true" and (default is None or (kept is not None and kept.value is False)):
        # With another default alone, no word of the command line would give the old value.
        follows = default is None or call.args.index(default) == call.args.index(action) + 1
        module = _argparse(source, call)
        if follows and module is not None and _may_have_off(source, call):
            yield Default(action.value, module + _SWITCH, False, default.value if default is not None else None)
    elif default is not None and (kept is None or kept.value is (told == "store_true")):
        yield Default(default.value)


def _may_have_off(source: Source, call: cst.Call) -> bool:
    """Whether argparse can give an option a `--no-…`: there is none yet."""
    words = [option.lstrip("-") for option in option_names(call) if option.startswith("--")]
    taken = any(f"{quote}--no{dash}{word}{quote}" in source.text for word in words for dash in "-_" for quote in "\"'")
    return bool(words) and not taken


def _argparse(source: Source, call: cst.Call) -> str | None:
    """The name that argparse has where a call stands; None where it has none for certain."""
    for above in source.ancestors(call):
        block = above.body if isinstance(above, cst.FunctionDef) else above
        lines = block.body if isinstance(block, cst.IndentedBlock | cst.Module) else ()
        for small in (small for line in lines if isinstance(line, cst.SimpleStatementLine) for small in line.body):
            for alias in small.names if isinstance(small, cst.Import) else ():
                if source.code(alias.name) == "argparse":
                    return source.code(alias.asname.name) if alias.asname is not None else "argparse"
    return None


def destination_of(call: cst.Call) -> str | None:
    """The attribute that `add_argument` fills: `dest`, else the first long option, else the first one."""
    given = argument(call, "dest")
    if given is not None:
        return string(given.value)
    options = option_names(call)
    longest = next((option for option in options if option.startswith("--")), options[0] if options else None)
    return longest.lstrip("-").split("/")[0].replace("-", "_") if longest else None


def option_names(call: cst.Call) -> list[str]:
    """The strings that a declaration of an option begins with."""
    return [text for arg in call.args if arg.keyword is None and (text := string(arg.value)) is not None]


def option_words(source: Source, name: str, words: Sequence[str]) -> str | None:
    """The word of a command line that gives the option of that name, if one does."""
    options = {f"{dashes}{name}" for dashes in ("--", "--no-", "--no_")}
    options |= {option.replace("_", "-") for option in options}
    for call in options_named(source, name):
        options |= {option for option in option_names(call) if option.startswith("-")}
    return next((word for word in words if word.split("=")[0] in options), None)


def option_default(parameter: cst.Param) -> cst.BaseExpression | None:
    """The default of a parameter that a command line fills: `workers: int = typer.Option(0)` means 0."""
    if isinstance(parameter.default, cst.Call):
        inner = argument(parameter.default, "default", 0)
        return inner.value if inner is not None else None
    return None


def _is_field(source: Source, node: cst.CSTNode) -> bool:
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.Lambda):
            return False
        if isinstance(above, cst.ClassDef):
            return True
    return False


def field_default(value: cst.BaseExpression) -> cst.BaseExpression:
    """The literal in `field(default=0)`, `Field(0)` and the like."""
    if isinstance(value, cst.Call) and call_name(value) in {"field", "Field", "ib", "attrib", "Option"}:
        inner = argument(value, "default", 0)
        return inner.value if inner is not None else value
    return value


def assigned(source: Source, name: str) -> Sequence[cst.BaseExpression]:
    """Values set by name over any default: `x.name = value`, `x["name"] = value`, and fields of a constructor."""
    return _assigned(source, name) if name in _assigned_names(source) else ()


@per_source
def _assigned(source: Source, name: str) -> Sequence[cst.BaseExpression]:
    return tuple(_every_assigned(source, name))


def _every_assigned(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    fields = [
        source.inside(node, cst.ClassDef)
        for node in source.every(cst.AnnAssign)
        if isinstance(node.target, cst.Name) and node.target.value == name and _is_field(source, node)
    ]
    classes = {each.name.value for each in fields if each is not None}
    for node in source.every(cst.Assign):
        for target in node.targets:
            found = target.target
            if isinstance(found, cst.Attribute) and found.attr.value == name and source.code(found.value) != "self":
                yield node.value
            if isinstance(found, cst.Subscript) and string_key(found) == name:
                yield node.value
    for call in source.calls_named(*classes, *_HOLDERS):
        if (given := argument(call, name)) is not None:
            yield given.value


@per_source
def _assigned_names(source: Source) -> frozenset[object]:
    """The keywords of all calls, and the attributes and the keys that assignments set."""
    targets = [target for each in source.outline.every(ast.Assign) for target in each.targets]
    keys = (each.slice for each in targets if isinstance(each, ast.Subscript))
    return frozenset(
        {each.arg for each in source.outline.every(ast.keyword)}
        | {each.attr for each in targets if isinstance(each, ast.Attribute)}
        | {each.value for each in keys if isinstance(each, ast.Constant)}
    )


def keys_of(source: Source, name: str, below: cst.CSTNode | None = None) -> Iterator[cst.BaseExpression]:
    """Values of a key in written dictionaries, `{"name": value}` and `dict(name=value)`, of a file or an expression."""
    for node in source.walk(below, cst.DictElement, cst.Call):
        if isinstance(node, cst.DictElement) and string(node.key) == name:
            yield node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "dict":
            given = argument(node, name)
            if given is not None:
                yield given.value


def sets_attribute(sources: Mapping[str, str], name: str) -> bool:
    """Whether a program gives anything's attribute of that name a value, `module.p = 0.1`."""
    for _, source in files_with(sources, f".{name}"):
        for target in source.every(cst.AssignTarget):
            if isinstance(target.target, cst.Attribute) and target.target.attr.value == name:
                return True
    return False
