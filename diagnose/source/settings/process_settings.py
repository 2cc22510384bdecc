"""Where a program reads a setting of its process, such as `torch.backends.cudnn.benchmark`: it may print or save it."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source


def why_not_set(sources: Mapping[str, str], what: str, *names: str) -> str | None:
    """Return why a fixer leaves a setting alone: the program reads it, and may show it; None where it reads none."""
    where = setting_read(sources, *names)
    return f"{where} reads {what}, which the program may show: decide there." if where is not None else None


def setting_read(sources: Mapping[str, str], *names: str) -> str | None:
    """The file and line where a program reads one of these attributes, functions or environment variables, else None.

    `names` are the ends of dotted names, `cudnn.benchmark`, or names of environment variables.
    """
    for name in names:
        last = name.rpartition(".")[2]
        for path, source in files_with(sources, last):
            for word in sorted({last, *source.imported_as(last)}):
                for use in source.named(word):
                    if _is_read(source, use, name):
                        return f"{path}:{source.lines_of(use)[0]}"
            for text in source.every(cst.SimpleString):
                if string(text) == name and not _is_set(source, text):
                    return f"{path}:{source.lines_of(text)[0]}"
    return None


def _is_read(source: Source, use: cst.Name, name: str) -> bool:
    above = source.parent(use)
    node = above if isinstance(above, cst.Attribute) and above.attr is use else use
    named = any(f".{each}".endswith(f".{name}") for each in source.names(node))
    return named and not isinstance(source.parent(node), cst.AssignTarget | cst.ImportAlias)


def _is_set(source: Source, text: cst.SimpleString) -> bool:
    """Whether a string names what is set: `os.environ["NAME"] = …`, `os.environ.setdefault("NAME", …)`."""
    for above in source.ancestors(text):
        if isinstance(above, cst.AssignTarget):
            return True
        if isinstance(above, cst.Call):
            return isinstance(above.func, cst.Attribute) and above.func.attr.value in {"setdefault", "putenv"}
        if isinstance(above, cst.BaseSmallStatement):
            return False
    return False
