"""What a program's main process does with that which makes samples: workers would do it on their own, or otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.bindings import values_of
from diagnose.source.dataflow.exception_handlers import catching
from diagnose.source.samples.given_attributes import assigned_attributes
from diagnose.source.samples.object_identity import is_own, root_of
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace, changed_by
from diagnose.source.samples.sharing.shared_objects import SharedObjects
from diagnose.source.samples.sharing.statement_order import StatementOrder, When
from diagnose.source.samples.temporary_objects import is_temporary
from diagnose.source.tree.attributes import attribute_values
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_ASKS = frozenset({"len", "print", "isinstance", "type", "id", "str", "repr", "prepare"})
"""Functions that go through nothing."""
_SAME_OBJECT = frozenset({"to", "cuda", "cpu", "float", "double", "train", "eval", "requires_grad_"})
"""Methods of a module that return the module."""
_OF_WEIGHTS = tuple(
    f"torch.nn.{name}" for name in ("Linear", "Bilinear", "Embedding", "EmbeddingBag", "LSTM", "GRU", "RNN", "PReLU")
) + tuple(f"torch.nn.{name}{n}d" for name in ("Conv", "ConvTranspose") for n in (1, 2, 3))
"""Layers that have weights however they are built."""
_WITHOUT_GRADIENTS = ("no_grad", "inference_mode", "set_grad_enabled", "requires_grad", "requires_grad_", "detach_")
"""Names by which a program may keep samples from requiring gradients."""
_WITH_STATISTICS = re.compile(r"torch\.nn\.(?:Sync|Lazy)?BatchNorm\w*")
"""Layers that note statistics of what they are given, unless they are in evaluation mode."""
_FREEZES = re.compile(r"\w+\.requires_grad(?:_\(False\)| = False)")


@dataclass(frozen=True)
class MainProcess:
    """The main process of a program, and what it does with that which makes the samples of one loader."""

    code: SampleCode
    shared: SharedObjects
    order: StatementOrder
    loader: cst.Call

    def opened(self) -> Iterator[Trace]:
        """Handles that a sample opens first, but the main process may have opened before."""
        for function, path in self.code.sampling.items():
            source = self.code.sources[path]
            for target in changed_by(source, function):
                if not isinstance(target, cst.Attribute) or not isinstance(root_of(target), cst.Name):
                    continue
                if not isinstance(function, cst.FunctionDef) or target.value is not root_of(target):
                    continue
                if is_temporary(self.code, source, target, function):
                    continue
                name = function.name.value
                early = self._main_process_calls(name)
                if early is not None:
                    yield Trace(f"opens `{source.code(target)}` in the main process too", *early)

    def _main_process_calls(self, name: str) -> tuple[str, int] | None:
        """Return where the main process runs a method of the dataset that a sample runs."""
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
                if outside and (
                    own or source.code(item.value) in self.shared.datasets or self._is_one(path, item.value)
                ):
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

    def trained(self) -> Iterator[Trace]:
        """A model that makes samples and is trained meanwhile."""
        makers = {*self.code.building, *self._given_later()}
        for path, source in self.code.sources.items():
            for call in source.calls_named("parameters"):
                if not isinstance(call.func, cst.Attribute) or _only_freezes(source, call):
                    continue
                name = source.code(call.func.value)
                named = name in self.shared.given | self.shared.whole and name != "self"
                if named or any(made in makers for _, made in self._made_by(path, call.func.value)):
                    yield Trace(f"computes with `{name}`, which training changes", path, source.lines_of(call)[0])

    def _given_later(self) -> Iterator[cst.Call]:
        """Yield the calls that make what the program assigns to attributes that samples read: `data.model = model`."""
        read = self.shared.read[0]
        for path, source in self.code.sources.items():
            if read.isdisjoint(assigned_attributes(source, False)):
                continue
            for assign in source.every(cst.Assign):
                for target in (each.target for each in assign.targets):
                    if not isinstance(target, cst.Attribute) or target.attr.value not in read:
                        continue
                    if not is_own(source, target.value) and self.shared.may_be_shared(path, target.value):
                        yield from (made for _, made in self._made_by(path, assign.value))

    def _made_by(self, path: str, node: cst.BaseExpression) -> Iterator[tuple[str, cst.Call]]:
        """The files and calls that may have made the object which an expression stands for."""
        following = [(path, node)]
        for file, each in following:  # and what is found on the way
            found: list[tuple[str, cst.BaseExpression]] = []
            if isinstance(each, cst.Call):
                yield file, each
                if isinstance(each.func, cst.Attribute) and each.func.attr.value in _SAME_OBJECT:
                    found = [(file, each.func.value)]
            elif isinstance(each, cst.IfExp):
                found = [(file, each.body), (file, each.orelse)]
            elif isinstance(each, cst.Name):
                found = list(self.code.values(file, each))
            else:
                own = [(file, value) for value in values_of(self.code.sources[file], each)]
                found = own or list(attribute_values(self.code.sources, each))
            following += [one for one in found if one not in following]

    def asked_of_caches(self) -> Iterator[Trace]:
        """Yield what the program asks of results that `functools` keeps of a sample's functions: workers keep their
        own."""
        kept = {node.name.value for node in self.code.sampling if isinstance(node, cst.FunctionDef)}
        for path, source in self.code.sources.items():
            for each in source.every(cst.Attribute):
                of = each.value.attr if isinstance(each.value, cst.Attribute) else each.value
                asks = each.attr.value in {"cache_info", "cache_clear"}
                if asks and isinstance(of, cst.Name) and of.value in kept:
                    words = f"keeps results of which the program asks (`{source.code(each)}`)"
                    yield Trace(words, path, source.lines_of(each)[0])

    def caught(self) -> Iterator[Trace]:
        """Exceptions of samples that the program catches around its loop: from a worker they come as another."""
        errors = frozenset(self._raised())
        errors |= {"RuntimeError"} if errors else set()  # what an exception comes as that takes no message alone
        classes = frozenset(each.name.value for each in self.code.lasting)
        for path, source, body, catcher in catching(self.code.sources, errors) if errors else ():
            # What makes a sample, or makes the dataset before the loop.
            inside = any(above in self.code.sampling or above in self.code.building for above in source.ancestors(body))
            if inside or catcher in self.code.sampling:
                continue
            if self.order.goes_through(source, body, skipped=classes) or self._is_handed_on(source, body):
                of_try = isinstance(catcher, cst.Try) and catcher.handlers
                at = source.lines_of(catcher.handlers[0] if isinstance(catcher, cst.Try) and of_try else catcher)[0]
                yield Trace("raises exceptions that the program catches, which come as others from a worker", path, at)

    def differentiated(self) -> Iterator[Trace]:
        """Samples, or what they are made of, that gradients are asked of: no worker can send those."""
        for path, source in self.code.sources.items():
            for word in (*source.named("requires_grad"), *source.named("requires_grad_")):
                above = source.parent(word)
                makes = any(each in self.code.sampling or each in self.code.building for each in source.ancestors(word))
                if isinstance(above, cst.Attribute) and not makes and self.shared.is_shared(path, above.value):
                    makes = self.order.when(path, word) is When.BEFORE  # later it is a batch, by the same name
                if makes and _is_switched_on(source, word):
                    yield Trace("has samples that require gradients", path, source.lines_of(word)[0])
        if any(source.mentions(*_WITHOUT_GRADIENTS) for source in self.code.sources.values()):
            return
        for function, path in self.code.sampling.items():
            source = self.code.sources[path]
            for call in source.every(cst.Call, function):
                if _is_given_back(source, call, function) and self._has_weights(path, call.func):
                    words = f"has samples that require gradients (`{source.code(call)}`)"
                    yield Trace(words, path, source.lines_of(call)[0])

    def _has_weights(self, path: str, node: cst.BaseExpression) -> bool:
        """Whether an expression stands for a layer, or a module of the program's, with weights."""
        for file, made in self._made_by(path, node):
            source = self.code.sources[file]
            classes = (each for each in self.code.named(source, made.func) if isinstance(each[1], cst.ClassDef))
            for its, part in ((file, made), *classes):
                of = self.code.sources[its]
                if any(of.is_called(call.func, *_OF_WEIGHTS) for call in of.every(cst.Call, part)):
                    return True
        return False

    def noted(self) -> Iterator[Trace]:
        """Layers that note statistics of the samples that they make: a worker's copy would have them."""
        noting = [
            (path, call)
            for node, path in self.code.building.items()
            for call in self.code.sources[path].every(cst.Call, node)
            if any(map(_WITH_STATISTICS.fullmatch, self.code.sources[path].names(call.func)))
        ]
        for path, call in () if noting and self._is_evaluated() else noting:
            source = self.code.sources[path]
            words = f"keeps statistics of its samples, by `{source.code(call.func)}`"
            yield Trace(words, path, source.lines_of(call)[0])

    def _is_evaluated(self) -> bool:
        """Whether something that makes samples is put into evaluation mode."""
        for path, source in self.code.sources.items():
            for call in source.calls_named("eval"):
                of = call.func.value if isinstance(call.func, cst.Attribute) else call
                around = (call, *source.ancestors(call))
                own = any(each in self.code.building or each in self.code.sampling for each in around)
                if own or any(made in self.code.building for _, made in self._made_by(path, of)):
                    return True
        return False

    def _raised(self) -> Iterator[str]:
        """The names of the exceptions that samples raise, and of those that they are kinds of."""
        for node, path in self.code.sampling.items():
            source = self.code.sources[path]
            for each in source.every(cst.Raise, node):
                raised = each.exc.func if isinstance(each.exc, cst.Call) else each.exc
                name = source.code(raised).rpartition(".")[2] if raised is not None else ""
                yield name if name[:1].isupper() else "Exception"
                for other in self.code.sources.values():
                    for written in other.classes_named(name):
                        yield from (other.code(base.value).rpartition(".")[2] for base in written.bases)

    def _is_handed_on(self, source: Source, body: cst.CSTNode) -> bool:
        """Whether code gives the loader to what may go through it, as `list(loader)` and `trainer.fit(…)` do."""
        assign = source.parent(self.loader)
        targets = [source.code(each.target) for each in assign.targets] if isinstance(assign, cst.Assign) else []
        for call in source.every(cst.Call, body):
            of = source.code(call.func.value).lower() if isinstance(call.func, cst.Attribute) else ""
            if call_name(call) == "fit" or ("trainer" in of and call_name(call) == "train"):
                return True
            own = call_name(call) in self.code.defined  # it is looked into
            if not own and call_name(call) not in _ASKS and any(source.code(arg.value) in targets for arg in call.args):
                return True
        return False


def _is_switched_on(source: Source, word: cst.Name) -> bool:
    """Whether code sets `requires_grad` to True, as a keyword, by a method or in an assignment."""
    above = source.parent(word)
    user = source.parent(above) if isinstance(above, cst.Attribute) else above
    if isinstance(user, cst.AssignTarget):
        user = source.parent(user)
    if isinstance(user, cst.Call):
        return word.value == "requires_grad_" and not any(source.code(arg.value) == "False" for arg in user.args)
    return isinstance(user, cst.Arg | cst.Assign) and source.code(user.value) == "True"


def _is_given_back(source: Source, call: cst.BaseExpression, function: cst.FunctionDef | cst.Lambda) -> bool:
    """Whether a function returns what a call gives as it is, by itself or beside others, or by a name."""
    for above in source.ancestors(call):
        if isinstance(above, cst.Return | cst.Lambda):
            return source.inside(above, (cst.FunctionDef, cst.Lambda)) is function or above is function
        if isinstance(above, cst.Assign):
            returned = [node for each in source.every(cst.Return, function) for node in source.every(cst.Name, each)]
            names = (each.target for each in above.targets)
            return any(
                isinstance(name, cst.Name) and name.value == use.value and _is_given_back(source, use, function)
                for name in names
                for use in returned
            )
        if not isinstance(above, cst.Tuple | cst.List | cst.Dict | cst.BaseElement | cst.BaseDictElement):
            return False
    return False


def _only_freezes(source: Source, call: cst.Call) -> bool:
    """Whether a call is what a loop goes through that takes parameters out of training and does nothing else."""
    loop = source.parent(call)
    if not isinstance(loop, cst.For) or loop.iter is not call:
        return False
    lines = source.code(loop.body).strip().splitlines()
    return all(_FREEZES.fullmatch(line.partition("#")[0].strip()) for line in lines)


def _calls_of(code: SampleCode, node: cst.CSTNode, classes: set[str]) -> Iterator[cst.Call]:
    source = code.sources[code.building[node]]
    return (call for call in source.every(cst.Call, node) if call_name(call) in classes)
