"""Where the value of an argument is set: in the call, or by a constant, a default or a config file that it comes from.

A knob is best turned where its author keeps it. But an edit there reaches every use, and a value from the command line
wins over any default, so a place counts only when it holds the very value that the run had, and nothing else reads it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.dataflow.bindings import Scope, binding_of, dotted, passed_to, read_by_others
from diagnose.source.settings.command_line import CommandLine
from diagnose.source.settings.configs import entries, form_of
from diagnose.source.settings.defaults import Default, assigned, defaults_of, keys_of, option_default, option_words
from diagnose.source.settings.executed_configs import executes_files, is_undecided, set_by_file
from diagnose.source.settings.option_parsers import declared, setting_of_global, setting_of_option, setting_of_words
from diagnose.source.settings.setting import Setting
from diagnose.source.tree.definitions import module_file
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal, number, string
from diagnose.source.tree.syntax import Source, parse

__all__ = ["number", "parsed_sources", "setting_of", "word_for"]

_DEEPEST = 8
_CONVERSIONS = frozenset({"int", "bool", "float", "str"})


def setting_of(
    value: cst.BaseExpression,
    path: str,
    source: Source,
    sources: Mapping[str, str],
    recorded: Scalar = None,
    *,
    configs: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    readers: Collection[str] | None = ("DataLoader",),
) -> Setting | None:
    """The one place that sets the expression `value`; None where there is none that can be edited.

    `recorded` is the value that the run had (None: unknown). A default that differs from it was overridden from
    outside, and would be again. `configs` are config files of the user's by path, `words` the command line; `readers`
    are the calls that may read a constant without being reached too far by an edit of it; None: all may.
    """
    reading = frozenset(readers) if readers is not None else None
    return _Search(sources, configs or {}, words, recorded, reading).follow(value, path, source, True, 0)


def word_for(value: cst.BaseExpression, sources: Mapping[str, str], words: Sequence[str]) -> str | None:
    """The word of the command line that decides a variable or an attribute, with the value that follows it."""
    if isinstance(value, cst.UnaryOperation):
        return word_for(value.expression, sources, words)
    name = (
        value.value if isinstance(value, cst.Name) else value.attr.value if isinstance(value, cst.Attribute) else None
    )
    if name is None:
        return None
    for source in parsed_sources(sources, name, name.replace("_", "-")).values():
        word = option_words(source, name, words)
        if word is not None:
            follows = words[list(words).index(word) + 1 :][:1] if "=" not in word else ()
            return " ".join([word, *(each for each in follows if not each.startswith("-"))])
    return next((word for word in words if word.split("=")[0].split(".")[-1] == name and "=" in word), None)


def parsed_sources(sources: Mapping[str, str], *words: str) -> dict[str, Source]:
    """Return the texts that are Python and hold one of the words, not as a part of another."""
    parsed = {path: parse(text) for path, text in sources.items()}
    return {path: source for path, source in parsed.items() if source is not None and any(map(source.holds, words))}


@dataclass(frozen=True)
class _Search:
    sources: Mapping[str, str]
    configs: Mapping[str, str]
    words: Sequence[str]
    recorded: Scalar
    readers: frozenset[str] | None

    def follow(self, node: cst.BaseExpression, path: str, source: Source, fixed: bool, depth: int) -> Setting | None:
        """`fixed`: nothing on the way here could be overridden."""
        if literal(node) is not None:
            return self._literal(node, path, source, fixed)
        if depth > _DEEPEST:
            return None
        if isinstance(node, cst.Name):
            return self._name(node, path, source, fixed, depth + 1)
        if isinstance(node, cst.IfExp):
            # The branch of `a if … else b` that the run took, where its value tells
            sides = [self._literal(side, path, source, False) for side in (node.body, node.orelse)]
            taken = [side for side in sides if side is not None]
            return replace(taken[0], fixed=False) if self.recorded is not None and len(taken) == 1 else None
        if isinstance(node, cst.Attribute):
            return self._attribute(node, path, source, fixed, depth + 1)
        if isinstance(node, cst.Subscript):
            return self._keyed(_path_of(node), None, path, source, depth + 1)
        if isinstance(node, cst.Call):
            return self._call(node, path, source, fixed, depth + 1)
        return None

    def _literal(self, node: cst.BaseExpression, path: str, source: Source, fixed: bool) -> Setting | None:
        found = literal(node)
        if found is None or not (fixed or self._is_recorded(found.value)):
            return None
        return Setting(path, source.lines_of(node)[0], source.wide_span(node), found.value, fixed, source.code(node))

    def _is_recorded(self, value: Scalar) -> bool:
        """A default that the run did not have was overridden from outside, which will win over it again."""
        return self.recorded is None or (value == self.recorded and type(value) is type(self.recorded))

    def _name(self, node: cst.Name, path: str, source: Source, fixed: bool, depth: int) -> Setting | None:
        bound = binding_of(source, node)
        if bound is None:
            return None
        if bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
            return self._parameter(bound.scope, bound.parameter, path, source, fixed, depth)
        if bound.imported is not None:
            there = module_file(bound.imported[0], path, self.sources)
            return self._global(bound.imported[1], there, fixed, depth) if there is not None else None
        if bound.value is None:
            return None
        constant = literal(bound.value) is not None
        if constant and self._reaches_too_far(source, bound.scope, node.value):
            return None
        if isinstance(bound.scope, cst.Module) and executes_files(source):
            return self._overridable(node.value, bound.value, path, source, depth)
        return self.follow(bound.value, path, source, fixed, depth)

    def _global(self, name: str, path: str, fixed: bool, depth: int) -> Setting | None:
        """A name of another module's, which no other file reads for more."""
        source = parse(self.sources[path])
        if source is None:
            return None
        target = next(source.named(name), None)
        if target is None:
            return None
        others = parsed_sources({key: text for key, text in self.sources.items() if key != path}, name)
        for other in others.values():
            if self._reaches_too_far(other, other.module, name):
                return None
        return self._name(target, path, source, fixed, depth)

    def _reaches_too_far(self, source: Source, scope: Scope, name: str) -> bool:
        return self.readers is not None and read_by_others(source, scope, name, self.readers)

    def _overridable(
        self, name: str, value: cst.BaseExpression, path: str, source: Source, depth: int
    ) -> Setting | None:
        """A global of a script that executes config files over its globals: the last file that sets it decides."""
        if any(word.startswith(f"--{name}=") for word in self.words):
            return self._unless_other(setting_of_global(name, self.words)) if self._steered(self.words) else None
        if is_undecided(name, path, source, self.sources, self.words):
            return None
        file = set_by_file(name, path, self.sources, self.words)
        if file is not None:
            there, config, setting = file
            return self.follow(setting, there, config, False, depth)
        return self.follow(value, path, source, False, depth)

    def _parameter(
        self, function: cst.FunctionDef, parameter: cst.Param, path: str, source: Source, fixed: bool, depth: int
    ) -> Setting | None:
        around = source.inside(function, cst.ClassDef)
        owner = around.name.value if around is not None and function.name.value == "__init__" else None
        name = owner or function.name.value
        sources = parsed_sources(self.sources, name)
        calls = passed_to(function, parameter, owner, sources)
        if calls is None:
            return None
        given = [(where, value) for where, value in calls if value is not None]
        if len(given) == 1 and len(calls) == 1 and given[0][1] is not None:
            where, expression = given[0]
            return self.follow(expression, where, sources[where], fixed, depth)
        if given:
            found = [self.follow(value, where, sources[where], fixed, depth) for where, value in given if value]
            same = {(each.path, each.splice_to) for each in found if each is not None}
            return found[0] if len(same) == 1 and None not in found and len(calls) == len(given) else None
        default = parameter.default
        if default is not None and (taken := option_default(parameter)) is not None:
            default = taken
        elif default is None:
            return self._by_name((parameter.name.value,), depth) if function.decorators else None
        return self.follow(default, path, source, fixed and bool(calls), depth)

    def _attribute(self, node: cst.Attribute, path: str, source: Source, fixed: bool, depth: int) -> Setting | None:
        name, base = node.attr.value, node.value
        if isinstance(base, cst.Name) and base.value == "self":
            found = self._own(node, path, source, fixed, depth)
            if found is not None:
                return found
        for module in source.names(base):
            there = module_file(module, path, self.sources) if not module.startswith(".") else None
            if there is not None:
                return self._global(name, there, fixed, depth)
        return self._by_name(tuple(part for part in dotted(node).split(".")[1:] if part) or (name,), depth)

    def _own(self, node: cst.Attribute, path: str, source: Source, fixed: bool, depth: int) -> Setting | None:
        """`self.name`, set once in the class."""
        around = source.inside(node, cst.ClassDef)
        values = [
            assign.value
            for assign in source.every(cst.Assign, around)
            for target in assign.targets
            if source.code(target.target) == f"self.{node.attr.value}"
        ]
        return self.follow(values[0], path, source, fixed, depth) if len(values) == 1 else None

    def _keyed(
        self,
        keys: tuple[str, ...],
        default: cst.BaseExpression | None,
        path: str,
        source: Source,
        depth: int,
    ) -> Setting | None:
        found = self._by_name(keys, depth) if keys else None
        if found is None and default is not None and not any(keys[-1] in text for text in self.configs.values()):
            found = self.follow(default, path, source, False, depth)
        return found

    def _call(self, node: cst.Call, path: str, source: Source, fixed: bool, depth: int) -> Setting | None:
        name = call_name(node)
        if name in _CONVERSIONS and len(node.args) == 1 and isinstance(node.func, cst.Name):
            return self.follow(node.args[0].value, path, source, fixed, depth)
        if name in {"get", "pop"} and isinstance(node.func, cst.Attribute) and node.args:
            key = string(node.args[0].value)
            default = node.args[1].value if len(node.args) > 1 else None
            if key is not None and "environ" not in source.code(node.func):
                return self._keyed((*_path_of(node.func.value), key), default, path, source, depth)
        if name in {"getattr"} and len(node.args) > 1 and (key := string(node.args[1].value)) is not None:
            return self._by_name((key,), depth)
        return None

    def _by_name(self, keys: tuple[str, ...], depth: int) -> Setting | None:
        """Whatever keeps a value under that name; of several the one that is set over the others, if it tells."""
        name = keys[-1]
        sources = parsed_sources(self.sources, name, name.replace("_", "-"))
        by_path = setting_of_words(keys, self.words) if self._steered(self.words) else None
        if by_path is not None:
            return self._unless_other(by_path)
        if any(option_words(source, name, self.words) for source in sources.values()):
            return self._option(sources, name)
        over = [(where, value) for where, source in sources.items() for value in assigned(source, name)]
        if self.recorded is not None:  # what only adjusts the value, and left it as it was in this run
            over = [
                (where, value) for where, value in over if not re.search(rf"\b{name}\b", sources[where].code(value))
            ]
        if over:
            if len(over) > 1:
                return None
            where, value = over[0]
            return self.follow(value, where, sources[where], False, depth)
        kept = self._in_configs(keys)
        if kept:
            return kept[0] if len(kept) == 1 and self._is_recorded(kept[0].value) else None
        if (option := self._option(sources, name)) is not None:
            return option
        found: list[Setting | None] = []
        for where, source in sources.items():
            for default in defaults_of(source, name):
                found.append(self._default(default, where, source, depth))
        if not found:
            for where, source in sources.items():
                found += [self.follow(value, where, source, False, depth) for value in keys_of(source, name)]
        return found[0] if len(found) == 1 else None

    def _option(self, sources: Mapping[str, Source], name: str) -> Setting | None:
        """The option of that name, where the program is steered by its command line."""
        if not self._steered(self.words):
            return None
        return self._unless_other(setting_of_option(declared(sources, name), self.words))

    @staticmethod
    def _steered(words: Sequence[str]) -> TypeGuard[CommandLine]:
        return isinstance(words, CommandLine) and words.steers

    def _unless_other(self, setting: Setting | None) -> Setting | None:
        """The setting, unless the run had another value: then something else decides."""
        return setting if setting is not None and self._is_recorded(setting.value) else None

    def _default(self, default: Default, path: str, source: Source, depth: int) -> Setting | None:
        if default.stands_for is None:
            return self.follow(default.value, path, source, False, depth)
        if not self._is_recorded(default.stands_for):
            return None
        line, span = source.lines_of(default.value)[0], source.wide_span(default.value)
        if default.last is not None:
            span = span[0], source.wide_span(default.last)[1]
        return Setting(path, line, span, default.stands_for, False, template=default.template)

    def _in_configs(self, keys: tuple[str, ...]) -> list[Setting]:
        found = self._with_keys(keys)
        # A part of a configuration is handed on under any name: `self.config.amp` may be `trainer: {amp: …}`.
        return found or (self._with_keys(keys[-1:]) if len(keys) > 1 else [])

    def _with_keys(self, keys: tuple[str, ...]) -> list[Setting]:
        found = []
        for path, text in self.configs.items():
            for entry in entries(path, text):
                short = min(len(keys), len(entry.keys))
                if entry.keys[-short:] == keys[-short:]:
                    old = text[slice(*entry.span)]
                    form = form_of(path) or "yaml"
                    found.append(Setting(path, entry.line, entry.span, entry.value, False, old, form))
        return found


def _path_of(node: cst.BaseExpression) -> tuple[str, ...]:
    """`("data", "workers")` for `config["data"]["workers"]`, and for `config.data["workers"]`."""
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice if len(node.slice) == 1 else None
        key = string(index.value) if isinstance(index, cst.Index) else None
        return (*_path_of(node.value), key) if key is not None else ()
    if isinstance(node, cst.Attribute):
        return (*_path_of(node.value), node.attr.value)
    if isinstance(node, cst.Call) and call_name(node) == "get" and isinstance(node.func, cst.Attribute) and node.args:
        key = string(node.args[0].value)
        return (*_path_of(node.func.value), key) if key is not None else ()
    return ()
