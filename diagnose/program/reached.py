"""The user's files that a program reaches: modules it imports, files it executes, config files it names.

A recording names the files whose lines were at work in its steps. Values are often set in others.
"""

# ruff: noqa: PTH118 - many candidates, as text, of which most are not there
from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.source import read_source
from diagnose.source.settings.configs import form_of

MOST_FILES = 100
LARGEST_CONFIG_BYTES = 64 << 10
"""A larger file is data, whatever its name."""
_CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")


def read_reached(program: Program, known: Mapping[str, str]) -> dict[str, str]:
    """The texts of files beyond the known ones, by absolute path: imports of imports too, up to `MOST_FILES`."""
    found: dict[str, str] = {}
    pending = list(known.items())
    entry = str(program.entry.parent) if program.entry is not None else str(program.cwd)
    bases = list(dict.fromkeys([entry, str(program.cwd), str(program.root)]))
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
        wanted = list(_candidates(path, text, bases)) if form_of(path) is None else []


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


def _candidates(path: str, text: str, bases: list[str]) -> Iterator[str]:
    """Yield the paths of files that one file may import or name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    folder = os.path.dirname(path)  # noqa: PTH120
    folders = list(dict.fromkeys([folder, *bases]))
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
