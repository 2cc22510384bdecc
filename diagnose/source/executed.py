"""Config files of Python that a script executes over its globals, `exec(open(path).read())`: which one sets a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.syntax import Source, parse

__all__ = ["executes_files", "files_of_words", "set_by_file"]


def executes_files(source: Source) -> bool:
    """Whether a script may set its globals by code that it reads."""
    return "exec(" in source.text


def files_of_words(entry: str, sources: Mapping[str, str], words: Sequence[str]) -> list[str | None]:
    """The Python files that a command line names beside the script, in its order; None for one that is not there."""
    named = [word for word in words if word.endswith(".py") and not _is(entry, word)]
    return [next((path for path in sources if _is(path, word)), None) for word in named]


def set_by_file(
    name: str, entry: str, sources: Mapping[str, str], words: Sequence[str]
) -> tuple[str, Source, cst.BaseExpression] | None:
    """The last of these files that sets a global, and the value that it sets last; None where none does."""
    for path in reversed(files_of_words(entry, sources, words)):
        config = parse(sources[path]) if path is not None else None
        if path is None or config is None:
            continue
        for assign in reversed(list(config.every(cst.Assign))):
            if any(isinstance(each.target, cst.Name) and each.target.value == name for each in assign.targets):
                return path, config, assign.value
    return None


def _is(path: str, word: str) -> bool:
    return path == word or path.endswith("/" + word.removeprefix("./"))
