"""Code that a fix needs and that belongs to no file of the user's: a small new file beside the script, and one import.

Several fixes may share the file; each adds its own code to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import libcst as cst

from diagnose.source.tree.edits import insert_before
from diagnose.source.tree.syntax import Source, Splice, parse

MODULE = "diagnose_fixes"
_HEAD = '"""What `diagnose fix` added to this program; each part says what it is for."""\n'


@dataclass(frozen=True)
class Shim:
    """The new file, as it is to be."""

    path: str
    text: str


def add_to_shim(home: str, sources: Mapping[str, str], imports: Sequence[str], code: str) -> Shim:
    """The file in the folder `home` with `code` in it, once, and the imports that it needs.

    `imports` are lines; `code` holds whole statements of the top level. What is in the file already stays.
    """
    path = str(PurePath(home) / f"{MODULE}.py")
    present = sources.get(path, _HEAD)
    source = parse(present)
    code = code.strip("\n") + "\n"
    if source is None or code in present:
        return Shim(path, present)
    there = [line for line in present.splitlines() if line.startswith(("import ", "from "))]
    listed = sorted({*there, *imports}, key=lambda line: (_third_party(line), line))
    ours = [line for line in listed if not _third_party(line)]
    others = [line for line in listed if _third_party(line)]
    body = "\n".join(line for line in present.removeprefix(_HEAD).splitlines() if line not in there).strip("\n")
    groups = ["\n".join(group) for group in (ours, others) if group]
    parts = [_HEAD.strip("\n"), *groups]
    return Shim(path, "\n\n".join(parts) + "\n\n\n" + "".join(f"{part}\n\n\n" for part in [body] if part) + code)


def _third_party(line: str) -> bool:
    return bool(re.match(r"(?:import|from) (torch|numpy)\b", line))


def import_for_effect(source: Source, why: str) -> list[Splice]:
    """The import of that file before all others, for what it does when it is imported; `why` becomes a comment."""
    line = f"import {MODULE}  # {why}"
    if re.search(rf"^import {MODULE}\b", source.text, re.MULTILINE):
        return []
    for statement in source.module.body:
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        future = isinstance(first, cst.ImportFrom) and source.code(first).startswith("from __future__")
        docstring = isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        if not future and not docstring:
            return [insert_before(source, statement, [line])]
    return []
