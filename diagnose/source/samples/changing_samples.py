"""Whether a program changes a dataset, by the names that its lines give something anew."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.iteration import ADAPTERS
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

_DEEPEST = 4
_LOADER = re.compile(r"[Ll]oader")


def changes_by_name(
    sources: Mapping[str, str], change: re.Pattern[str], skipped: tuple[str, ...] = ("import ", "from ")
) -> bool:
    """Whether a line that does not begin as the `skipped` ones matches a pattern of changes, which begins with the name
    of what is changed.

    What a file binds by its loops over loaders alone is a batch: `for data in loader: data.x = …` changes no dataset.
    """
    for text in sources.values():
        lines = (line.split("#")[0].strip() for line in text.splitlines())
        found = [match for line in lines if not line.startswith(skipped) for match in change.finditer(line)]
        source = parse(text) if found else None
        batches = _batches(source) if source is not None else frozenset()
        if any(re.split(r"\W", match[0], maxsplit=1)[0] not in batches for match in found):
            return True
    return False


def _batches(source: Source) -> frozenset[str]:
    """The variables that a file binds by its `for` statements over loaders, and by nothing else but what they hold."""
    loops: set[str] = set()
    others = {param.name.value for param in source.every(cst.Param) if isinstance(param.name, cst.Name)}
    for loop in source.every(cst.For):
        targets = {name.value for name in source.every(cst.Name, loop.target)}
        if _goes_through_loaders(source, loop.iter, _DEEPEST):
            loops |= targets
        else:
            others |= targets  # `for dataset in (train_set, val_set)`
    for assign in source.every(cst.Assign):
        for name in (name for each in assign.targets for name in source.every(cst.Name, each.target)):
            made_of_itself = any(used.value == name.value for used in source.every(cst.Name, assign.value))
            if isinstance(source.parent(name), cst.AssignTarget | cst.Element) and not made_of_itself:
                others.add(name.value)
    return frozenset(loops - others)


def _goes_through_loaders(source: Source, iterated: cst.BaseExpression, depth: int) -> bool:
    """Whether an expression is one loader by its name or by what makes it, or goes through loaders alone."""
    if isinstance(iterated, cst.Call):
        kind = call_name(iterated)
        if kind in ADAPTERS and iterated.args:
            through = iterated.args if ADAPTERS[kind].every_argument else iterated.args[:1]
            return all(_goes_through_loaders(source, arg.value, depth) for arg in through)
        return _LOADER.search(kind) is not None
    if isinstance(iterated, cst.Name) and depth > 0 and (values := bound_to(source, iterated)):
        made = [each for each in values if isinstance(each, cst.BaseExpression)]
        if any(isinstance(each, cst.Tuple | cst.List) for each in made):
            return False
        if len(made) == len(values) and all(_goes_through_loaders(source, each, depth - 1) for each in made):
            return True
    named = iterated.value if isinstance(iterated, cst.Subscript) else iterated
    word = named.attr if isinstance(named, cst.Attribute) else named
    if not isinstance(word, cst.Name) or _LOADER.search(word.value) is None:
        return False
    return named is not iterated or not word.value.endswith("s")  # `loaders[phase]` is one, `loaders` are several
