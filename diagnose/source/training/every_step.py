"""The code that runs in every step of training: the body of the loop, and the functions that it calls."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import libcst as cst

from diagnose.model import Place
from diagnose.source.dataflow.flow import Loop, loops_around
from diagnose.source.dataflow.iteration import NUMBERS
from diagnose.source.training.library_passes import library_passes
from diagnose.source.tree.attributes import is_of_self
from diagnose.source.tree.definitions import called_as, instances_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.outline import Function
from diagnose.source.tree.syntax import Source, parse

_Node = TypeVar("_Node", bound=cst.CSTNode)
_BACKWARD = frozenset({"backward", "manual_backward"})
_STEPS = re.compile(r"opt|scaler|engine", re.IGNORECASE)
_DEEPEST = 5  # calls from the loop down


@dataclass(frozen=True, eq=False)
class Stretch:
    """A piece of code that every step runs."""

    path: str
    source: Source
    node: cst.CSTNode | Function
    loop: Loop | None
    """The loop over batches where the piece is its body; None for a function."""

    @cached_property
    def body(self) -> cst.CSTNode:
        """A loop, or a function that a step calls."""
        return self.source.function(self.node.number) if isinstance(self.node, Function) else self.node

    @property
    def lines(self) -> tuple[int, int]:
        """Its first and last line, from 1; of a function without its decorators."""
        if isinstance(self.node, Function):
            return self.node.node.lineno, self.node.node.end_lineno or self.node.node.lineno
        return self.source.lines_of(self.node)

    @cached_property
    def text(self) -> str:
        """The lines of it, as they are written."""
        if not isinstance(self.node, Function):
            return self.source.code(self.node)
        lines = self.source.text_lines[self.node.node.lineno - 1 : self.node.node.end_lineno]
        return "\n".join(lines)

    def mentions(self, words: Sequence[str], here: Sequence[str]) -> bool:
        """Whether the file holds one of the words, and these lines one of the others, where any are given."""
        held = self.source.mentions(*words) and self.source.mentions(*here)
        return held and (not here or any(word in self.text for word in here))

    def may_hold(self, *kinds: type[ast.AST]) -> bool:
        """Whether nodes of these kinds are in it; True where only the tree would tell."""
        return not isinstance(self.node, Function) or any(isinstance(each, kinds) for each in ast.walk(self.node.node))

    def may_call(self, is_one: Callable[[ast.Call], bool]) -> bool:
        """Whether a call in it is one that is looked for; True where only the tree would tell."""
        if not isinstance(self.node, Function):
            return True
        return any(isinstance(each, ast.Call) and is_one(each) for each in ast.walk(self.node.node))

    def steady(self, kind: type[_Node]) -> Iterator[_Node]:
        """The nodes of a kind that run in every turn, not now and then."""
        inner = self.body.body if isinstance(self.body, cst.For | cst.While | cst.FunctionDef) else self.body
        return (node for node in self.source.every(kind, inner) if not is_occasional(self.source, node, self.body))

    @property
    def called(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of functions and of methods that are called in every turn."""
        if isinstance(self.node, Function):
            return self.node.called
        called = [call.func for call in self.steady(cst.Call)]
        return (
            frozenset(func.value for func in called if isinstance(func, cst.Name)),
            frozenset(func.attr.value for func in called if isinstance(func, cst.Attribute)),
        )


def is_occasional(source: Source, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether a node within `outer` runs only in some turns: behind a counter, in a handler, in a function of its own.

    A condition that counts (`step % 10 == 0`, `step > 100`) makes it so; one that is about the machine does not.
    """
    counters = _counters(source, outer)
    below: cst.CSTNode = node
    for above in source.ancestors(node):
        if above is outer:
            return False
        if isinstance(above, cst.ExceptHandler | cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return True
        if isinstance(above, cst.If | cst.IfExp) and below is not above.test and _counts(source, above.test, counters):
            return True
        below = above
    return False


def _counters(source: Source, outer: cst.CSTNode) -> frozenset[str]:
    """The names that a loop counts with."""
    names = {
        node.target.value
        for node in source.every(cst.AugAssign, outer)
        if isinstance(node.target, cst.Name) and isinstance(node.value, cst.Integer)
    }
    if isinstance(outer, cst.For):
        target = outer.target
        first = target.elements[0].value if isinstance(target, cst.Tuple) and target.elements else target
        over = outer.iter
        counted = isinstance(over, cst.Call) and call_name(over) in NUMBERS | {"enumerate"}
        if isinstance(first, cst.Name) and (counted or isinstance(target, cst.Tuple)):
            names.add(first.value)
    return frozenset(names)


def _counts(source: Source, test: cst.BaseExpression, counters: frozenset[str]) -> bool:
    return any(source.every(cst.Modulo, test)) or any(name.value in counters for name in source.every(cst.Name, test))


class EveryStep:
    """Finds that code in a program's files. The files and stretches of equal texts are found once."""

    def __init__(self, sources: Mapping[str, str], where: Sequence[Place] = ()) -> None:
        self._found = _found_in(tuple(sources.items()))
        self._where = where

    @property
    def sources(self) -> Mapping[str, Source]:
        """The files that can be read, by path."""
        return self._found.sources

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Loops over batches first, then what they call."""
        return self._found.stretches

    def mentioning(self, *words: str) -> dict[str, Source]:
        """The files that hold one of the words."""
        return {path: source for path, source in self.sources.items() if source.mentions(*words)}

    def calls(
        self, *words: str, here: Sequence[str] = (), is_one: Callable[[ast.Call], bool] | None = None
    ) -> Iterator[tuple[Stretch, cst.Call]]:
        """Every call that is made in every step, once each, and those on lines that the finding names.

        A look at all code of a large program takes long: only files are looked at that hold one of the words, which
        may be in an import, and of these only stretches that hold one of those which must be written `here`, and a call
        that may be `is_one` where that is given.
        """
        seen: set[cst.CSTNode] = set()
        for stretch in self.stretches:
            held = stretch.mentions(words, here) and (is_one is None or stretch.may_call(is_one))
            for call in stretch.steady(cst.Call) if held else ():
                if call not in seen:
                    seen.add(call)
                    yield stretch, call
        named: dict[str, set[int]] = {}
        for place in self._where:
            named.setdefault(place.file, set()).add(place.line)
        for path, source in self.sources.items():
            lines = named.get(path, ())
            for call in source.every(cst.Call) if lines and source.mentions(*words) and source.mentions(*here) else ():
                first, last = source.lines_of(call)
                if call not in seen and any(line in lines for line in range(first, last + 1)):
                    seen.add(call)
                    yield Stretch(path, source, source.module, None), call

    def beginning(self, stretch: Stretch) -> Stretch:
        """Return where training begins: the outermost loop around a loop of steps, in its function or around its
        calls."""
        source, loop = stretch.source, stretch.loop
        around = loops_around(source, loop) if loop is not None else []
        if around:
            return Stretch(stretch.path, source, around[-1], around[-1])
        function = source.inside(loop, cst.FunctionDef) if loop is not None else None
        if function is None:
            return stretch
        callers: dict[cst.CSTNode, Stretch] = {}
        for path, other in self.mentioning(function.name.value).items():
            for call in other.calls_named(function.name.value):
                called = _calls(other, call, function) or _calls_instance(other, call, source, function)
                loops = loops_around(other, call) if called else []
                if loops:
                    callers[loops[-1]] = Stretch(path, other, loops[-1], loops[-1])
        return next(iter(callers.values())) if len(callers) == 1 else stretch


@lru_cache(maxsize=16)
def _found_in(texts: tuple[tuple[str, str], ...]) -> _Found:
    parsed = ((path, parse(text)) for path, text in texts)
    return _Found({path: source for path, source in parsed if source is not None})


class _Found:
    """The files of one state of a program, and what every step of it runs."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """Loops over batches first, then what they call."""
        found: dict[object, Stretch] = {}
        pending: deque[tuple[Stretch, int]] = deque()
        expanded: tuple[set[str], set[str]] = set(), set()

        def reach(stretches: Iterable[Stretch], depth: int) -> None:
            for stretch in stretches:
                if stretch.node not in found:
                    found[stretch.node] = stretch
                    pending.append((stretch, depth))

        reach(self._trained(), 0)
        while pending:
            stretch, depth = pending.popleft()
            if depth < _DEEPEST:
                functions, methods = stretch.called
                new = functions - expanded[0], (methods | {"forward"}) - expanded[1]
                expanded[0].update(new[0])
                expanded[1].update(new[1])
                reach(self._named(*new), depth + 1)
        return tuple(found.values())

    def _trained(self) -> list[Stretch]:
        """Loops around a backward pass, and functions that make one without a loop of their own.

        Those that a library makes count where the program makes none itself.
        """
        found: list[Stretch] = []
        for path, source in self.sources.items():
            for call in source.calls_named(*_BACKWARD):
                if isinstance(call.func, cst.Attribute):
                    found += self._around(path, source, call)
        for path, source in self.sources.items() if not found else ():
            for call, _ in library_passes(source):
                found += self._around(path, source, call)
        return found

    def _around(self, path: str, source: Source, call: cst.Call, depth: int = 0) -> list[Stretch]:
        loop = batch_loop(source, call)
        if loop is not None:
            return [Stretch(path, source, loop, loop)]
        function = source.inside(call, cst.FunctionDef)
        if function is None or depth >= _DEEPEST:
            return []
        found = [Stretch(path, source, source.outline_of(function) or function, None)]
        names = called_as(source, function, self.sources.values())
        for other_path, other in self.sources.items():
            for use in other.calls_named(*names):
                if other.inside(use, cst.FunctionDef) is not function:
                    found += self._around(other_path, other, use, depth + 1)
        return found

    def _named(self, functions: Set[str], methods: Set[str]) -> Iterator[Stretch]:
        """The functions and methods of the program's own with these names."""
        places = {place for name in functions for place in self._places.get((name, False), ())}
        places |= {place for name in methods for place in self._places.get((name, True), ())}
        for place in sorted(places):
            path, function = self._functions[place]
            yield Stretch(path, self.sources[path], function, None)

    @cached_property
    def _functions(self) -> list[tuple[str, Function]]:
        return [(path, function) for path, source in self.sources.items() for function in source.outlined]

    @cached_property
    def _places(self) -> dict[tuple[str, bool], list[int]]:
        """Where the functions are by their names, and whether they are methods."""
        places: dict[tuple[str, bool], list[int]] = {}
        for at, (_, function) in enumerate(self._functions):
            places.setdefault((function.name, function.is_method), []).append(at)
        return places


def _calls(source: Source, call: cst.Call, function: cst.FunctionDef) -> bool:
    """Whether a call is of a function by its name, or of a method by `self`: `model.train()` is of neither.

    Another file or class may have one of that name of its own.
    """
    is_method = [param.name.value for param in function.params.params][:1] == ["self"]
    if call_name(call) != function.name.value or isinstance(call.func, cst.Attribute) is not is_method:
        return False
    if isinstance(call.func, cst.Attribute) and not is_of_self(call.func):
        return False
    around = source.inside(call, cst.ClassDef) if is_method else source.module
    here = around.body.body if isinstance(around, cst.ClassDef) else source.module.body
    own = [each for each in here if isinstance(each, cst.FunctionDef) and each.name.value == function.name.value]
    return not own or any(each is function for each in own)


def _calls_instance(source: Source, call: cst.Call, defining: Source, function: cst.FunctionDef) -> bool:
    """Whether a call is of a method of an instance that the same file makes: `agent.update()` with `agent = PPO()`."""
    owner = defining.inside(function, cst.ClassDef)
    if owner is None or not isinstance(call.func, cst.Attribute):
        return False
    return source.code(call.func.value).rpartition(".")[2] in instances_of(source, owner.name.value)


def batch_loop(source: Source, call: cst.Call) -> Loop | None:
    """The loop whose turns are steps: the innermost around a backward pass, or the one around it that updates."""
    loops = loops_around(source, call)
    at = 0
    while at + 1 < len(loops) and not _updates(source, loops[at]) and _updates(source, loops[at + 1]):
        at += 1
    return loops[at] if loops else None


def batch_loops(source: Source) -> set[Loop]:
    """The loops of a file whose turns are steps."""
    passes = (call for call in source.calls_named(*_BACKWARD) if isinstance(call.func, cst.Attribute))
    return {loop for loop in (batch_loop(source, call) for call in passes) if loop is not None}


def counter_of(source: Source, loop: Loop) -> str | None:
    """The variable that counts the turns of a loop, one by one; None where none does.

    One that the loop also sets, such as to 0 after each line of a log, counts fewer.
    """
    target = _target(source, loop) if isinstance(loop, cst.For) else None
    if target is not None and target.strip("_"):  # a name of nothing else says that nobody reads it
        return target
    body = loop.body.body if isinstance(loop.body, cst.IndentedBlock) else ()
    for small in (small for line in body if isinstance(line, cst.SimpleStatementLine) for small in line.body):
        if not isinstance(small, cst.AugAssign) or not isinstance(small.operator, cst.AddAssign):
            continue
        counted = small.target.value if isinstance(small.target, cst.Name) else None
        if counted is not None and source.code(small.value) == "1" and not _sets(source, loop, counted):
            return counted
    return None


def _sets(source: Source, loop: Loop, name: str) -> bool:
    """Whether a loop assigns a variable, other than by adding to it."""
    targets = (target.target for target in source.every(cst.AssignTarget, loop))
    return any(each.value == name for target in targets for each in source.every(cst.Name, target))


def _target(source: Source, loop: cst.For) -> str | None:
    """The variable that `enumerate`, or a range of all numbers, counts with."""
    target, over = loop.target, source.code(loop.iter)
    if isinstance(target, cst.Tuple) and "enumerate(" in over and isinstance(target.elements[0].value, cst.Name):
        return target.elements[0].value.value
    if isinstance(target, cst.Name) and re.match(r"(\w+\.)*t?range\(|tqdm\((\w+\.)*range\(", over):
        ranges = [call for call in source.every(cst.Call, loop.iter) if call_name(call) in {"range", "trange"}]
        return target.value if ranges and len(ranges[0].args) < len(("begin", "end", "step")) else None
    return None


def _updates(source: Source, loop: Loop) -> bool:
    """Whether an optimizer makes its step in a loop."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "step"
        and _STEPS.search(source.code(call.func.value)) is not None
        for call in source.every(cst.Call, loop)
    )
