"""Changes of what a dataset keeps by code that looks like a read of it.

A method that is taken as a value changes its object where the value is called; a dictionary with a default that counts
gets another entry where a key is looked up; a seed for one sample seeds what training draws after it; an iterator that
two passes share goes on in the second where the first has left it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace, changed_where_called
from diagnose.source.samples.sample_names import is_read
from diagnose.source.tree.attributes import attribute_values
from diagnose.source.tree.syntax import Source

_SEEDS = frozenset(
    {"torch.manual_seed", "torch.random.manual_seed", "torch.seed", "torch.set_rng_state", "torch.cuda.manual_seed"}
    | {"torch.cuda.manual_seed_all", "random.seed", "random.setstate", "numpy.random.seed", "numpy.random.set_state"}
)
_STATES = frozenset({"torch.get_rng_state", "random.getstate", "numpy.random.get_state", "torch.random.fork_rng"})
"""Calls by which a function goes back to the state from before."""
_NO_CALLS = (cst.AssignTarget, cst.BinaryOperation, cst.UnaryOperation)
"""Nodes that neither call a method in them nor hand it on: the targets of `angle = self.rotate`, and `2 * angle`."""
_ITERATORS = (
    *(f"builtins.{name}" for name in ("iter", "map", "filter", "zip", "enumerate", "reversed")),
    "itertools.",
)
"""Calls whose result can be gone through once."""
_COUNTS = frozenset({"len", "next", "__len__", "__next__"})


def hidden_changes(code: SampleCode) -> Iterator[Trace]:
    """All that are seen in the code that makes samples, and what it reads."""
    for made, path in code.building.items():
        source = code.sources[path]
        for assign in source.every(cst.Assign, made):
            kept = any(isinstance(each.target, cst.Attribute) for each in assign.targets)
            if kept and changed_where_called(source, assign.value) is not None:
                yield _trace(source, path, assign.value)
    for node, path in code.sampling.items():
        source = code.sources[path]
        for each in source.walk(node, cst.Attribute, cst.Name, cst.Subscript):
            if isinstance(each, cst.Subscript):
                if any(_counts_keys(code, file, value) for file, value in _values(code, path, each.value)):
                    yield _trace(source, path, each)
            elif isinstance(each, cst.Name) and is_read(source, each):
                bound = () if isinstance(source.parent(each), _NO_CALLS) else code.values(path, each)
                if any(changed_where_called(code.sources[file], value) is not None for file, value in bound):
                    yield _trace(source, path, each)


def lasting_iterators(code: SampleCode, path: str, made_by: Iterable[cst.BaseExpression]) -> Iterator[Trace]:
    """Iterators that code takes values of and that no pass makes anew: each goes on where the one before stopped."""
    found = [(path, each) for node in made_by for each in (node, *(value for _, value in _values(code, path, node)))]
    for node, file in code.sampling.items():
        for each in code.sources[file].walk(node, cst.Attribute, cst.Name):
            if isinstance(each, cst.Attribute) or (isinstance(each, cst.Name) and is_read(code.sources[file], each)):
                found += _values(code, file, each)
    for file, value in dict.fromkeys(found):
        source = code.sources[file]
        if _is_iterator(code, source, value) and source.inside(value, cst.FunctionDef) not in code.sampling:
            words = f"goes on in each pass where the last one stopped (`{source.code(value)}`)"
            yield Trace(words, file, source.lines_of(value)[0])


def _is_iterator(code: SampleCode, source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression makes an iterator, which can be gone through once."""
    if not isinstance(value, cst.Call):
        return isinstance(value, cst.GeneratorExp)
    generates = any(
        isinstance(node, cst.FunctionDef) and any(code.sources[file].every(cst.Yield, node))
        for file, node in code.named(source, value.func)
    )
    return generates or source.is_called(value.func, *_ITERATORS)


def seeds(code: SampleCode) -> Iterator[Trace]:
    """Seeds that samples give generators of the process, where training draws from those too."""
    drawn: set[str] | None = None
    for node, path in code.sampling.items():
        source = code.sources[path]
        for call in code.calls(path, node):
            names = source.names(call.func) & _SEEDS
            if not names or any(source.names(each.func) & _STATES for each in code.calls(path, node)):
                continue
            drawn = _drawn_by_training(code) if drawn is None else drawn
            if any(name.startswith("torch.") or name.rpartition(".")[0] in drawn for name in names):
                words = f"seeds by `{source.code(call)}` what training draws after it"
                yield Trace(words, path, source.lines_of(call)[0])


def _drawn_by_training(code: SampleCode) -> set[str]:
    """Return those of the modules `random` and `numpy.random` of which code beside the samples calls functions."""
    found: set[str] = set()
    for source in code.sources.values():
        for call in source.every(cst.Call):
            for name in source.names(call.func) - _SEEDS:
                module = name.rpartition(".")[0]
                if module in {"random", "numpy.random"} and not any(
                    above in code.sampling or above in code.building for above in source.ancestors(call)
                ):
                    found.add(module)
    return found


def _counts_keys(code: SampleCode, path: str, value: cst.BaseExpression) -> bool:
    """Whether an expression makes a dictionary that gives each new key a number: `defaultdict(lambda: len(ids))`."""
    source = code.sources[path]
    if not isinstance(value, cst.Call) or "collections.defaultdict" not in source.names(value.func):
        return False
    defaults = [(path, arg.value) for arg in value.args[:1]]
    if not defaults:
        defaults = [
            (file, assign.value)
            for file, each in code.sources.items()
            for assign in (each.every(cst.Assign) if "default_factory" in each.words else ())
            if any(
                getattr(getattr(one.target, "attr", None), "value", "") == "default_factory" for one in assign.targets
            )
        ]
    return any(
        each.value in _COUNTS for file, default in defaults for each in code.sources[file].every(cst.Name, default)
    )


def _values(code: SampleCode, path: str, node: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    if isinstance(node, cst.Name):
        yield from code.values(path, node)
    yield from attribute_values(code.sources, node)


def _trace(source: Source, path: str, node: cst.BaseExpression) -> Trace:
    return Trace(f"keeps or changes something by `{source.code(node)}`", path, source.lines_of(node)[0])
