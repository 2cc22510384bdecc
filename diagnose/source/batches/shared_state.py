"""State that a dataset shares with the program around it, which a worker process or a kept sample would not see.

What a loader runs for a sample reads attributes and globals. Where the program changes one of those, the place of the
change decides: before the loader is gone through, all is well; between two epochs, workers that are started anew see
it, and workers that live on do not; while batches come, no worker sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import libcst as cst

from diagnose.source.batches.dataset_rng import draws_of_order
from diagnose.source.batches.open_handles import held_handles
from diagnose.source.batches.sample_code import SampleCode, is_read
from diagnose.source.batches.sample_effects import Trace, changed_by, handed_on, is_own, local_names, root_of, traces
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.flow import is_variable, within
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import parse_all, per_program, per_source
from diagnose.source.tree.syntax import Source

__all__ = ["SharedState", "When", "shared_state"]

_COUNTED = frozenset({"range", "trange", "count"})
_STARTS = frozenset({"spawn", "Fire", "run", "launch", "Process", "notebook_launcher", "start_processes"})
"""Calls that run a function they are given once, where they stand."""


class When(IntEnum):
    """When a statement runs."""

    BEFORE = 0
    """Before the loader is gone through."""
    BETWEEN = 1
    """Between two epochs."""
    DURING = 2
    """While batches come, or nothing shows that it is not then."""


_GO_THROUGH = (".parameters(", ".named_parameters(", ".modules(", ".named_modules(", ".param_groups", ".buffers(")


@dataclass(frozen=True)
class SharedState:
    """The state that the samples of one loader share with the program."""

    texts: Mapping[str, str]
    path: str
    loader: cst.Call
    made_by: tuple[cst.BaseExpression, ...]
    """The expressions that make the dataset and the collate function."""
    names: tuple[str, ...] = ()
    """Classes and functions that the run saw in their place."""
    init: cst.BaseExpression | None = None
    """The loader's `worker_init_fn`, which runs in workers."""
    is_dataset: bool = True
    """Where nothing shows what these expressions make, it is one of the program's datasets."""

    @cached_property
    def code(self) -> SampleCode:
        """The program's own code that makes samples."""
        sources = parse_all(self.texts)
        code = SampleCode(sources)
        for node in self.made_by:
            code.builds(self.path, node)
            for path, value in _attribute_values(sources, node):
                code.builds(path, value)
        for name in self.names:
            code.makes_samples_by(name)
        if self.is_dataset and not code.classes and not code.sampling:
            for path, source in sources.items():
                for found in source.every(cst.ClassDef):
                    if any(source.code(base.value).partition("[")[0].endswith("Dataset") for base in found.bases):
                        code.makes_samples_by(f"{path}.{found.name.value}")
        return code

    def traces(self) -> Iterator[Trace]:
        """Yield what samples leave behind, depend on besides their index, or hold open."""
        yield from traces(self.code)
        yield from self._opened_outside()
        yield from self._caught()
        yield from self._trained()
        yield from self._asked_of_caches()
        size = argument(self.loader, "batch_size", 1)
        if size is not None and self.code.sources[self.path].code(size.value) == "None":
            for node, path in self.code.sampling.items():
                source = self.code.sources[path]
                for alias in handed_on(source, node):
                    words = f"hands on `{source.code(alias)}` itself, which is no copy and which training may change"
                    yield Trace(words, path, source.lines_of(alias)[0])

    def late_draws(self) -> Iterator[Trace]:
        """Random numbers that a sampler draws between two samples, where training draws its own."""
        late: dict[str, list[tuple[int, int]]] = {}
        for draw in draws_of_order(self.texts, self.path, self.made_by):
            if draw.path not in late:
                source = self.code.sources[draw.path]
                late[draw.path] = [source.lines_of(each) for each in _between_samples(source)]
            if any(first <= draw.line <= last for first, last in late[draw.path]):
                yield Trace(f"draws random numbers from turn to turn (`{draw.code}`)", draw.path, draw.line)

    def unsent(self) -> Iterator[Trace]:
        """Functions and classes without a name in a module, which cannot be sent to another process."""
        for node, path in [*self.code.sampling.items(), *self.code.classes.items()]:
            source = self.code.sources[path]
            if isinstance(node, cst.Lambda) or source.inside(node, cst.FunctionDef) is not None:
                line = source.lines_of(node)[0]
                yield Trace(f"needs `{_line(source, node)}`, which has no name in a module", path, line)

    def handles(self) -> Iterator[Trace]:
        """Yield what samples read from handles that were opened before there were workers."""
        yield from held_handles(self.code)

    def changes(self, at_least: When) -> Iterator[Trace]:
        """Statements that change what samples read, and run then or later."""
        for path, source in self.code.sources.items():
            for target in _changes(source):
                if any(each in self.code.sampling or each in self._inits for each in source.ancestors(target)):
                    continue
                if not self._is_shared(path, target):
                    continue
                when = self._when(path, target)
                if when >= at_least:
                    at = source.lines_of(target)[0]
                    yield Trace(f"reads what the program changes (`{_line(source, target)}`)", path, at)
            yield from self._called(path, source, at_least)

    # What is shared

    @cached_property
    def _inits(self) -> set[cst.CSTNode]:
        """The functions that set up each worker."""
        source = self.code.sources[self.path]
        names = {each.value for each in source.every(cst.Name, self.init)} if self.init is not None else set()
        return {node for name in names for _, node in self.code.defined.named(name)}

    @cached_property
    def _read(self) -> tuple[set[str], set[str], set[str]]:
        """Names of attributes, of globals and of items that samples read."""
        attributes: set[str] = set()
        variables: set[str] = set()
        items: set[str] = set()
        for node, path in self.code.sampling.items():
            source = self.code.sources[path]
            own = local_names(source, node)
            for each in source.walk(node, cst.Attribute, cst.Name, cst.Subscript, cst.Call):
                if isinstance(each, cst.Attribute):
                    attributes.add(each.attr.value)
                elif isinstance(each, cst.Name) and is_read(source, each) and each.value not in own:
                    variables.add(each.value)
                elif isinstance(each, cst.Subscript | cst.Call):
                    items |= {text for one in source.every(cst.SimpleString, each) if (text := string(one)) is not None}
        return attributes, variables, items

    @cached_property
    def _whole(self) -> set[str]:
        """Names of globals that samples call, or hand on: all that lies in them counts."""
        found: set[str] = set()
        for node, path in self.code.sampling.items():
            source = self.code.sources[path]
            for each in source.every(cst.Name, node):
                parent = source.parent(each)
                part = isinstance(parent, cst.Attribute) and parent.value is each
                above = source.parent(parent) if part and parent is not None else None
                called = isinstance(above, cst.Call) and above.func is parent
                if each.value in self._read[1] and is_read(source, each) and (called or not part):
                    found.add(each.value)
        return found

    @cached_property
    def _given(self) -> set[str]:
        """Code of the variables and attributes that the dataset and what it takes are made from."""
        found: set[str] = set()
        for node, path in self.code.building.items():
            if isinstance(node, cst.FunctionDef):
                continue
            source = self.code.sources[path]
            for each in source.walk(node, cst.Attribute, cst.Name):
                variable = isinstance(each, cst.Name) and is_read(source, each)
                if variable or (isinstance(each, cst.Attribute) and isinstance(each.value, cst.Name)):
                    found.add(source.code(each))
        return found - {"self", "torch", "np", "nn"}

    def _is_shared(self, path: str, target: cst.BaseExpression) -> bool:
        """Whether a target that some statement changes is, or may be, a part of what samples read."""
        source = self.code.sources[path]
        attributes, variables, items = self._read
        node, keys = target, set()
        while isinstance(node, cst.Subscript):
            inner = node.slice[0].slice
            keys |= {string(inner.value)} if isinstance(inner, cst.Index) else set()
            node = node.value
        if source.code(node) == "globals()" or (isinstance(node, cst.Attribute) and node.attr.value == "__dict__"):
            return not keys or None in keys or not keys.isdisjoint(attributes | variables)
        changes_object = node is not target or _changes_object(source, target)
        if source.code(node) in self._given and changes_object:
            return not _is_of_model(source, node)
        root = root_of(node)
        if root is not node and isinstance(root, cst.Name) and root.value in self._whole:
            return self._is_bound_again(path, root) and not _is_of_model(source, root)
        if isinstance(node, cst.Attribute):
            name = node.attr.value
            of_dataset = isinstance(node.value, cst.Attribute) and node.value.attr.value == "dataset"
            of_dataset = of_dataset or source.code(node.value) in self._datasets
            return (of_dataset or name in attributes | variables) and self._may_be_shared(path, node.value)
        if isinstance(node, cst.Name):
            bound = binding_of(source, node) if changes_object else None
            if bound is not None and bound.parameter is not None and not is_own(source, node):
                given = self.code.values(path, node)
                if any(self.code.sources[file].code(value) in self._given for file, value in given):
                    return True
            if keys & items:
                return self._may_be_shared(path, node)
            if node.value in variables:
                return self._is_bound_again(path, node)
        return False

    def _is_bound_again(self, path: str, name: cst.Name) -> bool:
        """Whether a variable that samples read as a free one gets another value, or its object another state."""
        source = self.code.sources[path]
        if path not in self.code.sampling.values():
            return False
        function = source.inside(name, cst.FunctionDef)
        if function is None or name.value not in local_names(source, function):
            return True  # a global
        inner = [each for each in self.code.sampling if any(above is function for above in source.ancestors(each))]
        return any(  # a closure
            one.value == name.value and name.value not in local_names(source, each)
            for each in inner
            for one in source.every(cst.Name, each)
        )

    def _may_be_shared(self, path: str, node: cst.BaseExpression) -> bool:
        """Whether an object may be one that samples read from, as far as what makes it shows."""
        source = self.code.sources[path]
        if is_own(source, node):
            owner = source.inside(node, cst.ClassDef)
            return owner is None or owner in self.code.lasting
        root = root_of(node)
        if _is_of_model(source, root):
            return False
        if isinstance(node, cst.Name):
            made = list(self.code.values(path, node))
        elif isinstance(node, cst.Attribute):
            made = list(_attribute_values(self.code.sources, node))
        else:
            return True
        calls = [(file, value) for file, value in made if isinstance(value, cst.Call)]
        if not made or len(calls) < len(made):
            return True
        return any(self._makes_shared(file, value) for file, value in calls if isinstance(value, cst.Call))

    def _makes_shared(self, path: str, call: cst.Call) -> bool:
        defined = [each for _, each in self.code.defined.named(call_name(call)) if isinstance(each, cst.ClassDef)]
        if defined:
            return any(each in self.code.lasting for each in defined)
        names = self.code.sources[path].names(call.func)
        return not any(name.startswith(("torch.nn", "torch.optim", "torchvision.models")) for name in names)

    def _called(self, path: str, source: Source, at_least: When) -> Iterator[Trace]:
        """Methods of a library's dataset that are called for what they do to it."""
        for call in source.every(cst.Call):
            statement = isinstance(source.parent(call), cst.Expr)
            if not isinstance(call.func, cst.Attribute):
                if call_name(call) in {"setattr", "delattr"} and call.args and self._is_set(path, call):
                    yield from self._if_then(path, source, call, at_least)
                continue
            owner = call.func.value
            its = source.code(owner) in self._datasets or (
                isinstance(owner, cst.Attribute) and owner.attr.value == "dataset"
            )
            known = any(isinstance(each, cst.FunctionDef) for _, each in self.code.defined.named(call_name(call)))
            if statement and its and not known:
                yield from self._if_then(path, source, call, at_least)

    def _is_set(self, path: str, call: cst.Call) -> bool:
        source = self.code.sources[path]
        if any(each in self.code.sampling or each in self.code.building for each in source.ancestors(call)):
            return False
        given = string(call.args[1].value) if len(call.args) > 1 else None
        if given is not None and given not in self._read[0] | self._read[1]:
            return False
        return self._may_be_shared(path, call.args[0].value)

    def _if_then(self, path: str, source: Source, call: cst.Call, at_least: When) -> Iterator[Trace]:
        if self._when(path, call) >= at_least:
            words = f"reads what the program may change (`{source.code(call)}`)"
            yield Trace(words, path, source.lines_of(call)[0])

    @cached_property
    def _datasets(self) -> set[str]:
        return {self.code.sources[self.path].code(each) for each in self.made_by if not isinstance(each, cst.Call)}

    # When

    def _when(self, path: str, node: cst.CSTNode, seen: frozenset[cst.CSTNode] = frozenset()) -> When:
        source = self.code.sources[path]
        latest = When.BEFORE
        for above in source.ancestors(node):
            if isinstance(above, cst.Lambda):
                return When.DURING
            if isinstance(above, cst.For) and not (above.iter is node or within(source, node, above.iter)):
                if above.target is not node and not within(source, node, above.target):
                    latest = max(latest, self._of_loop(source, above))
                elif not self._is_counted(source, above.iter):
                    latest = When.DURING
                else:
                    latest = max(latest, When.BETWEEN)
            if isinstance(above, cst.While):
                latest = max(latest, self._of_loop(source, above))
            if isinstance(above, cst.FunctionDef):
                return max(latest, self._of_function(path, node, above, seen)) if latest < When.DURING else latest
        if latest > When.BEFORE:
            return latest
        earlier = path != self.path or source.span(node)[0] < self.code.sources[self.path].span(self.loader)[0]
        if earlier or self._nothing_ran_before(node):
            return When.BEFORE
        return When.DURING if self._by_hand else When.BETWEEN

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

    def _of_function(
        self, path: str, node: cst.CSTNode, function: cst.FunctionDef, seen: frozenset[cst.CSTNode]
    ) -> When:
        """When a function runs: where it is called, all calls of its name taken together."""
        source = self.code.sources[path]
        if function in self.code.building:
            return When.BEFORE
        if function in seen:
            return When.BEFORE
        here = path == self.path and within(source, self.loader, function)
        if here and source.span(node)[0] < source.span(self.loader)[0]:
            return When.BEFORE
        owner = source.inside(function, cst.ClassDef)
        plain = all(source.code(each.decorator) in {"staticmethod", "classmethod"} for each in function.decorators)
        if any(source.every(cst.Yield, function)) or (not plain and owner is not None):
            return When.DURING
        name = owner.name.value if owner is not None and function.name.value == "__init__" else function.name.value
        latest, found = When.BEFORE, False
        for file, other in self.code.sources.items():
            for each in other.every(cst.Name):
                if each.value != name or isinstance(
                    other.parent(each), cst.FunctionDef | cst.ClassDef | cst.ImportAlias
                ):
                    continue
                parent = other.parent(each)
                used = parent if isinstance(parent, cst.Attribute) and parent.attr is each else each
                if used is each and not is_variable(other, each):
                    continue
                if used is each and owner is not None and function.name.value != "__init__":
                    continue
                call = other.parent(used)
                if isinstance(call, cst.Call) and call.func is used:
                    of_lasting = isinstance(used, cst.Attribute) and owner in self.code.lasting
                    if of_lasting and isinstance(used, cst.Attribute) and not self._may_be_shared(file, used.value):
                        continue
                elif not (isinstance(call, cst.Arg) and self._starts(other, call)):
                    return When.DURING  # handed on, to be called nobody knows when
                found = True
                latest = max(latest, self._when(file, used, seen | {function}))
        if not found and owner not in self.code.lasting:
            return When.DURING
        return latest

    def _starts(self, source: Source, arg: cst.Arg) -> bool:
        call = source.parent(arg)
        return isinstance(call, cst.Call) and call_name(call) in _STARTS

    def _of_loop(self, source: Source, loop: cst.For | cst.While) -> When:
        """Whether batches come in each turn of a loop, or whole epochs."""
        if self._by_hand:
            return When.DURING
        if isinstance(loop, cst.For):
            return When.BETWEEN if self._is_counted(source, loop.iter) else When.DURING
        inner = any(not self._is_counted(source, each.iter) for each in source.every(cst.For, loop.body))
        calls = any(call_name(call) in self.code.defined for call in source.every(cst.Call, loop.body))
        return When.BETWEEN if inner or calls else When.DURING

    def _is_counted(self, source: Source, node: cst.BaseExpression) -> bool:
        """Whether a loop goes through numbers or written values, which are no batches."""
        while isinstance(node, cst.Call) and call_name(node) in {"enumerate", "tqdm", "reversed", "list"} and node.args:
            node = node.args[0].value
        if isinstance(node, cst.Call):
            return call_name(node) in _COUNTED
        if isinstance(node, cst.Name):
            values = [each.value for each in source.every(cst.Assign) if _binds_name(each, node.value)]
            return bool(values) and all(isinstance(each, cst.List | cst.Tuple) for each in values)
        return isinstance(node, cst.List | cst.Tuple)

    @cached_property
    def _by_hand(self) -> bool:
        """Whether the program holds an iterator of a loader beside the `for` of an epoch."""
        for source in self.code.sources.values():
            for call in source.every(cst.Call):
                if (
                    (
                        call_name(call) in {"iter", "__next__"}
                        or (call_name(call) == "next" and isinstance(call.func, cst.Name))
                    )
                    and not any(
                        each in self.code.sampling or each in self.code.building for each in source.ancestors(call)
                    )
                    and not any(".parameters()" in source.code(arg.value) for arg in call.args)
                ):
                    return True
            for function in source.every(cst.FunctionDef):
                if function not in self.code.sampling and any(source.every(cst.Yield, function)):
                    return True
        return False

    # What is opened in a worker, and what is caught outside

    def _opened_outside(self) -> Iterator[Trace]:
        """Handles that a sample opens first, but the main process may have opened before."""
        for function, path in self.code.sampling.items():
            source = self.code.sources[path]
            for target in changed_by(source, function):
                if not isinstance(target, cst.Attribute) or not isinstance(root_of(target), cst.Name):
                    continue
                if not isinstance(function, cst.FunctionDef) or target.value is not root_of(target):
                    continue
                name = function.name.value
                early = self._main_process_calls(name)
                if early is not None:
                    yield Trace(f"opens `{source.code(target)}` in the main process too", *early)

    def _main_process_calls(self, name: str) -> tuple[str, int] | None:
        """Where the main process runs a method of the dataset that a sample runs."""
        for path, source in self.code.sources.items():
            for each in source.every(cst.Attribute):
                outside = not any(above in self.code.sampling for above in source.ancestors(each))
                if each.attr.value == name and outside:
                    return path, source.lines_of(each)[0]
            if name != "__getitem__":
                continue
            for item in source.every(cst.Subscript):
                outside = not any(above in self.code.sampling for above in source.ancestors(item))
                owner = source.inside(item, cst.ClassDef)
                own = isinstance(item.value, cst.Name) and item.value.value == "self" and owner in self.code.lasting
                if outside and (own or source.code(item.value) in self._datasets or self._is_one(path, item.value)):
                    return path, source.lines_of(item)[0]
            loaders = [call for call in source.every(cst.Call) if call_name(call) == "DataLoader"]
            for call in loaders:
                if call is not self.loader and self._takes_the_same(path, call):
                    return path, source.lines_of(call)[0]
        return None

    def _is_one(self, path: str, node: cst.BaseExpression) -> bool:
        if not isinstance(node, cst.Name):
            return False
        values = [value for _, value in self.code.values(path, node) if isinstance(value, cst.Call)]
        classes = {each.name.value for each in self.code.lasting}
        return any(call_name(value) in classes for value in values)

    def _takes_the_same(self, path: str, call: cst.Call) -> bool:
        """Whether another loader goes through an object that this one does, itself or by a part of it."""
        other = SampleCode(self.code.sources)
        for arg in call.args[:1]:
            other.builds(path, arg.value)
        classes = {each.name.value for each in self.code.lasting}
        mine = {node for made in self.code.building for node in _calls_of(self.code, made, classes)}
        return any(node in mine for made in other.building for node in _calls_of(other, made, classes))

    def _trained(self) -> Iterator[Trace]:
        """A model that makes samples and is trained meanwhile."""
        for path, source in self.code.sources.items():
            for call in source.every(cst.Call):
                if call_name(call) == "parameters" and isinstance(call.func, cst.Attribute):
                    name = source.code(call.func.value)
                    if name in self._given | self._whole and name != "self":
                        yield Trace(f"computes with `{name}`, which training changes", path, source.lines_of(call)[0])

    def _asked_of_caches(self) -> Iterator[Trace]:
        """What the program asks of results that `functools` keeps of a sample's functions: workers keep their own."""
        kept = {node.name.value for node in self.code.sampling if isinstance(node, cst.FunctionDef)}
        for path, source in self.code.sources.items():
            for each in source.every(cst.Attribute):
                if each.attr.value in {"cache_info", "cache_clear"} and source.code(each.value) in kept:
                    words = f"keeps results of which the program asks (`{source.code(each)}`)"
                    yield Trace(words, path, source.lines_of(each)[0])

    def _caught(self) -> Iterator[Trace]:
        """Exceptions of samples that the program catches around its loop: from a worker they come as another."""
        classes = {each.name.value for each in self.code.lasting}
        raises = any(any(self.code.sources[path].every(cst.Raise, node)) for node, path in self.code.sampling.items())
        for path, source in self.code.sources.items() if raises else ():
            for each in source.every(cst.Try):
                loops = any(isinstance(one, cst.For | cst.While) for one in source.walk(each.body)) or any(
                    (name := call_name(call)) not in classes and (name == "next" or name in self.code.defined)
                    for call in source.every(cst.Call, each.body)
                )
                inside = any(above in self.code.sampling for above in source.ancestors(each))
                of_memory = all(
                    handler.type is not None and source.code(handler.type).endswith("OutOfMemoryError")
                    for handler in each.handlers
                )
                if loops and not of_memory and not inside:
                    at = source.lines_of(each.handlers[0])[0]
                    yield Trace(
                        "raises exceptions that the program catches, which come as others from a worker", path, at
                    )


@per_program
def shared_state(
    texts: Mapping[str, str],
    path: str,
    loader: cst.Call,
    made_by: tuple[cst.BaseExpression, ...],
    names: tuple[str, ...],
    init: cst.BaseExpression | None,
    is_dataset: bool = True,
) -> SharedState:
    """The one of a loader, for all who ask: what it finds is kept."""
    return SharedState(texts, path, loader, made_by, names, init, is_dataset)


def _calls_of(code: SampleCode, node: cst.CSTNode, classes: set[str]) -> Iterator[cst.Call]:
    source = code.sources[code.building[node]]
    return (call for call in source.every(cst.Call, node) if call_name(call) in classes)


def _attribute_values(
    sources: Mapping[str, Source], node: cst.BaseExpression
) -> Iterator[tuple[str, cst.BaseExpression]]:
    """What the program binds to attributes of the name that an expression such as `self.data` ends with."""
    if not isinstance(node, cst.Attribute):
        return
    for path, source in sources.items():
        for assign in source.every(cst.Assign):
            targets = [each for target in assign.targets for each in _each(target.target)]
            if any(isinstance(one, cst.Attribute) and one.attr.value == node.attr.value for one in targets):
                yield path, assign.value


@per_source
def _changes(source: Source) -> Sequence[cst.BaseExpression]:
    """What the statements of a file change."""
    return tuple(changed_by(source, source.module))


def _each(target: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    return [each.value for each in target.elements] if isinstance(target, cst.Tuple | cst.List) else [target]


def _binds_name(assign: cst.Assign, name: str) -> bool:
    return any(isinstance(each.target, cst.Name) and each.target.value == name for each in assign.targets)


def _changes_object(source: Source, target: cst.BaseExpression) -> bool:
    """Whether a statement changes the object that a name stands for, and does not bind the name."""
    return isinstance(source.parent(target), cst.AugAssign | cst.Attribute | cst.Arg | cst.Subscript)


def _line(source: Source, node: cst.CSTNode) -> str:
    return source.line_text(source.lines_of(node)[0]).strip().partition("  #")[0]


def _is_of_model(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a name is the variable of a loop through a model's parameters or an optimizer's groups."""
    if not isinstance(node, cst.Name):
        return False
    loops = [
        each
        for each in source.every(cst.For)
        if any(name.value == node.value for name in source.every(cst.Name, each.target))
    ]
    through = [any(words in source.code(each.iter) for words in _GO_THROUGH) for each in loops]
    return bool(through) and all(through)


def _between_samples(source: Source) -> Iterator[cst.CSTNode]:
    """The code that runs between two values of an iterator: turns of loops that yield, and what those call."""
    found: list[cst.CSTNode] = [*source.every(cst.GeneratorExp)]
    found += [each for each in source.every(cst.FunctionDef) if each.name.value == "__next__"]
    found += [
        each
        for each in source.walk()
        if isinstance(each, cst.For | cst.While) and any(source.every(cst.Yield, each.body))
    ]
    functions = {each.name.value: each for each in source.every(cst.FunctionDef)}
    for each in found:
        called = [functions.get(call_name(call)) for call in source.every(cst.Call, each)]
        found += [function for function in called if function is not None and not any(function is one for one in found)]
    yield from found
