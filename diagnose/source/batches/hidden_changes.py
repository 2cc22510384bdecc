"""Changes of what a dataset keeps by code that looks like a read of it.

A method that is taken as a value changes its object where the value is called; a dictionary with a default that counts
gets another entry where a key is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.batches.object_identity import attribute_values
from diagnose.source.batches.sample_code import SampleCode, is_read
from diagnose.source.batches.sample_effects import CHANGES, Trace
from diagnose.source.tree.syntax import Source

_COUNTS = frozenset({"len", "next", "__len__", "__next__"})


def hidden_changes(code: SampleCode) -> Iterator[Trace]:
    """All that are seen in the code that makes samples, and what it reads."""
    for made, path in code.building.items():
        source = code.sources[path]
        for assign in source.every(cst.Assign, made):
            kept = any(isinstance(each.target, cst.Attribute) for each in assign.targets)
            if kept and _is_bound_change(assign.value):
                yield _trace(source, path, assign.value)
    for node, path in code.sampling.items():
        source = code.sources[path]
        for each in source.walk(node, cst.Attribute, cst.Name, cst.Subscript):
            if isinstance(each, cst.Subscript):
                if any(_counts_keys(code, file, value) for file, value in _values(code, path, each.value)):
                    yield _trace(source, path, each)
            elif isinstance(each, cst.Name) and is_read(source, each):
                bound = code.values(path, each)
                if any(_is_bound_change(value) for _, value in bound):
                    yield _trace(source, path, each)


def _is_bound_change(node: cst.BaseExpression) -> bool:
    """Whether an expression is a method that changes its object, taken as a value: `seen.append`."""
    return isinstance(node, cst.Attribute) and node.attr.value in CHANGES | {"__next__", "__setitem__"}


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
