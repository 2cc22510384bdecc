"""The functions of a file, what it calls and what it imports, read with Python's own parser.

It takes a tenth of the time of LibCST's, and keeps no layout: enough to see which code a step reaches and which files
hold what a question is about, and too little to edit any.
"""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_Node = TypeVar("_Node", bound=ast.AST)
_CONVENTIONAL = {"torch": "torch", "nn": "torch.nn", "np": "numpy", "random": "random"}
"""Names by which all programs know a module, where no statement of a file binds them but `import *`."""
_OWN_TURN = ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass(frozen=True, eq=False)
class Function:
    """A function or method that is defined in no other function."""

    name: str
    number: int
    """Among all functions of the file, those within others too, in the order of the text."""
    is_method: bool
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @cached_property
    def called(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of functions and of methods that its body calls in every turn, as
        `diagnose.source.training.every_step.is_occasional` has it.
        """
        functions: set[str] = set()
        methods: set[str] = set()
        counters = {
            node.target.id
            for node in ast.walk(self.node)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and _is_integer(node.value)
        }
        pending: list[ast.AST] = list(self.node.body)
        while pending:
            node = pending.pop()
            if isinstance(node, _OWN_TURN):
                continue
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name):
                    functions.add(node.func.id)
                elif isinstance(node.func, ast.Attribute):
                    methods.add(node.func.attr)
            if isinstance(node, ast.If | ast.IfExp) and _counts(node.test, counters):
                pending.append(node.test)
            else:
                pending.extend(ast.iter_child_nodes(node))
        return frozenset(functions), frozenset(methods)


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _counts(test: ast.expr, counters: set[str]) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Mod):
            return True
        name = (
            node.id
            if isinstance(node, ast.Name)
            else node.attr
            if isinstance(node, ast.Attribute)
            else node.arg
            if isinstance(node, ast.keyword | ast.arg)
            else None
        )
        if name in counters:
            return True
    return False


def called_name(call: ast.Call) -> str:
    """The last part of what is called, as `diagnose.source.tree.syntax.call_name` has it."""
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def dotted_name(node: ast.AST) -> str | None:
    """The name of an expression as `libcst.helpers.get_full_name_for_node` has it: `torch.optim.Adam`, `f.step` of
    `f(x).step`; None of one without any.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted_name(node.value)
        return f"{inner}.{node.attr}" if inner is not None else None
    if isinstance(node, ast.Call):
        return dotted_name(node.func)
    return dotted_name(node.value) if isinstance(node, ast.Subscript) else None


class Outline:
    """A file's functions, and all of its nodes by their kinds."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree

    def every(self, kind: type[_Node]) -> Sequence[_Node]:
        """All nodes of a class, in no order."""
        return cast("Sequence[_Node]", self._of_kind.get(kind, ()))

    @cached_property
    def _of_kind(self) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            found.setdefault(type(node), []).append(node)
            pending.extend(ast.iter_child_nodes(node))
        return found

    @property
    def every_function(self) -> Sequence[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions, those within others too, in no order."""
        return [*self.every(ast.FunctionDef), *self.every(ast.AsyncFunctionDef)]

    @property
    def loops(self) -> Sequence[ast.For | ast.AsyncFor]:
        """All `for` loops, in no order."""
        return [*self.every(ast.For), *self.every(ast.AsyncFor)]

    @cached_property
    def called(self) -> frozenset[str]:
        """The last parts of all that is called."""
        return frozenset(map(called_name, self.every(ast.Call)))

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """All names in the code: of variables, attributes, arguments, functions, classes and imports."""
        found = {each.id for each in self.every(ast.Name)} | self.attributes | self.names | self.classes
        found.update(each.arg for each in self.every(ast.arg))
        found.update(each.arg or "" for each in self.every(ast.keyword))
        for alias in self.every(ast.alias):
            found.update(alias.name.split("."), (alias.asname or "",))
        for module in self.every(ast.ImportFrom):
            found.update((module.module or "").split("."))
        found.update(
            *(each.names for each in self.every(ast.Global)), *(each.names for each in self.every(ast.Nonlocal))
        )
        found.update(each.name or "" for each in self.every(ast.ExceptHandler))
        found.update(each.name or "" for each in self.every(ast.MatchAs))
        found.update(each.name or "" for each in self.every(ast.MatchStar))
        found.update(each.rest or "" for each in self.every(ast.MatchMapping))
        found.update(*(each.kwd_attrs for each in self.every(ast.MatchClass)))
        return frozenset(found)

    @cached_property
    def attributes(self) -> frozenset[str]:
        """The names of all attributes that are read or set."""
        return frozenset(each.attr for each in self.every(ast.Attribute))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions that are defined in no other function, in the order of the text."""
        return tuple(
            Function(node.name, number, is_method, node)
            for number, (node, is_method, inner) in enumerate(_defined(self.tree.body, is_method=False, inner=False))
            if not inner
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all functions, those within others too."""
        return frozenset(node.name for node, _, _ in _defined(self.tree.body, is_method=False, inner=False))

    @cached_property
    def free_names(self) -> frozenset[str]:
        """The names of the functions and classes that no class has as its own, those within functions too."""
        return frozenset(_free(self.tree.body, of_class=False))

    @cached_property
    def imports(self) -> Mapping[str, Mapping[str, bool]]:
        """The dotted names that imports bind names to, by those names, and whether each stands outside of all functions
        and classes.

        `from blocks import *` binds what blocks has: such names as modules go by in all programs are taken for those.
        """
        found: dict[str, dict[str, bool]] = {}
        for node, is_outer in _statements(self.tree.body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    full = alias.name if alias.asname is not None else name
                    found.setdefault(name, {})[full] = is_outer
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    full = f"{module}.{alias.name}" if module.strip(".") else f"{module}{alias.name}"
                    found.setdefault(alias.asname or alias.name, {})[full] = is_outer
        for name, full in _CONVENTIONAL.items() if "*" in found else ():
            found.setdefault(name, {full: True})
        return found

    @cached_property
    def classes(self) -> frozenset[str]:
        """The names of all classes, those within others and within functions too."""
        return frozenset(_classes(self.tree.body))


def _defined(
    body: list[ast.stmt], *, is_method: bool, inner: bool
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool, bool]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, is_method, inner
            yield from _defined(node.body, is_method=is_method, inner=True)
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node.body, is_method=True, inner=inner)
        else:
            for block in _BLOCKS:
                for each in getattr(node, block, ()):
                    within = [each] if isinstance(each, ast.stmt) else each.body
                    yield from _defined(within, is_method=is_method, inner=inner)


def _statements(body: list[ast.stmt], *, is_outer: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements of a block and of the blocks in them, and whether no function or class is around them."""
    for node in body:
        yield node, is_outer
        outer = is_outer and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for block in _BLOCKS:
            for each in getattr(node, block, ()):
                yield from _statements([each] if isinstance(each, ast.stmt) else each.body, is_outer=outer)


def _free(body: list[ast.stmt], *, of_class: bool) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not of_class:
            yield node.name
        for block in _BLOCKS:
            for each in getattr(node, block, ()):
                within = [each] if isinstance(each, ast.stmt) else each.body
                yield from _free(within, of_class=isinstance(node, ast.ClassDef))


def _classes(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        for block in _BLOCKS:
            for each in getattr(node, block, ()):
                yield from _classes([each] if isinstance(each, ast.stmt) else each.body)


def read_outline(text: str) -> Outline | None:
    """The outline of a file; None where this Python does not read it."""
    collects = gc.isenabled()
    gc.disable()  # a tree is many objects and no circles of them: to look for some takes longer than to parse
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's strings: escapes that Python does not know
            return Outline(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        if collects:
            gc.enable()
