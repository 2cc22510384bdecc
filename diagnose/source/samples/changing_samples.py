"""Whether the samples of a dataset may be others the next time: drawn, or changed by the dataset or by the program."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import PurePosixPath

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.dataflow.bindings import binding_of, bound_to
from diagnose.source.dataflow.iteration import ADAPTERS
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all, per_program
from diagnose.source.tree.syntax import Source, parse

_DRAWS = re.compile(
    r"\bRand(?:om)?[A-Z]\w*\(|Jitter\(|\w*Augment\w*\(|AugMix\(|MixUp\(|CutMix\(|\brandom\.(?!seed)\w+\(|"
    r"\btorch\.(?:rand|randn|randint|randperm|bernoulli|multinomial|normal)\((?![^\n]*generator)|"
    r"\bgenerator=self\.|\binitial_seed\(|\bget_worker_info\("
)
_CHANGES = (
    r"\b(?:\w*dataset|\w*data|ds|trainset|train_set|{name})\w*(?:\.\w+)*\."
    r"(?:set_\w+\(|(?!self)\w+(?:\[[^\]]*\])?\s*[-+*/|&]?=[^=])"
)
_EDITS = r"\b(?:dataset|{name})(?:\.\w+)+\.(?:insert|append|extend|pop|remove|clear|update)\("
_NAME = re.compile(r"(?<![.\w])([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")
_ALIAS = re.compile(r"\bimport (?:\w+\.)*(\w+) as (\w+)")
_DEEPEST = 4
_LOADER = re.compile(r"[Ll]oader")


def changing_samples(
    sources: Mapping[str, str], source: Source, given: cst.BaseExpression, recorded: Scalar
) -> str | None:
    """Return how samples may be others from one epoch to the next; None where nothing shows that.

    `given` is the dataset that a loader in `source` takes, `recorded` the class that the run saw.
    """
    made = recorded if isinstance(recorded, str) else None
    texts = list(_made_by(source, given, made, _DEEPEST))
    code = _code_of(sources, _names(" ".join([*texts, made or ""]), _modules(sources)))
    followed: list[str] = []
    for text in chain(texts, code):  # as far as the first draw: the names lead through most of a program
        if (draws := _DRAWS.search(text)) is not None:
            return f"feeds samples that are drawn anew each time (`{draws[0]}…`): store what comes before that decoded."
        followed.append(text)
    changes = next(filter(None, map(_changes_itself, followed)), None)
    if changes is not None:
        return f"feeds a dataset that changes itself (`{changes}`): store what does not change decoded."
    name = source.code(given).rpartition(".")[2] if isinstance(given, cst.Name | cst.Attribute) else "dataset"
    change = re.compile(f"{_CHANGES}|{_EDITS}".replace("{name}", name))
    if changes_by_name(sources, change):
        return "feeds a dataset that the program changes between epochs: store what does not change decoded."
    return None


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


def _made_by(source: Source, node: cst.CSTNode, made: str | None, depth: int) -> Iterator[str]:
    """The texts of what makes an expression: itself, and what its names are bound to.

    `made` is the class that the run recorded: of several values of a name, those that call it count.
    """
    yield source.code(node)
    for name in source.every(cst.Name, node) if depth > 0 else ():
        bound = binding_of(source, name)
        values = [bound.value] if bound is not None and bound.value is not None else []
        if bound is None:
            values = [each.value for each in source.every(cst.Assign) if _binds(each, name.value)]
            values = [each for each in values if isinstance(each, cst.Call) and call_name(each) == made] or values
        for value in values:
            yield from _made_by(source, value, made, depth - 1)


def _binds(assign: cst.Assign, name: str) -> bool:
    """Whether an assignment gives the name its value, as a variable or as an attribute."""
    targets = (each.target for each in assign.targets)
    return any(name == getattr(getattr(each, "attr", each), "value", None) for each in targets)


@per_program
def _modules(sources: Mapping[str, str]) -> frozenset[str]:
    """The names by which files may have modules of the program's own: those of the files, and their aliases."""
    own = {PurePosixPath(path).stem for path in sources}
    aliases = (alias for text in sources.values() if " as " in text for alias in _ALIAS.findall(text))
    return frozenset(own | {alias for name, alias in aliases if name in own})


def _names(text: str, modules: Collection[str]) -> list[str]:
    """Each name once, in the order of the text; of `augmentations.Crop` with a module of that name both."""
    found: dict[str, None] = {}
    for name, attribute in _NAME.findall(text):
        found |= dict.fromkeys((name, attribute) if attribute and name in modules else (name,))
    return list(found)


def _code_of(sources: Mapping[str, str], names: list[str]) -> Iterator[str]:
    """The code of the program's own classes and functions of these names, then of those that they name in turn."""
    modules = _modules(sources)
    defining: dict[str, list[Source]] = {}
    for source in parse_all(sources).values():
        for name in source.defined_names:
            defining.setdefault(name, []).append(source)
    waiting = [*names]
    for name in waiting:  # and what is found on the way
        for code in (code for source in defining.pop(name, ()) for code in _definitions(source, name)):
            yield code
            waiting += _names(code, modules)


def _definitions(source: Source, name: str) -> Iterator[str]:
    """The code of the classes, then of the functions of a name."""
    yield from map(source.code, source.classes_named(name))
    yield from map(source.code, source.functions_named(name))


def _changes_itself(text: str) -> str | None:
    """Return what a class gives itself anew after it is made."""
    source = parse(text) if text.startswith("class ") else None
    functions = list(source.every(cst.FunctionDef)) if source is not None else []
    made = [each for each in functions if each.name.value == "__init__"]
    if source is None or not made:
        return None
    early = {"__init__", *(call_name(call) for each in made for call in source.every(cst.Call, each))}
    for function in functions:
        targets = [assign.targets[0].target for assign in source.every(cst.Assign, function)]
        targets += [assign.target for assign in source.every(cst.AugAssign, function)]
        own = next((code for code in map(source.code, targets) if code.startswith("self.")), None)
        if own is not None and function.name.value not in early:
            return f"{own} in {function.name.value}"
    return None
