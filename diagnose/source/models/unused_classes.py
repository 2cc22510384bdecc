"""The classes of modules that a run of the program neither built nor may build later: their code is part of no step.

A watched run tells what its first step had. What is built afterwards (a second stage, a model for every fold, a module
that a step makes and drops) is looked for in the code that may run from a step on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.model import Site
from diagnose.source.dataflow.exception_handlers import Place
from diagnose.source.dataflow.reachable_code import ReachableCode, runs_after
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.built_classes import Classes, unbuilt_classes
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all, per_program
from diagnose.source.tree.syntax import Source

_TESTS = frozenset({"isinstance", "issubclass"})


def unused_classes(sources: Mapping[str, str], sites: Sequence[Site]) -> Classes:
    """Return the classes of modules that no part of a run builds; none where no run or no training step tells.

    Following a large program takes seconds: ask where the code of some class decides.
    """
    unbuilt = unbuilt_classes(sources, sites)
    steps = training_steps(sources, sites) if unbuilt else ()
    return _never_built(sources, unbuilt, tuple((step.path, step.backward) for step in steps))


@per_program
def _never_built(
    sources: Mapping[str, str], unbuilt: Classes, backwards: tuple[tuple[str, cst.CSTNode], ...]
) -> Classes:
    """Return the classes that no code names which may run from the backward passes on, given with their files."""
    parsed = parse_all(sources)
    begins = [place for path, call in backwards for place in runs_after(parsed, path, call)]
    if not begins:
        return frozenset()
    while unbuilt:
        reached = ReachableCode(parsed, begins, again=True, without=unbuilt)
        names = _names(reached)
        built = frozenset(each for each in unbuilt if not names.isdisjoint(_names_of(parsed, each)))
        classes = ((path, parsed[path], made) for path, name in built for made in parsed[path].classes_named(name))
        new = [place for place in (*classes, *_named_values(parsed, names)) if place[2] not in reached.pieces]
        if not built and not new:
            break
        unbuilt, begins = unbuilt - built, begins + new
    return unbuilt


def _names(reached: ReachableCode) -> frozenset[tuple[str, str]]:
    """The names in some code, each with its file where that defines a class of that name, and else with none."""
    found: set[tuple[str, str]] = set()
    for path, source, name in reached.every(cst.Name):
        if _is_tested(source, name) or source.inside(name, cst.Annotation) is not None:
            continue
        above = source.parent(name)
        if isinstance(above, cst.Attribute) and any(each.startswith("torch.") for each in source.imported(above)):
            continue
        own = name.value in source.outline.classes and not isinstance(above, cst.Attribute)
        found |= {(path if own else "", name.value), ("", reached.aliases.get(name.value, ""))}
    return frozenset(found)


def _is_tested(source: Source, name: cst.Name) -> bool:
    """Whether a name is that of a class which an object is asked for: `isinstance(module, Block)`."""
    call = source.inside(name, cst.Call)
    return call is not None and call_name(call) in _TESTS and call.func is not name


def _names_of(parsed: Mapping[str, Source], of: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The names that may lead to a class: its own, and those of the decorators that may enter it in a registry."""
    path, name = of
    yield from (of, ("", name))
    for made in parsed[path].classes_named(name):
        for decorator in made.decorators:
            yield from (("", each.value) for each in parsed[path].every(cst.Name, decorator))


def _named_values(parsed: Mapping[str, Source], names: frozenset[tuple[str, str]]) -> Iterator[Place]:
    """The values that files and classes give to names: `MODELS = {"small": Small, "large": Large}`.

    What calls give was made when the file was loaded.
    """
    for path, source in parsed.items():
        for assign in source.every(cst.Assign):
            if isinstance(assign.value, cst.Call):
                continue
            targets = (source.code(each.target).rpartition(".")[2].partition("[")[0] for each in assign.targets)
            if source.inside(assign, cst.FunctionDef) is None and any(("", each) in names for each in targets):
                yield path, source, assign.value
