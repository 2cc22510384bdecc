"""Environment variables that a script sets for itself before it imports torch: `os.environ["…"] = "…"` and its like."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.source import read_source
from diagnose.source.tree.edits import ensure_import, insert_before
from diagnose.source.tree.syntax import Source, Splice, parse


@dataclass(frozen=True)
class Variable:
    """One variable that is set somewhere in a file."""

    name: str
    value: cst.BaseExpression
    statement: cst.BaseSmallStatement
    only_if_absent: bool
    """Whether it is set by `setdefault`, which leaves what the shell has set."""

    @property
    def literal(self) -> str | None:
        """The text that it is set to, where that is written out."""
        value = self.value.evaluated_value if isinstance(self.value, cst.SimpleString) else None
        return value if isinstance(value, str) else None


def variables(source: Source) -> Iterator[Variable]:
    """Every variable that a file sets under a name that is written out, in the order of the text."""
    for node in source.walk():
        if isinstance(node, cst.Assign) and len(node.targets) == 1:
            target = node.targets[0].target
            if isinstance(target, cst.Subscript) and _is_environ(source, target.value) and len(target.slice) == 1:
                index = target.slice[0].slice
                name = _text(index.value) if isinstance(index, cst.Index) else None
                if name is not None:
                    yield Variable(name, node.value, node, only_if_absent=False)
        elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            yield from _called(source, node, node.value)


def _called(source: Source, statement: cst.Expr, call: cst.Call) -> Iterator[Variable]:
    if not isinstance(call.func, cst.Attribute) or not _is_environ(source, call.func.value):
        return
    if call.func.attr.value == "setdefault" and len(call.args) == 2:
        name = _text(call.args[0].value)
        if name is not None:
            yield Variable(name, call.args[1].value, statement, only_if_absent=True)
    elif call.func.attr.value == "update":
        for arg in call.args:
            if arg.keyword is not None:
                yield Variable(arg.keyword.value, arg.value, statement, only_if_absent=False)
            elif isinstance(arg.value, cst.Dict):
                for element in arg.value.elements:
                    name = _text(element.key) if isinstance(element, cst.DictElement) else None
                    if name is not None:
                        yield Variable(name, element.value, statement, only_if_absent=False)


def _is_environ(source: Source, node: cst.BaseExpression) -> bool:
    return source.code(node).endswith("environ") and (
        "os.environ" in source.names(node) or source.code(node) == "os.environ"
    )


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def before_imports(source: Source, lines: Sequence[str]) -> list[Splice]:
    """Lines that use `os`, at the top level before the first import of anything but the standard library.

    Empty where the file imports nothing else.
    """
    point = next((statement for statement in source.module.body if _imports_more(statement)), None)
    if point is None:
        return []
    start = source.span(point)[0]
    os, imports = ensure_import(source, "os")
    known = any(
        isinstance(small, cst.Import) and any(source.code(alias.name) == "os" for alias in small.names)
        for statement in source.module.body
        if isinstance(statement, cst.SimpleStatementLine) and source.span(statement)[0] < start
        for small in statement.body
    )
    if os != "os" or not (known or (imports and imports[0].start <= start)):
        imports = [insert_before(source, point, ["import os", ""])]  # it is imported, but only further down
    set_apart = start == 0 or not source.text[:start].rstrip(" ").splitlines()[-1].strip()
    beside = [edit.text for edit in imports if edit.start == start]
    apart = (set_apart and not beside) or any(text.endswith(2 * source.newline) for text in beside)
    return [*imports, insert_before(source, point, [*([] if apart else [""]), *lines, ""])]


def _imports_more(statement: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    """Whether a statement of the top level imports a module that is not of the standard library."""
    smalls = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    for small in smalls:
        if isinstance(small, cst.Import):
            modules = [alias.name for alias in small.names]
        elif isinstance(small, cst.ImportFrom):
            if small.relative or small.module is None:
                return True
            modules = [small.module]
        else:
            continue
        if any(_top(module) not in sys.stdlib_module_names for module in modules):
            return True
    return False


def _top(module: cst.BaseExpression) -> str:
    while isinstance(module, cst.Attribute):
        module = module.value
    return module.value if isinstance(module, cst.Name) else ""


def with_script_environment(program: Program, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with what the script sets at its top before it imports anything but the standard library.

    A process that imports torch before it runs the script would otherwise have begun without it: NumPy and torch read
    some variables when they are imported.
    """
    declared = dict(environment)
    try:
        source = parse(read_source(program.entry).text) if program.entry is not None else None
    except InputError:
        source = None
    if source is None:
        return declared
    early: set[cst.CSTNode] = set()
    for statement in source.module.body:
        if _imports_more(statement) or not isinstance(statement, cst.SimpleStatementLine):
            break
        early |= set(statement.body)
    for variable in variables(source):
        kept = variable.only_if_absent and variable.name in environment
        if variable.statement in early and variable.literal is not None and not kept:
            declared[variable.name] = variable.literal
    return declared
