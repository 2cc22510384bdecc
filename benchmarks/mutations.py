"""Small errors that a program can be given: one operator, number, condition or value of one function changed."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[1]
SWAPPED = [
    *[(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)],
    *[(ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)],
    (ast.Break, ast.Continue),
]
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    **dict(SWAPPED),
    **{second: first for first, second in SWAPPED},
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Div,
    ast.Pow: ast.Mult,
    ast.USub: ast.UAdd,
}
"""What an operator becomes, and what ends a turn of a loop."""
UNCHANGED = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults"}
"""Parts of a function that its own code does not contain."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that no other contains: its file below the project, its name within it, its first line."""

    path: str
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function: its number among those that are possible there, its line, and what it does."""

    function: Function
    number: int
    line: int
    change: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A field of a node, or one entry of it, and what it becomes."""

    holder: ast.AST
    field: str
    index: int | None
    new: object

    def make(self) -> object:
        """Change the tree. Returns what was there."""
        old = getattr(self.holder, self.field)
        if self.index is None:
            setattr(self.holder, self.field, self.new)
            return old
        old[self.index], entry = self.new, old[self.index]
        return entry

    def shown(self) -> str:
        """The code before and after; the tree stays as it is."""
        before = ast.unparse(self.holder)
        old = self.make()
        after = ast.unparse(self.holder)
        if isinstance(old, ast.expr | ast.stmt) and isinstance(self.new, ast.AST):
            before, after = ast.unparse(old), ast.unparse(self.new)
        _Change(self.holder, self.field, self.index, old).make()
        return f"{before} → {after}"


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file. Methods that use `super` have none: their code cannot be exchanged."""
    return [
        Mutant(function, number, getattr(change.holder, "lineno", function.line), change.shown())
        for function, node in _functions(path)
        for number, change in enumerate(_changes(node))
    ]


Live = dict[Function, list[FunctionType]]


def live_functions(paths: Iterable[Path]) -> Live:
    """The objects that are the functions of imported files, decorated ones included."""
    live: Live = {function: [] for path in paths for function, _ in _functions(path)}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(ROOT)):
            code = each.__code__
            below = str(Path(code.co_filename).relative_to(ROOT))
            live.get(Function(below, code.co_qualname, code.co_firstlineno), []).append(each)
    return live


def exchange(mutant: Mutant, live: Live) -> None:
    """Have the live function compute as the mutant does, in this process."""
    _edit(mutant.function, live, lambda node: list(_changes(node))[mutant.number].make())


def note_calls(live: Live, name: str) -> None:
    """Have each live function call the builtin `name` with its text first, in this process."""
    for function in live:
        call = ast.parse(f"{name}({str(function)!r})").body
        _edit(function, live, lambda node, call=call: node.body.insert(0, call[0]))  # type: ignore[misc]


def _functions(path: Path) -> list[tuple[Function, ast.FunctionDef]]:
    below = str(path.relative_to(ROOT))

    def within(body: list[ast.stmt], prefix: str) -> Iterator[tuple[Function, ast.FunctionDef]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from within(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and not _uses_super(node):
                yield Function(below, prefix + node.name, _line(node)), node

    return list(within(ast.parse(path.read_text()).body, ""))


def _uses_super(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Name) and node.id in ("super", "__class__") for node in ast.walk(function))


def _edit(function: Function, live: Live, make: Callable[[ast.FunctionDef], object]) -> None:
    path = ROOT / function.path
    tree = ast.parse(path.read_text())
    (node,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _line(node) == function.line)
    make(node)
    waiting = [compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)]
    for code in waiting:
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    (new,) = (each for each in waiting if (each.co_qualname, each.co_firstlineno) == (function.name, function.line))
    for each in live[function]:
        each.__code__ = new


def _line(function: ast.FunctionDef) -> int:
    """The first line of its code, which begins with its decorators."""
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _changes(function: ast.FunctionDef) -> Iterator[_Change]:
    """All changes of a function, each to be made alone, in the order of the code."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        children: list[tuple[str, int | None, ast.AST]] = []
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                children.append((field, None, value))
            elif isinstance(value, list):
                children += [(field, index, each) for index, each in enumerate(value) if isinstance(each, ast.AST)]
        kept = [child for child in children if child[0] not in UNCHANGED]
        for field, index, child in kept:
            if (new := _other(node, field, child)) is not None:
                yield _Change(node, field, index, new)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield _Change(node, "value", None, not node.value if isinstance(node.value, bool) else node.value + 1)
        waiting += [child for _, _, child in reversed(kept)]


def _other(holder: ast.AST, field: str, child: ast.AST) -> ast.AST | None:
    """What a part of a node becomes; None if it stays."""
    if type(child) in OTHER:
        return OTHER[type(child)]()
    if isinstance(child, ast.expr):
        if field in ("test", "ifs") and not isinstance(child, ast.Compare | ast.BoolOp | ast.UnaryOp):
            return ast.UnaryOp(ast.Not(), child)
        is_plain = isinstance(child, ast.Constant) and child.value in (None, True, False)
        if field == "value" and isinstance(holder, ast.Assign | ast.AnnAssign | ast.Return) and not is_plain:
            return ast.Constant(None)
    return None
