"""The settings that make a line of the program run: those that the conditions around it test.

A line that compiles, opens autocast or changes the memory format under `if args.amp:` is a switch of the program's own.
The conditions are followed to the values that decide them: through names, attributes, parameters and `x is not None`.
A condition that nobody can follow (`device.type == "cuda"`) is taken to hold as it did. A value that decides about
more than lines of the asked kind is no switch: `--distributed` is not turned on to reach what it guards beside others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.dataflow.bindings import binding_of, passed_to
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.values import parsed_sources, setting_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal
from diagnose.source.tree.syntax import Source

_DEEPEST = 8
_TELLING = frozenset({"print", "info", "debug", "warning", "warn", "log", "write", "error"})


@dataclass(frozen=True)
class Turn:
    """A setting, and the value that it is to have."""

    setting: Setting
    value: Scalar


Turns = tuple[Turn, ...]


@dataclass(frozen=True)
class Switches:
    """Follows the conditions of one program; `kind` is what its lines say that a switch may decide about."""

    sources: Mapping[str, str]
    kind: re.Pattern[str]
    configs: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()

    def reach(self, path: str, source: Source, node: cst.CSTNode, depth: int = 0) -> Turns | None:
        """Return the settings to change so that a node of a file runs: empty where it already does, None where it
        cannot.
        """
        found: list[Turn] = []
        below = node
        for above in source.ancestors(node):
            if isinstance(above, cst.FunctionDef | cst.ClassDef):
                break
            if isinstance(above, cst.If | cst.IfExp) and below is not above.test:
                turns = self.make(above.test, below is above.body, path, source, depth + 1)
                if turns is None:
                    return None
                found += turns
            below = above
        return tuple(dict.fromkeys(found))

    def make(self, test: cst.BaseExpression, wanted: bool, path: str, source: Source, depth: int = 0) -> Turns | None:
        """Return the settings to change so that a condition is true, or false."""
        if depth > _DEEPEST:
            return ()
        if (known := literal(test)) is not None:
            return () if bool(known.value) is wanted else None
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self.make(test.expression, not wanted, path, source, depth + 1)
        if isinstance(test, cst.BooleanOperation):
            return self._both(test, wanted, path, source, depth + 1)
        if isinstance(test, cst.Comparison):
            return self._compared(test, wanted, path, source, depth + 1)
        setting = self._setting(test, path, source)
        if setting is not None:
            return self._turned(setting, test, wanted, source)
        if isinstance(test, cst.Name):
            return self._named(test, lambda value: _truth(value) is wanted, wanted, path, source, depth + 1)
        return ()

    def bind(
        self, name: cst.BaseExpression, wanted: Callable[[cst.BaseExpression], bool], path: str, source: Source
    ) -> Turns | None:
        """Return the settings to change so that a name is bound to one of the `wanted` values; None where it
        never is.
        """
        if not isinstance(name, cst.Name):
            return next(self._reached(name, wanted, path, source, 0), None)
        return self._assigned(name, wanted, path, source, 0)

    def equal(self, node: cst.BaseExpression, value: Scalar, path: str, source: Source) -> Turns | None:
        """Return the settings to change so that an expression has a value; None where nothing that can be edited sets
        it.
        """
        setting = self._setting(node, path, source)
        if setting is None:
            return None
        return () if setting.value == value else (Turn(setting, value),)

    def _both(self, test: cst.BooleanOperation, wanted: bool, path: str, source: Source, depth: int) -> Turns | None:
        sides = [self.make(side, wanted, path, source, depth) for side in (test.left, test.right)]
        if isinstance(test.operator, cst.And) is wanted:
            return None if None in sides else tuple(turn for side in sides for turn in side or ())
        return max((side for side in sides if side is not None), key=len, default=None)

    def _compared(self, test: cst.Comparison, wanted: bool, path: str, source: Source, depth: int) -> Turns | None:
        if len(test.comparisons) != 1:
            return ()
        operator, right = test.comparisons[0].operator, literal(test.comparisons[0].comparator)
        if right is None:
            return ()
        if isinstance(operator, cst.Is | cst.IsNot) and right.value is None:
            there = wanted is isinstance(operator, cst.IsNot)
            if isinstance(test.left, cst.Name):
                return self._named(test.left, lambda value: _is_none(value) is not there, there, path, source, depth)
            return ()
        if not isinstance(operator, cst.Equal | cst.NotEqual):
            return ()
        setting = self._setting(test.left, path, source)
        if setting is None:
            return ()
        if (setting.value == right.value) is (wanted is isinstance(operator, cst.Equal)):
            return ()
        return (Turn(setting, right.value),) if wanted is isinstance(operator, cst.Equal) else None

    def _named(
        self,
        name: cst.Name,
        wanted: Callable[[cst.BaseExpression], bool],
        truth: bool,
        path: str,
        source: Source,
        depth: int,
    ) -> Turns | None:
        """Return the settings for a name, from what it is bound to in this function or by the one call passing it."""
        if depth > _DEEPEST:
            return ()
        bound = binding_of(source, name)
        if bound is not None and bound.parameter is not None and isinstance(bound.scope, cst.FunctionDef):
            callers = parsed_sources(self.sources, bound.scope.name.value)
            given = passed_to(bound.scope, bound.parameter, None, callers)
            values = [(where, value) for where, value in given or () if value is not None]
            names = [(where, value) for where, value in values if isinstance(value, cst.Name)]
            if len(values) != 1 or len(names) != 1:
                return ()
            where, value = names[0]
            return self._named(value, wanted, truth, where, callers[where], depth + 1)
        if bound is not None and bound.value is not None and not isinstance(bound.value, cst.IfExp):
            return self.make(bound.value, truth, path, source, depth + 1) if not wanted(bound.value) else ()
        found = self._assigned(name, wanted, path, source, depth + 1)
        return found if found is not None else ()

    def _assigned(
        self, name: cst.Name, wanted: Callable[[cst.BaseExpression], bool], path: str, source: Source, depth: int
    ) -> Turns | None:
        scope = source.inside(name, cst.FunctionDef) or source.module
        reached: list[Turns] = []
        for assign in source.every(cst.Assign, scope):
            target = assign.targets[0].target
            if not (isinstance(target, cst.Name) and target.value == name.value):
                continue
            reached += self._reached(assign.value, wanted, path, source, depth)
        return reached[-1] if reached else None  # what is bound last holds

    def _reached(
        self,
        value: cst.BaseExpression,
        wanted: Callable[[cst.BaseExpression], bool],
        path: str,
        source: Source,
        depth: int,
    ) -> Iterator[Turns]:
        """Yield the settings by which an expression, or a side of a conditional one, has a wanted value."""
        for side in (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,):
            turns = self.reach(path, source, side, depth + 1) if wanted(side) else None
            if turns is not None:
                yield turns

    def _setting(self, node: cst.BaseExpression, path: str, source: Source) -> Setting | None:
        return setting_of(node, path, source, self.sources, None, configs=self.configs, words=self.words, readers=None)

    def _turned(self, setting: Setting, test: cst.BaseExpression, wanted: bool, source: Source) -> Turns | None:
        if bool(setting.value) is wanted:
            return ()
        off = setting.value is False or (setting.value is None and setting.form == "command")
        if not (off if wanted else setting.value is True) or not self._is_switch(test, source):
            return None
        return (Turn(setting, wanted),)

    def _is_switch(self, test: cst.BaseExpression, source: Source) -> bool:
        """Whether all that the value decides about is of the kind, or tells people of it."""
        code = source.code(test)
        asked = parsed_sources(self.sources, code) if isinstance(test, cst.Attribute) else {"": source}
        for other in asked.values():
            for node in other.every(cst.If):
                decides = any(other.code(each) == code for each in _parts(node.test))
                if decides and not (self.kind.search(other.code(node.body)) or _only_tells(node.body)):
                    return False
        return True


def _parts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The conditions that `and`, `or` and `not` connect."""
    if isinstance(test, cst.BooleanOperation):
        yield from _parts(test.left)
        yield from _parts(test.right)
    elif isinstance(test, cst.UnaryOperation):
        yield from _parts(test.expression)
    else:
        yield test


def _only_tells(body: cst.BaseSuite) -> bool:
    """Whether a block does nothing but print, log, warn, assert or raise."""
    return all(
        isinstance(small, cst.Assert | cst.Raise | cst.Pass)
        or (isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and call_name(small.value) in _TELLING)
        for small in _smalls(body)
    )


def _smalls(body: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    for line in body.body:
        yield from line.body if isinstance(line, cst.SimpleStatementLine) else (line,)


def _truth(value: cst.BaseExpression) -> bool | None:
    known = literal(value)
    return bool(known.value) if known is not None else None


def _is_none(value: cst.BaseExpression) -> bool:
    known = literal(value)
    return known is not None and known.value is None
