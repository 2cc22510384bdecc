"""The shapes and number formats of an operator's arguments.

    shapes_of(trace, op)             # ((768, 50257), (), ()); None where shapes were not recorded
    dtypes_of(trace, op)             # ("float", "Scalar", "Scalar")

Equal shapes are one text of the trace, so a text is parsed once, however many operators have it. Formats are the
profiler's words: names of C++ types (`c10::BFloat16`, `float`, `long int`), `Scalar`, `TensorList`, or "" for none.
"""

from __future__ import annotations

import json
from functools import lru_cache

from diagnose.trace import Trace

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]


def shapes_of(trace: Trace, op: int) -> Shapes | None:
    """The shapes of an operator's arguments, in order; None where the recording has no shapes for it.

    `()` is a number or a tensor of one element, which profilers write alike, or no argument at all; None in the place
    of a shape is a list of tensors.
    """
    text = int(trace.ops.shapes[op]) if op >= 0 else -1
    return parsed_shapes(trace.texts[text]) if text >= 0 else None


def dtypes_of(trace: Trace, op: int) -> tuple[str, ...] | None:
    """The formats of an operator's arguments, in order, as the profiler names them; None where none are recorded."""
    text = int(trace.ops.dtypes[op]) if op >= 0 else -1
    return parsed_dtypes(trace.texts[text]) if text >= 0 else None


@lru_cache(maxsize=65536)
def parsed_shapes(text: str) -> Shapes | None:
    """`[[2, 3], []]` as tuples; None for a text that holds no shapes."""
    entries = _entries(text)
    return None if entries is None else tuple(_shape(entry) for entry in entries)


@lru_cache(maxsize=65536)
def parsed_lists(text: str) -> tuple[tuple[Shape, ...] | None, ...]:
    """Per argument, the shapes of the tensors in it where it is a list of tensors, else None."""
    found = []
    for entry in _entries(text) or ():
        shapes = [_shape(one) for one in entry] if isinstance(entry, list) else []
        known = tuple(shape for shape in shapes if shape is not None)
        found.append(known if known and len(known) == len(shapes) else None)
    return tuple(found)


@lru_cache(maxsize=65536)
def parsed_dtypes(text: str) -> tuple[str, ...] | None:
    """`["float", "Scalar"]` as a tuple; None for a text that holds no formats."""
    entries = _entries(text)
    return None if entries is None else tuple(entry if isinstance(entry, str) else "" for entry in entries)


def _entries(text: str) -> list[object] | None:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return entries if isinstance(entries, list) else None


def _shape(entry: object) -> Shape | None:
    if not isinstance(entry, list):
        return None
    sizes = tuple(size for size in entry if type(size) is int and size >= 0)
    return sizes if len(sizes) == len(entry) else None
