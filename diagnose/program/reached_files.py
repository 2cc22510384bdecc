"""The user's files that a program reaches: modules it imports, files it executes, config files it names.

A recording names the files whose lines were at work in its steps. Values are often set in others.
"""

# ruff: noqa: PTH118 - many candidates, as text, of which most are not there
from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.source import read_source
from diagnose.source.settings.configs import form_of
from diagnose.source.tree.outline import read_outline

MOST_FILES = 100
LARGEST_CONFIG_BYTES = 64 << 10
"""A larger file is data, whatever its name."""
_CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")


def read_reached(program: Program, known: Mapping[str, str]) -> dict[str, str]:
    """The texts of files beyond the known ones, by absolute path: imports of imports too, up to `MOST_FILES`."""
    found: dict[str, str] = {}
    pending = list(known.items())
    looked_at: list[tuple[str, str]] = []
    entry = str(program.entry.parent) if program.entry is not None else str(program.cwd)
    bases = tuple(dict.fromkeys([entry, str(program.cwd), str(program.root)]))
    added: dict[str, None] = {}
    words = [word.rpartition("=")[2] for word in program.words[1:]]
    wanted: Iterable[str] = [os.path.join(base, word) for word in words if _is_named(word) for base in bases]
    while True:
        for candidate in wanted:
            path = os.path.normpath(candidate)
            if path not in known and path not in found and len(found) < MOST_FILES:
                text = _text(program, path)
                if text is not None:
                    found[path] = text
                    pending.append((path, text))
        if not pending:
            return found
        path, text = pending.pop(0)
        folders = len(added)
        wanted = list(_candidates(path, text, bases, added)) if form_of(path) is None else []
        looked_at.append((path, text))
        if len(added) > folders:
            pending += looked_at  # those that import it find modules there too


def _text(program: Program, path: str) -> str | None:
    if not os.path.isfile(path) or not program.owned(path):  # noqa: PTH113 - many candidates, most of them not there
        return None
    if form_of(path) is not None and os.path.getsize(path) > LARGEST_CONFIG_BYTES:  # noqa: PTH202
        return None
    try:
        return read_source(Path(path)).text
    except InputError:
        return None


def _is_named(word: str) -> bool:
    return word.endswith((".py", *_CONFIG_ENDINGS)) and "\n" not in word


def _candidates(path: str, text: str, bases: Sequence[str], added: dict[str, None]) -> Iterator[str]:
    """Yield the paths of files that one file may import or name, where its own additions to `sys.path` count too.

    These are put into `added`: the files that it imports find their modules there as well.
    """
    outline = read_outline(text)
    if outline is None:
        return
    tree = outline.tree
    folder = os.path.dirname(path)  # noqa: PTH120
    added.update(dict.fromkeys(_added_folders(tree, path, bases)))
    folders = list(dict.fromkeys([folder, *bases, *added]))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(alias.name, folders)
        elif isinstance(node, ast.ImportFrom):
            above = [folder] if node.level else folders
            for _ in range(max(node.level - 1, 0)):
                above = [os.path.dirname(each) for each in above]  # noqa: PTH120
            yield from _modules(node.module or "", above)
            for alias in node.names:
                yield from _modules(f"{node.module}.{alias.name}" if node.module else alias.name, above)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_named(node.value):
            yield from (os.path.join(base, node.value) for base in folders)
        elif isinstance(node, ast.Call):
            yield from _hydra(node, folder)


def _added_folders(tree: ast.AST, path: str, bases: Sequence[str]) -> Iterator[str]:
    """`sys.path.append("core")` and `sys.path.insert(0, dirname(__file__))`, also in a function that is given the
    folder; a relative path is looked for in bases.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    adds = [call for call in calls if _adds_folder(call.func)]
    given = {ast.unparse(call.args[-1]) for call in adds}
    functions = (node for node in ast.walk(tree) if adds and isinstance(node, ast.FunctionDef))
    adders = {node.name for node in functions if any(each.arg in given for each in node.args.args)}
    bound = _bound_once(tree) if adds else {}
    for call in [*adds, *(call for call in calls if isinstance(call.func, ast.Name) and call.func.id in adders)]:
        added = _folder(call.args[-1], path, bound)
        if added is not None:
            yield from (os.path.normpath(os.path.join(base, added)) for base in bases)


def _adds_folder(called: ast.expr) -> bool:
    adds = isinstance(called, ast.Attribute) and called.attr in {"append", "insert"}
    return adds and ast.unparse(called) in {"sys.path.append", "sys.path.insert"}


def _bound_once(tree: ast.AST) -> dict[str, ast.expr]:
    """The values of the names that the file binds once: `ROOT = dirname(__file__)`."""
    assigns = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    targets = [target.id for node in assigns for target in node.targets if isinstance(target, ast.Name)]
    return {
        target.id: node.value
        for node in assigns
        for target in node.targets
        if isinstance(target, ast.Name) and targets.count(target.id) == 1
    }


def _folder(node: ast.expr, path: str, bound: Mapping[str, ast.expr]) -> str | None:
    """The path that an expression of a file stands for, where it is made of texts and the file's own path alone."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id == "__file__":
        return path
    if isinstance(node, ast.Name) and node.id in bound:
        return _folder(bound[node.id], path, {name: value for name, value in bound.items() if name != node.id})
    if isinstance(node, ast.Attribute) and node.attr == "parent":
        inner = _folder(node.value, path, bound)
        return None if inner is None else os.path.dirname(inner)  # noqa: PTH120
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined([node.left, node.right], path, bound)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "join":
            return _joined(node.args, path, bound)
        owner = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None
        inner = _folder(owner or node.args[0], path, bound) if owner is not None or node.args else None
        if inner is not None and name in {"dirname", "abspath", "realpath", "resolve", "absolute", "str", "Path"}:
            return os.path.dirname(inner) if name == "dirname" else inner  # noqa: PTH120
    return None


def _joined(parts: Sequence[ast.expr], path: str, bound: Mapping[str, ast.expr]) -> str | None:
    found = [_folder(part, path, bound) for part in parts]
    return os.path.join(*[each for each in found if each is not None]) if found and None not in found else None


def _modules(name: str, folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        stem = os.path.join(folder, *name.split(".")) if name else folder
        if name:
            yield f"{stem}.py"
        yield os.path.join(stem, "__init__.py")


def _hydra(call: ast.Call, folder: str) -> Iterator[str]:
    """`@hydra.main(config_path="conf", config_name="config")`."""
    given = {
        keyword.arg: keyword.value.value
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }
    if "config_name" in given:
        stem = os.path.join(folder, str(given.get("config_path", "")), str(given["config_name"]))
        yield from (stem if form_of(stem) else stem + ending for ending in (".yaml", ".yml"))
