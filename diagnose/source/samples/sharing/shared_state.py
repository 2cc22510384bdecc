"""State that a dataset shares with the program around it, which a worker process or a kept sample would not see.

What a loader runs for a sample reads attributes and globals. Where the program changes one of those, the place of the
change decides: before the loader is gone through, all is well; between two epochs, workers that are started anew see
it, and workers that live on do not; while batches come, no worker sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.samples.dataset_rng import draws_of_order, makes_generator
from diagnose.source.samples.given_attributes import follow_given
from diagnose.source.samples.object_identity import hands_on, root_of
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace, changed_by, changed_where_called, told, traces
from diagnose.source.samples.sharing.batch_aliases import (
    Function,
    changed_on_the_way,
    handed_to_training,
    is_identity,
    takes_single_samples,
    written_batches,
)
from diagnose.source.samples.sharing.hidden_changes import hidden_changes, lasting_iterators, seeds
from diagnose.source.samples.sharing.main_process import MainProcess
from diagnose.source.samples.sharing.open_handles import held_handles
from diagnose.source.samples.sharing.process_memory import stays_in_process
from diagnose.source.samples.sharing.rewritten_files import rewritten_files
from diagnose.source.samples.sharing.shared_objects import SharedObjects
from diagnose.source.samples.sharing.statement_order import StatementOrder, When
from diagnose.source.samples.temporary_objects import is_made_within, is_not_yet_handed_on
from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.attributes import attribute_values
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import parse_all, per_program, per_source
from diagnose.source.tree.syntax import Source

__all__ = ["SharedState", "When", "shared_state"]

_SETS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})
_NAMED_IN_SUCH_CALLS = _SETS | {"dataset", "exec"}


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
            for path, value in attribute_values(sources, node):
                code.builds(path, value)
        for name in self.names:
            code.makes_samples_by(name)
        if self.is_dataset and not code.classes and not code.sampling:
            for path, source in sources.items():
                for found in source.every(cst.ClassDef):
                    if any(source.code(base.value).partition("[")[0].endswith("Dataset") for base in found.bases):
                        code.makes_samples_by(f"{path}.{found.name.value}")
        follow_given(code)
        return code

    @cached_property
    def trace(self) -> Trace | None:
        """The first of what samples leave behind, depend on besides their index, or hold open."""
        return next(self._traces(), None)

    def _traces(self) -> Iterator[Trace]:
        yield from traces(self.code)
        yield from changed_on_the_way(self.code, self._collating())
        around = MainProcess(self.code, self._shared, self._order, self.loader)
        yield from around.opened()
        yield from around.caught()
        yield from around.trained()
        yield from around.differentiated()
        yield from around.noted()
        yield from hidden_changes(self.code)
        yield from seeds(self.code) if self.is_dataset else ()
        yield from around.asked_of_caches()
        yield from self._not_copied() if self._has_single_samples else self.changed_by_training()

    def changed_by_training(self) -> Iterator[Trace]:
        """Yield what the loader hands on with no copy, where the program writes into something that may be a batch."""
        handed = next(self._not_copied(), None)
        written = next(written_batches(self.code), None) if handed is not None else None
        if handed is not None and written is not None:
            path, target = written
            source = self.code.sources[path]
            where = f"{path}:{source.lines_of(target)[0]} changes `{source.code(target)}` in place"
            yield Trace(f"{handed.words} ({where})", handed.path, handed.line)

    @property
    def _has_single_samples(self) -> bool:
        return takes_single_samples(self.code.sources[self.path], self.loader)

    def _not_copied(self) -> Iterator[Trace]:
        """Objects of the dataset that the loader hands on as they are: samples that it does not stack."""
        collate = argument(self.loader, "collate_fn", 6)
        if self._has_single_samples or (collate is not None and self._hands_on(collate.value)):
            yield from handed_to_training(self.code)

    def _hands_on(self, collate: cst.BaseExpression) -> bool:
        """Whether a collate function returns samples, or parts of them, as it gets them."""
        source = self.code.sources[self.path]
        values = [value for each in source.every(cst.Name, collate) for _, value in self.code.values(self.path, each)]
        if any(is_identity(source, each) for each in (collate, *values)):
            return True
        return any(hands_on(self.code.sources[path], node) for path, node in self._meant_by(collate))

    def _collating(self) -> Sequence[tuple[str, Function]] | None:
        """The program's functions that put samples together; None where it is not seen which those are."""
        collate = argument(self.loader, "collate_fn", 6)
        if self._has_single_samples:
            return None  # it gets no lists of samples, if there is one
        if collate is not None:
            return self._meant_by(collate.value) or None
        plain = self.code.sources[self.path].is_called(self.loader.func, "torch.utils.data.DataLoader")
        return () if plain and not has_star(self.loader) else None

    def _meant_by(self, collate: cst.BaseExpression) -> Sequence[tuple[str, Function]]:
        """The functions for samples that an expression names or holds, with their files."""
        source = self.code.sources[self.path]
        named = {each.value for each in source.every(cst.Name, collate)}
        values = [value for each in source.every(cst.Name, collate) for _, value in self.code.values(self.path, each)]
        named |= {call_name(value) for value in values if isinstance(value, cst.Call)}
        return [
            (path, node)
            for node, path in self.code.sampling.items()
            if (
                isinstance(node, cst.Lambda)
                and any(node is each or within(source, node, each) for each in (collate, *values))
            )
            or (isinstance(node, cst.FunctionDef) and self._owner_or_name(path, node) in named)
        ]

    def _owner_or_name(self, path: str, function: cst.FunctionDef) -> str:
        """The name of a function; of `__call__`, that of its class."""
        owner = self.code.sources[path].inside(function, cst.ClassDef)
        return owner.name.value if owner is not None and function.name.value == "__call__" else function.name.value

    def late(self) -> Iterator[Trace]:
        """Yield where a sampler draws random numbers between two samples, as training does, or takes values of an
        iterator that the next pass goes on with."""
        yield from lasting_iterators(self.code, self.path, self.made_by)
        yield from self._draws_within(_between_samples, "draws random numbers from turn to turn")

    def draws_at_once(self) -> Iterator[Trace]:
        """Random numbers that a sampler draws where it is asked for an iterator: with workers it is asked twice."""
        yield from self._draws_within(
            _asked_for_iterator, "draws random numbers in an `__iter__` that workers call twice"
        )

    def _draws_within(self, within_code: Callable[[Source], Sequence[cst.CSTNode]], words: str) -> Iterator[Trace]:
        lines: dict[str, list[tuple[int, int]]] = {}
        for draw in draws_of_order(self.texts, self.path, self.made_by):
            if draw.path not in lines:
                source = self.code.sources[draw.path]
                lines[draw.path] = [source.lines_of(each) for each in within_code(source)]
            if any(first <= draw.line <= last for first, last in lines[draw.path]):
                yield Trace(f"{words} (`{draw.code}`)", draw.path, draw.line)

    def unsent(self) -> Iterator[Trace]:
        """Functions and classes without a name in a module, which cannot be sent to another process."""
        for node, path in [*self.code.sampling.items(), *self.code.classes.items()]:
            source = self.code.sources[path]
            if isinstance(node, cst.Lambda) or source.inside(node, cst.FunctionDef) is not None:
                line = source.lines_of(node)[0]
                yield Trace(f"needs `{_line(source, node)}`, which has no name in a module", path, line)

    @cached_property
    def told_of_workers(self) -> Trace | None:
        """What the function that sets up each worker prints, writes or changes, which none does where there are none;
        it may give each worker a generator of random numbers of its own."""
        return next((each for node, path in self._inits.items() for each in self._told(path, node)), None)

    def _told(self, path: str, node: cst.CSTNode) -> Iterator[Trace]:
        yield from told(self.code, path, node)
        source = self.code.sources[path]
        for target in changed_by(source, node):
            assign = source.inside(target, cst.Assign)
            if self.code.reads_attribute(target) and not (assign and makes_generator(source, assign.value)):
                words = f"sets `{source.code(target)}`, which samples read"
                yield Trace(words, path, source.lines_of(target)[0])

    @cached_property
    def handle(self) -> Trace | None:
        """The first that samples read from a handle which was opened before there were workers."""
        return next(held_handles(self.code), None)

    def change(self, at_least: When, *, copied: bool = False) -> Trace | None:
        """The first statement that changes what samples read, and runs then or later.

        `copied`: worker processes make the samples as it is, and changes that their copies never see do not count.
        """
        if (at_least, copied) not in self._first_changes:
            self._first_changes[at_least, copied] = next(self._changes(at_least, copied=copied), None)
        return self._first_changes[at_least, copied]

    @cached_property
    def _first_changes(self) -> dict[tuple[When, bool], Trace | None]:
        """The answers of `change`."""
        return {}

    def _changes(self, at_least: When, *, copied: bool) -> Iterator[Trace]:
        for path, source in self.code.sources.items():
            for target, place in _changes(source):
                if any(each in self.code.sampling or each in self._inits for each in source.ancestors(place)):
                    continue
                if not self._shared.is_shared(path, target) or self._is_made_there(path, target):
                    continue
                when = self._order.when(path, place)
                if when >= at_least and not (copied and stays_in_process(self.code.sources.values(), source, target)):
                    at = source.lines_of(place)[0]
                    yield Trace(f"reads what the program changes (`{_line(source, place)}`)", path, at)
            yield from self._called(path, source, at_least)
        for path, call, trace in rewritten_files(self.code):
            if self._order.when(path, call) >= at_least:
                yield trace

    def _is_made_there(self, path: str, target: cst.BaseExpression) -> bool:
        """Whether a function that builds no loader changes what it makes, before anybody else gets it."""
        source, root = self.code.sources[path], root_of(target)
        function = source.inside(target, cst.FunctionDef)
        builds = function is not None and path == self.path and within(source, self.loader, function)
        if not isinstance(root, cst.Name) or builds:
            return False
        yet = function not in self.code.building and is_not_yet_handed_on(source, root)
        return yet or is_made_within(source, root)

    def reads(self, name: str, at_least: When) -> Iterator[Trace]:
        """Statements that read a variable or an attribute of this name outside the loader, and run then or later."""
        for path, source in self.code.sources.items():
            for each in source.named(name) if name in source.words else ():
                parent = source.parent(each)
                word = isinstance(parent, cst.Arg) and parent.value is not each
                if word or isinstance(parent, cst.Param) or within(source, each, self.loader):
                    continue
                if self._order.when(path, each) >= at_least:
                    yield Trace(
                        f"draws from `{name}`, which the program reads meanwhile", path, source.lines_of(each)[0]
                    )

    @cached_property
    def _shared(self) -> SharedObjects:
        source = self.code.sources[self.path]
        names = frozenset(source.code(each) for each in self.made_by if not isinstance(each, cst.Call))
        return SharedObjects(self.code, names)

    @cached_property
    def _order(self) -> StatementOrder:
        return StatementOrder(self.code, self._shared, self.path, self.loader)

    @cached_property
    def _inits(self) -> dict[cst.CSTNode, str]:
        """The functions that set up each worker, with their files."""
        source = self.code.sources[self.path]
        names = {each.value for each in source.every(cst.Name, self.init)} if self.init is not None else set()
        return {node: path for name in names for path, node in self.code.defined.named(name)}

    def _called(self, path: str, source: Source, at_least: When) -> Iterator[Trace]:
        """Methods of a library's dataset that are called for what they do to it."""
        owned = any(each in source.text for each in self._shared.datasets)
        if not owned and source.words.isdisjoint(_NAMED_IN_SUCH_CALLS):
            return  # no call of this file can be one, and its tree is large
        for call in source.every(cst.Call):
            statement = isinstance(source.parent(call), cst.Expr)
            if isinstance(call.func, cst.Name) or source.code(call.func).startswith("object."):
                if call_name(call) == "exec" and not _sets_up(source, call):  # it may change anything
                    yield from self._if_then(path, source, call, at_least)
                if call_name(call) in _SETS and call.args and self._is_set(path, call):
                    around = source.inside(call, cst.FunctionDef)
                    own = source.code(call.args[0].value) == "self"
                    passes_on = around is not None and around.name.value in _SETS and not own
                    yield from self._if_then(path, source, call, When.BEFORE if passes_on else at_least)
                continue
            if not isinstance(call.func, cst.Attribute):
                continue
            if not statement:
                continue
            owner = call.func.value
            its = source.code(owner) in self._shared.datasets or (
                isinstance(owner, cst.Attribute) and owner.attr.value == "dataset"
            )
            if its and not any(
                isinstance(each, cst.FunctionDef) for _, each in self.code.defined.named(call_name(call))
            ):
                yield from self._if_then(path, source, call, at_least)

    def _is_set(self, path: str, call: cst.Call) -> bool:
        source = self.code.sources[path]
        if any(each in self.code.sampling or each in self.code.building for each in source.ancestors(call)):
            return False
        given = string(call.args[1].value) if len(call.args) > 1 else None
        if given is not None and given not in self._shared.read[0] | self._shared.read[1]:
            return False
        return self._shared.may_be_shared(path, call.args[0].value)

    def _if_then(self, path: str, source: Source, call: cst.Call, at_least: When) -> Iterator[Trace]:
        if self._order.when(path, call) >= at_least:
            words = f"reads what the program may change (`{source.code(call)}`)"
            yield Trace(words, path, source.lines_of(call)[0])


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


def _sets_up(source: Source, call: cst.Call) -> bool:
    """Whether a call is no function's and its file trains nothing: it reads settings, before there are samples."""
    return source.inside(call, cst.FunctionDef) is None and "backward" not in source.words


@per_source
def _changes(source: Source) -> Sequence[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return what the code of a file changes, each with where it does so: `note(i)` after `note = seen.append`."""
    found = [(target, target) for target in changed_by(source, source.module)]
    for assign in source.every(cst.Assign):
        changed = changed_where_called(source, assign.value)
        for target in (each.target for each in assign.targets if changed is not None):
            name = target.attr if isinstance(target, cst.Attribute) else target
            calls = source.calls_named(name.value) if isinstance(name, cst.Name) else ()
            found += [(changed, call) for call in calls if isinstance(call.func, type(target)) and changed is not None]
    return tuple(found)


def _line(source: Source, node: cst.CSTNode) -> str:
    return source.line_text(source.lines_of(node)[0]).strip().partition("  #")[0]


@per_source
def _between_samples(source: Source) -> Sequence[cst.CSTNode]:
    """The code that runs between two values of an iterator: turns of loops that yield, and what those call."""
    found: list[cst.CSTNode] = [*source.every(cst.GeneratorExp)]
    found += [each for each in source.every(cst.FunctionDef) if each.name.value == "__next__"]
    found += [
        each
        for each in source.walk()
        if isinstance(each, cst.For | cst.While) and any(source.every(cst.Yield, each.body))
    ]
    return tuple(_with_called(source, found))


@per_source
def _asked_for_iterator(source: Source) -> Sequence[cst.CSTNode]:
    """The code that runs where an iterator is asked for: each `__iter__` without a `yield`, and what it calls."""
    found = [each for each in source.functions_named("__iter__") if not any(source.every(cst.Yield, each))]
    return tuple(_with_called(source, found))


def _with_called(source: Source, code: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Pieces of code, and the functions of the file that they call."""
    found = [*code]
    functions = {each.name.value: each for each in source.every(cst.FunctionDef)}
    for each in found:
        called = [functions.get(call_name(call)) for call in source.every(cst.Call, each)]
        found += [function for function in called if function is not None and not any(function is one for one in found)]
    yield from found
