"""When a statement of a program runs, beside the loader that it goes through."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import libcst as cst

from diagnose.source.dataflow.flow import is_variable, within
from diagnose.source.dataflow.iteration import NUMBERS, OF_ONE
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_names import is_read
from diagnose.source.samples.sharing.shared_objects import SharedObjects
from diagnose.source.tree.attributes import binds_whole, whole
from diagnose.source.tree.definitions import is_foreign
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_SAME_VALUES = OF_ONE | {"reversed", "list"}
"""Calls that a loop goes through as it would through what they are given."""
_STARTS = frozenset({"spawn", "Fire", "run", "launch", "Process", "notebook_launcher", "start_processes"})
"""Calls that run a function they are given once, where they stand."""
_ASK_OF_CLASSES = frozenset({"super", "isinstance", "issubclass"})
_STEPS = frozenset({"iter", "next", "__next__"})
"""Calls that hold an iterator or take one value of it; a file without these words has none."""

_REGISTERS = re.compile(r"\b(?:__subclasses__|__init_subclass__|import_module|__import__|globals|sys\.modules)\b")
"""What finds classes and modules that the text does not name."""


class When(IntEnum):
    """The time at which a statement runs."""

    BEFORE = 0
    """The statement runs before the loader is iterated."""
    BETWEEN = 1
    """The statement runs between two epochs."""
    DURING = 2
    """The statement runs while batches come, or nothing shows that it does not."""


@dataclass(frozen=True)
class StatementOrder:
    """When statements run, before or after or while a loader is gone through."""

    code: SampleCode
    shared: SharedObjects
    path: str
    loader: cst.Call

    def when(self, path: str, node: cst.CSTNode) -> When:
        """Return when a node runs at the latest: where it stands, and where the functions around it are called from.

        Each function is looked at once: where most call each other, the ways through them are too many.
        """
        latest, seen = When.BEFORE, set[cst.CSTNode]()
        pending = [(path, node)]
        while pending and latest < When.DURING:
            path, node = pending.pop()
            here, function = self._where_it_stands(path, node)
            latest = max(latest, here)
            if function is None or function in seen or self._is_early(path, node, function):
                continue
            seen.add(function)
            callers = self._callers(path, function)
            owner = self.code.sources[path].inside(function, cst.ClassDef)
            if callers is None:
                return When.DURING
            if not callers and owner not in self.code.lasting and not self._is_unused(path, owner or function):
                return When.DURING
            pending += callers
        return latest

    def _where_it_stands(self, path: str, node: cst.CSTNode) -> tuple[When, cst.FunctionDef | None]:
        """Return when a node runs by the loops around it, and the function that they are in; None where that tells no
        more."""
        source = self.code.sources[path]
        latest = When.BEFORE
        own = source.inside(node, cst.ClassDef) in self.code.lasting  # it goes through files, not through the loader
        for above in source.ancestors(node):
            if isinstance(above, cst.Lambda):
                return When.DURING, None
            if own and isinstance(above, cst.For | cst.While):
                continue
            if isinstance(above, cst.For) and not (above.iter is node or within(source, node, above.iter)):
                if above.target is not node and not within(source, node, above.target):
                    latest = max(latest, self._of_loop(source, above))
                elif not _is_counted(source, above.iter):
                    latest = When.DURING
                else:
                    latest = max(latest, When.BETWEEN)
            if isinstance(above, cst.While):
                latest = max(latest, self._of_loop(source, above))
            if isinstance(above, cst.FunctionDef):
                early = latest > When.BEFORE and self._precedes(path, node)
                return (When.BEFORE, None) if early else (latest, above)
        if latest > When.BEFORE:
            return When.BEFORE if self._precedes(path, node) else latest, None
        return self._of_script(path, node), None

    def _of_script(self, path: str, node: cst.CSTNode) -> When:
        """Return when a node runs that no function and no loop is around."""
        earlier = path != self.path or self.code.sources[path].span(node)[0] < self._begin
        if earlier or self._nothing_ran_before(node):
            return When.BEFORE
        return When.DURING if self._by_hand else When.BETWEEN

    @property
    def _begin(self) -> int:
        """Where the loader begins in its file."""
        return self.code.sources[self.path].span(self.loader)[0]

    def _is_early(self, path: str, node: cst.CSTNode, function: cst.FunctionDef) -> bool:
        """Whether a node of a function runs before the loader is there, wherever the function is called from."""
        if function in self.code.building:
            return True
        source = self.code.sources[path]
        return path == self.path and within(source, self.loader, function) and source.span(node)[0] < self._begin

    def _precedes(self, path: str, node: cst.CSTNode, seen: frozenset[cst.CSTNode] = frozenset()) -> bool:
        """Whether a node has run for the last time when the loader is built, as far as calls of functions show."""
        source = self.code.sources[path]
        function = source.inside(node, cst.FunctionDef)
        if path == self.path and (function is None or within(source, self.loader, function)):
            loops = (above for above in source.ancestors(node) if isinstance(above, cst.For | cst.While))
            again = any(within(source, self.loader, loop) for loop in loops)
            same = function is None or source.inside(self.loader, cst.FunctionDef) is function
            return same and not again and source.span(node)[0] < source.span(self.loader)[0]
        if function is None or function in seen or any(source.every(cst.Yield, function)):
            return False
        if function not in self._preceding:  # one that calls itself on some way does not precede on any
            callers = self._callers(path, function) or ()
            early = all(self._precedes(file, used, seen | {function}) for file, used in callers)
            self._preceding[function] = bool(callers) and early
        return self._preceding[function]

    @cached_property
    def _preceding(self) -> dict[cst.FunctionDef, bool]:
        """The answers of `_precedes` for whole functions."""
        return {}

    def goes_through(self, source: Source, node: cst.CSTNode, skipped: frozenset[str]) -> bool:
        """Whether code may go through something: in a loop, by `next`, or by the program's functions that it calls.

        `skipped` are the names of what is not looked at. Each function is looked at once. What hands functions on
        (`map(step, loader)`), or calls what no name tells (`COMMANDS[name]()`), may go through anything.
        """
        seen = set[str]()
        pending = [(source, node)]
        while pending:
            source, node = pending.pop()
            if any(isinstance(each, cst.For | cst.While | cst.CompFor) for each in source.walk(node)):
                return True
            for call in source.every(cst.Call, node):
                name = call_name(call)
                if name in skipped or name == "DataLoader":  # what it is handed runs later, as its samples come
                    continue
                if name == "next" or not isinstance(call.func, cst.Name | cst.Attribute):
                    return True
                if any(self._is_function(source, arg.value) for arg in call.args):
                    return True
                for path, each in self.code.defined.named(name) if name not in seen else ():
                    if isinstance(each, cst.ClassDef):
                        return True
                    pending.append((self.code.sources[path], each.body))
                seen.add(name)
        return False

    def _is_function(self, source: Source, value: cst.BaseExpression) -> bool:
        """Whether a value is a function of the program's, or a method of its own class."""
        if isinstance(value, cst.Attribute) and source.code(value.value) == "self":
            owner = source.inside(value, cst.ClassDef)
            methods = source.functions_named(value.attr.value) if owner is not None else ()
            return any(source.inside(each, cst.ClassDef) is owner for each in methods)
        found = self.code.named(source, value)
        return isinstance(value, cst.Lambda) or any(isinstance(each, cst.FunctionDef) for _, each in found)

    def _nothing_ran_before(self, node: cst.CSTNode) -> bool:
        """Whether a script has called none of its own functions yet, and the loader is built in one of them."""
        source = self.code.sources[self.path]
        if source.inside(self.loader, cst.FunctionDef) is None:
            return False
        return not any(
            each.value in self.code.defined
            and source.span(each)[0] < source.span(node)[0]
            and is_read(source, each)
            and not any(isinstance(above, cst.FunctionDef | cst.ClassDef) for above in source.ancestors(each))
            for each in source.every(cst.Name)
        )

    @cached_property
    def _called_by(self) -> dict[cst.FunctionDef, list[tuple[str, cst.BaseExpression]] | None]:
        """The answers of `_callers`."""
        return {}

    def _callers(self, path: str, function: cst.FunctionDef) -> list[tuple[str, cst.BaseExpression]] | None:
        """Return what a function is called by, all calls of its name taken together; None where nobody knows when it
        runs."""
        if function not in self._called_by:
            self._called_by[function] = self._find_callers(path, function)
        return self._called_by[function]

    def _find_callers(self, path: str, function: cst.FunctionDef) -> list[tuple[str, cst.BaseExpression]] | None:
        source = self.code.sources[path]
        owner = source.inside(function, cst.ClassDef)
        plain = all(source.code(each.decorator) in {"staticmethod", "classmethod"} for each in function.decorators)
        if any(source.every(cst.Yield, function)) or (not plain and owner is not None):
            return None
        constructs = owner is not None and function.name.value == "__init__"
        name = owner.name.value if owner is not None and constructs else function.name.value
        found: list[tuple[str, cst.BaseExpression]] = []
        names: dict[tuple[str, str | None], None] = {(name, None): None}
        for name, only in (following := list(names)):  # and what a class is called besides, or is the base of
            for file, other in self.code.sources.items():
                for each in other.named(name) if only in {file, None} else ():
                    parent = other.parent(each)
                    if isinstance(parent, cst.FunctionDef | cst.ClassDef | cst.ImportAlias):
                        continue
                    used = whole(other, each)
                    if (used is each and not is_variable(other, each)) or is_foreign(other, used, self.code.sources):
                        continue
                    if used is each and owner is not None and not constructs:
                        continue
                    if owner is None and not self._stands_for(function, other, used):
                        continue
                    call = other.parent(used)
                    if isinstance(call, cst.Call) and call.func is used:
                        its = used.value if isinstance(used, cst.Attribute) and owner in self.code.lasting else None
                        if its is not None and not self.shared.may_be_shared(file, its):
                            continue
                    elif constructs and (others := _other_names(other, used, file)) is not None:
                        following += [one for one in others if one not in names]
                        names |= dict.fromkeys(others)
                        continue
                    elif not (isinstance(call, cst.Arg) and _starts(other, call)):
                        return None  # handed on, to be called nobody knows when
                    found.append((file, used))
        return found

    def _is_unused(self, path: str, node: cst.FunctionDef | cst.ClassDef) -> bool:
        """Whether nothing in the program names a function or a class, or may find it by other means than its name."""
        source, name = self.code.sources[path], node.name.value
        if (
            node.decorators
            or self._finds_without_names
            or (isinstance(node, cst.ClassDef) and self._has_own_base(node))
        ):
            return False
        module = path.rpartition("/")[2].removesuffix(".py")
        found = re.compile(rf"\b{name}\b|\b{module}\.__dict__|\bvars\({module}\b")
        texts = (other.text for other in self.code.sources.values() if other is not source)
        here = len(found.findall(source.text)) == len(found.findall(source.code(node)))
        return here and not any(map(found.search, texts))

    def _has_own_base(self, node: cst.ClassDef) -> bool:
        """Whether a class is derived from one of the program's, which may keep a list of those derived from it."""
        bases = (base.value for base in node.bases)
        names = (each.attr if isinstance(each, cst.Attribute) else each for each in bases)
        return any(not isinstance(each, cst.Name) or each.value in self.code.defined for each in names)

    @cached_property
    def _finds_without_names(self) -> bool:
        """Whether the program may find functions and classes by names that are not in its text, or by no name."""
        return any(
            _REGISTERS.search(source.text) is not None
            or any(
                isinstance(call.func, cst.Name) and len(call.args) > 1 and string(call.args[1].value) is None
                for call in source.calls_named("getattr")
            )
            for source in self.code.sources.values()
        )

    def _stands_for(self, function: cst.FunctionDef, source: Source, used: cst.BaseExpression) -> bool:
        """Whether a name or `module.name` may be a function's: a parameter is another, and so is `self.name`."""
        local = isinstance(used, cst.Attribute) and all("<locals>" in name for name in source.names(used))
        return not local and any(found is function for _, found in self.code.named(source, used))

    def _of_loop(self, source: Source, loop: cst.For | cst.While) -> When:
        """Whether batches come in each turn of a loop, or whole epochs."""
        if self._by_hand:
            return When.DURING
        if isinstance(loop, cst.For):
            return When.BETWEEN if _is_counted(source, loop.iter) else When.DURING
        inner = any(not _is_counted(source, each.iter) for each in source.every(cst.For, loop.body))
        calls = any(call_name(call) in self.code.defined for call in source.every(cst.Call, loop.body))
        return When.BETWEEN if inner or calls else When.DURING

    @cached_property
    def _by_hand(self) -> bool:
        """Whether the program holds an iterator of a loader beside the `for` of an epoch."""
        for source in self.code.sources.values():
            for call in source.every(cst.Call) if not source.words.isdisjoint(_STEPS) else ():
                if (
                    _holds_iterator(source, call)
                    and not any(
                        each in self.code.sampling or each in self.code.building for each in source.ancestors(call)
                    )
                    and not any(".parameters()" in source.code(arg.value) for arg in call.args)
                ):
                    return True
            for function in source.every(cst.FunctionDef) if "yield" in source.words else ():
                if function.name.value == "__iter__":
                    continue  # each `for` begins with a new iterator, as it does of a loader
                if function not in self.code.sampling and _yields_of_another(source, function):
                    return True
        return False


def _holds_iterator(source: Source, call: cst.Call) -> bool:
    """Whether a call makes an iterator that lives on, or takes a value of one: `next(iter(loader))` leaves none."""
    name = call_name(call)
    if name == "iter":
        above = source.parent(source.parent(call) or call)
        return not (isinstance(above, cst.Call) and source.code(above.func) == "next")
    if name == "next" and isinstance(call.func, cst.Name):
        value = call.args[0].value if call.args else None
        return not (isinstance(value, cst.Call) and source.code(value.func) == "iter")
    return name == "__next__"


def _yields_of_another(source: Source, function: cst.FunctionDef) -> bool:
    """Whether a function yields from within a loop over something else, which may be a loader."""
    for each in source.every(cst.Yield, function):
        if isinstance(each.value, cst.From) and not _is_counted(source, each.value.item):
            return True
        loops = (
            above for above in source.ancestors(each) if isinstance(above, cst.For) and within(source, above, function)
        )
        if any(not _is_counted(source, loop.iter) for loop in loops):
            return True
    return False


def _other_names(source: Source, used: cst.BaseExpression, file: str) -> Sequence[tuple[str, str | None]] | None:
    """Return the names by which a class is called where one is used, as a base or in an assignment, `Model = Net`.

    Each with the file in which it is one; None where it is used otherwise.
    """
    parent = source.parent(used)
    if isinstance(parent, cst.AssignTarget):
        return ()
    if isinstance(parent, cst.Assign) and all(isinstance(each.target, cst.Name) for each in parent.targets):
        return [(each.target.value, file) for each in parent.targets if isinstance(each.target, cst.Name)]
    above = source.parent(parent) if isinstance(parent, cst.Arg) else None
    if isinstance(above, cst.Call) and call_name(above) in _ASK_OF_CLASSES:
        return ()
    return [(above.name.value, None)] if isinstance(above, cst.ClassDef) else None


def _starts(source: Source, arg: cst.Arg) -> bool:
    call = source.parent(arg)
    return isinstance(call, cst.Call) and call_name(call) in _STARTS


def _is_counted(source: Source, node: cst.BaseExpression, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a loop goes through numbers or written values, which are no batches.

    `seen` are the names on the way: `steps = tqdm(steps)` does not tell what the steps are.
    """
    while True:
        if isinstance(node, cst.Call) and call_name(node) in _SAME_VALUES and node.args:
            node = node.args[0].value
        elif isinstance(node, cst.Subscript) and all(isinstance(each.slice, cst.Slice) for each in node.slice):
            node = node.value
        else:
            break
    if isinstance(node, cst.Call):
        return call_name(node) in NUMBERS or call_name(node) == "tolist"  # a tensor's, which is there as a whole
    if isinstance(node, cst.Name):
        values = [each.value for each in source.every(cst.Assign) if binds_whole(each, node.value)]
        known = seen | {node.value}
        return node.value in seen or (bool(values) and all(_is_counted(source, each, known) for each in values))
    return isinstance(node, cst.List | cst.Tuple)
