"""The calls that a loop goes through, such as `enumerate` and `zip`, and how each passes on the values it is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import libcst as cst

from diagnose.source.tree.edits import call_name


class Count(Enum):
    """How many of its values a call passes on."""

    ALL = auto()
    SOME = auto()
    REPEATED = auto()
    """All, more than once."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """How a call passes on the values that it is given. All keep their order."""

    count: Count
    module: str = ""
    """The module of the standard library that has it; empty for progress bars, which nobody asks by `next`."""
    every_argument: bool = False
    """Whether the call goes through each of its arguments; else through the first alone."""


ADAPTERS: Mapping[str, Adapter] = {
    "iter": Adapter(Count.ALL, "builtins"),
    "enumerate": Adapter(Count.ALL, "builtins"),
    "tqdm": Adapter(Count.ALL),
    "track": Adapter(Count.ALL),
    "islice": Adapter(Count.SOME, "itertools"),
    "cycle": Adapter(Count.REPEATED, "itertools"),
    "zip": Adapter(Count.SOME, "builtins", every_argument=True),
    "zip_longest": Adapter(Count.ALL, "itertools", every_argument=True),
    "chain": Adapter(Count.ALL, "itertools", every_argument=True),
    "product": Adapter(Count.REPEATED, "itertools", every_argument=True),
}
OF_ONE = frozenset(name for name, each in ADAPTERS.items() if not each.every_argument)
OF_ALL_VALUES = frozenset(name for name in OF_ONE if ADAPTERS[name].count is Count.ALL)
OF_ONE_PASS = frozenset(name for name, each in ADAPTERS.items() if each.count is not Count.REPEATED)
PROGRESS_BARS = frozenset(name for name, each in ADAPTERS.items() if not each.module)
ITERATORS = frozenset(name for name, each in ADAPTERS.items() if each.module)
NUMBERS = frozenset({"range", "trange", "count"})
"""The names of iterators that count the turns of a loop."""


class Numbered(NamedTuple):
    """The parts of `for number, value in enumerate(values):`."""

    number: cst.BaseExpression
    value: cst.BaseExpression
    values: cst.BaseExpression
    from_zero: bool


def numbered(loop: cst.For | cst.CompFor) -> Numbered | None:
    """The parts of a loop over `enumerate(…)`; None for any other."""
    call, target = loop.iter, loop.target
    if not isinstance(call, cst.Call) or call_name(call) != "enumerate" or not call.args:
        return None
    if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
        return None
    number, value = (each.value for each in target.elements)
    return Numbered(number, value, call.args[0].value, len(call.args) == 1)


def unwrapped(node: cst.BaseExpression, through: Collection[str] = OF_ONE) -> cst.BaseExpression:
    """Return the expression that calls of these names go through: `loader` for `enumerate(tqdm(loader))`.

    `iter(read, None)` goes through what its first argument returns.
    """
    while isinstance(node, cst.Call) and call_name(node) in through and node.args:
        first = node.args[0]
        if first.star or first.keyword is not None or (call_name(node) == "iter" and len(node.args) > 1):
            break
        node = first.value
    return node
