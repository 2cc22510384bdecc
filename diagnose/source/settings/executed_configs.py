"""Config files of Python that a script executes over its globals, `exec(open(path).read())`: which one sets a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.flow import binds
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source, parse

_SETS_MORE = re.compile(r"\bexec\(|\bimport\s*\*|\bglobals\(|\blocals\(|\bvars\(")
"""How a config file sets names that it does not spell."""


def executes_files(source: Source) -> bool:
    """Whether a script may set its globals by code that it reads."""
    return "exec(" in source.text


def is_undecided(name: str, entry: str, source: Source, sources: Mapping[str, str], words: Sequence[str]) -> bool:
    """Whether the text leaves open where a script that executes files gets a global from.

    Certain is a single plain assignment at the top level of files that the command line names, or else the script's
    own before it executes any.
    """
    if any(not _is_plain(name, path, sources) for path in _files_of_words(entry, sources, words)):
        return True
    calls = [call for call in source.every(cst.Call) if call_name(call) == "exec"]
    if any(_executes_what_sets(name, source, call, sources) for call in calls):
        return True
    first = min((source.span(call)[0] for call in calls), default=len(source.text))
    return any(source.span(each)[0] > first and binds(source, each, name) for each in source.every(cst.Assign))


def set_by_file(
    name: str, entry: str, sources: Mapping[str, str], words: Sequence[str]
) -> tuple[str, Source, cst.BaseExpression] | None:
    """The last of the command line's files that sets a global, and to what; None where none does."""
    for path in reversed(_files_of_words(entry, sources, words)):
        config = parse(sources[path]) if path is not None else None
        if path is None or config is None:
            continue
        for assign in _assignments(config, name):
            return path, config, assign.value
    return None


def _files_of_words(entry: str, sources: Mapping[str, str], words: Sequence[str]) -> list[str | None]:
    """The Python files that a command line names beside the script, in order; None for one that cannot be told."""
    named = [word for word in words if word.endswith(".py") and not _is(entry, word)]
    found = [[path for path in sources if _is(path, word)] for word in named]
    return [paths[0] if len(paths) == 1 else None for paths in found]


def _is(path: str, word: str) -> bool:
    return path == word or path.endswith("/" + word.removeprefix("./"))


def _is_plain(name: str, path: str | None, sources: Mapping[str, str]) -> bool:
    """Whether a file sets a name by one plain assignment at its top level, or surely not at all."""
    config = parse(sources[path]) if path is not None else None
    if config is None or _SETS_MORE.search(config.text):
        return False
    bound = [statement for statement in config.module.body if binds(config, statement, name)]
    return not bound or (len(bound) == 1 and len(list(_assignments(config, name))) == 1)


def _assignments(config: Source, name: str) -> Iterator[cst.Assign]:
    """The statements `name = value` at the top level of a file."""
    for line in config.module.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign) and [config.code(each.target) for each in small.targets] == [name]:
                yield small


def _executes_what_sets(name: str, source: Source, call: cst.Call, sources: Mapping[str, str]) -> bool:
    """Whether a call executes a file, by a path that is written out, that sets the name or cannot be read as Python."""
    for each in source.every(cst.SimpleString, call):
        file = string(each) or ""
        if file.endswith(".py"):
            found = [parse(text) for path, text in sources.items() if _is(path, file)]
            if any(one is None or binds(one, one.module, name) for one in found):
                return True
        elif "." in file:
            return True
    return False
