"""Where a program reads a setting of its process, such as `torch.backends.cudnn.benchmark`: it may print or save it."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.dataflow.flow import scope_of, within
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source

_ONE = frozenset({"get", "setdefault", "pop", "update", "putenv"})
"""Methods of a mapping that ask for items by their names."""
_COPY = ("builtins.dict", "copy.copy", "copy.deepcopy")


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
    return environment_read(sources) if any(name.isupper() for name in names) else None


def environment_read(sources: Mapping[str, str]) -> str | None:
    """The file and line where a program takes all variables of its environment at once, else None: it may show them.

    What it hands to a process that it starts, `env={**os.environ, "RANK": "1"}`, that process would have all the same.
    """
    for path, source in files_with(sources, "environ"):
        for word in sorted({"environ", *source.imported_as("environ")}):
            for use in source.named(word):
                above = source.parent(use)
                node = above if isinstance(above, cst.Attribute) and above.attr is use else use
                if "os.environ" in source.names(node) and _is_taken_whole(source, node):
                    return f"{path}:{source.lines_of(use)[0]}"
    return None


def _is_taken_whole(source: Source, node: cst.BaseExpression) -> bool:
    """Whether more is asked of a mapping than single items, and it is not for another process alone."""
    above = source.parent(node)
    if isinstance(above, cst.Subscript | cst.ComparisonTarget | cst.ImportAlias):
        return False
    if isinstance(above, cst.Attribute):
        call = source.parent(above)
        copies = above.attr.value == "copy" and isinstance(call, cst.Call)
        return _is_taken_whole(source, call) if copies and isinstance(call, cst.Call) else above.attr.value not in _ONE
    if isinstance(above, cst.StarredDictElement | cst.Arg):
        if isinstance(above, cst.Arg) and above.keyword is not None and above.keyword.value == "env":
            return False
        whole = source.parent(above)
        copies = isinstance(whole, cst.Dict) or (isinstance(whole, cst.Call) and source.is_called(whole.func, *_COPY))
        return not copies or not isinstance(whole, cst.BaseExpression) or _is_taken_whole(source, whole)
    if isinstance(above, cst.Assign) and len(above.targets) == 1 and isinstance(above.targets[0].target, cst.Name):
        target = above.targets[0].target
        uses = [use for use in source.named(target.value, scope_of(source, above)) if use is not target]
        return any(not within(source, use, above) and _is_taken_whole(source, use) for use in uses)
    return True


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
