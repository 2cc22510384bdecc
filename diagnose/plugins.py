"""Finds rules and fixers: the built-in ones, and those in a folder the user names. Nobody imports them by name.

Both take the same road: every public module of the package is imported and asked for `RULE` or `FIXER`. A module that
cannot be loaded becomes a visible problem, not a crash and not silence.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from diagnose.errors import UsageError
from diagnose.rule import Rule

if TYPE_CHECKING:
    from diagnose.fixer import Fixer

_Plugin = TypeVar("_Plugin", Rule, "Fixer")


_TRAINING = re.compile(r"^    gate=Gate\.TRAINING,$", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """A module of rules or fixers that could not be used."""

    module: str
    message: str


@dataclass(frozen=True)
class Catalogue:
    """All rules and fixers by name, and what could not be loaded."""

    rules: dict[str, Rule]
    fixers: dict[str, Fixer]
    problems: tuple[Problem, ...] = ()
    unloaded: frozenset[str] = frozenset()
    """Fixers of which only the name is known."""
    training: frozenset[str] = frozenset()
    """The names among them of fixers that change the training."""

    def offers(self, fixer: str) -> bool:
        """Whether there is a fixer of that name."""
        return fixer in self.fixers or fixer in self.unloaded

    def changes_training(self, fixer: str) -> bool:
        """Whether a fixer, as far as its own declaration tells, changes the training itself."""
        if fixer in self.fixers:
            return self.fixers[fixer].gate.value == "training"
        return fixer in self.training

    def tried_for(self, rule: Rule, chosen: Sequence[str] | None) -> tuple[str, ...]:
        """The fixers for one claim of a rule: those that it chose of the rule's (None: all), as far as there are such.

        A rule chooses among fixers that it knows; one that names the rule itself is always asked.
        """
        own = (name for name in rule.fixers if name in self.fixers and rule.name in self.fixers[name].rules)
        names = rule.fixers if chosen is None else (*chosen, *own)
        return tuple(name for name in dict.fromkeys(names) if self.offers(name))


def load_rules(extra_rules: Path | None = None) -> Catalogue:
    """The rules alone, for those who only diagnose: what fixers need takes longer to import than a trace to read."""
    problems: list[Problem] = []
    fixers = _built_in("fixers")
    names = [info.name for info in pkgutil.iter_modules(fixers.__path__) if not info.name.startswith("_")]
    unloaded = frozenset(name.replace("_", "-") for name in names)
    training = frozenset(name.replace("_", "-") for name in names if _declares_training(fixers, name))
    return Catalogue(_rules(extra_rules, problems), {}, tuple(problems), unloaded, training)


def _declares_training(package: ModuleType, name: str) -> bool:
    """Whether a fixer's file says that it changes the training: read, not imported."""
    found = importlib.util.find_spec(f"{package.__name__}.{name}")
    if found is None or found.origin is None:
        return False
    return _TRAINING.search(Path(found.origin).read_text(encoding="utf-8")) is not None


def load(extra_rules: Path | None = None, extra_fixers: Path | None = None) -> Catalogue:
    """The built-in rules and fixers, with those of two folders of the user's, whose win where names are equal.

    Raises UsageError where there is no such folder; what is in it and cannot be used is among the `problems`.
    """
    from diagnose.fixer import Fixer  # brings LibCST along, which takes 0.1 s

    problems: list[Problem] = []
    rules = _rules(extra_rules, problems)
    fixers: dict[str, Fixer] = {}
    for package in _packages("fixers", extra_fixers):
        fixers |= {fixer.name: fixer for fixer in _collect(package, "FIXER", Fixer, problems)}
    problems += (problem for name in list(fixers) if (problem := _refused(fixers, name)))
    for fixer in fixers.values():
        if fixer.rules and not set(fixer.rules) & set(rules):
            problems.append(Problem(fixer.name, f"no rule is called {' or '.join(fixer.rules)}: it is never tried"))
        for name in set(fixer.rules) & set(rules):
            rules[name] = replace(rules[name], fixers=tuple(dict.fromkeys((*rules[name].fixers, fixer.name))))
    return Catalogue(rules, fixers, tuple(problems))


def _refused(fixers: dict[str, Fixer], name: str) -> Problem | None:
    """Take out a fixer that stands against itself. Names that nobody bears are allowed: they may be somebody's own."""
    fixer = fixers[name]
    for relation, others in (("conflicts with", fixer.conflicts), ("waits for", fixer.after)):
        if name in others:
            del fixers[name]
            return Problem(name, f"the fixer {relation} itself")
    return None


def _rules(extra: Path | None, problems: list[Problem]) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for package in _packages("rules", extra):
        rules |= {rule.name: rule for rule in _collect(package, "RULE", Rule, problems)}
    return rules


def _packages(kind: str, extra: Path | None) -> list[ModuleType]:
    if extra is not None and not extra.is_dir():
        raise UsageError(f"{extra}: there is no such folder of {kind}")
    return [_built_in(kind)] if extra is None else [_built_in(kind), folder(extra, f"diagnose_local_{kind}")]


def folder(path: Path, name: str) -> ModuleType:
    """Make a folder importable as package `name`, with or without an `__init__.py`, leaving `sys.path` alone."""
    init = path / "__init__.py"
    if init.exists():
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(path)])
    else:
        spec = importlib.util.spec_from_loader(name, loader=None, is_package=True)
        if spec is not None:
            spec.submodule_search_locations = [str(path)]
    if spec is None:
        raise ImportError(f"cannot make a package of {path}")
    for loaded in [one for one in sys.modules if one.startswith(f"{name}.")]:
        del sys.modules[loaded]  # of another folder, or of a file that has changed since
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)
    return module


def _built_in(kind: str) -> ModuleType:
    name = f"diagnose.{kind}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        # A bare checkout, or a checkout whose `diagnose/` hides the installed one: the folder lies beside it.
        return folder(Path(__file__).resolve().parent.parent / kind, name)


def _collect(package: ModuleType, constant: str, kind: type[_Plugin], problems: list[Problem]) -> Iterator[_Plugin]:
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        name = f"{package.__name__}.{info.name}"
        try:
            module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a user's file may raise anything; it must not take the others along
            problems.append(Problem(name, f"{type(error).__name__}: {error}"))
            continue
        plugin = getattr(module, constant, None)
        if isinstance(plugin, kind):
            yield replace(plugin, doc=inspect.getdoc(module) or "")
        else:
            problems.append(Problem(name, f"defines no {constant}"))
