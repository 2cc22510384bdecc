"""What a variable may be bound by, where an `if` without `else` binds it anew."""

from __future__ import annotations

import libcst as cst
import pytest

from diagnose.source.dataflow.reaching_definitions import may_be_bound_by
from diagnose.source.tree.syntax import parse

SEEN = {
    "directly": "",
    "where a condition may bind it anew": "    if silent:\n        scores = None\n",
    "behind several conditions": "    if silent:\n        scores = None\n    if small:\n        scores = 0\n",
    "in a branch that is not followed": "    if silent:\n        pass\n    else:\n        scores = None\n",
}
UNSEEN = {
    "bound anew": "    scores = None\n",
    "bound anew before a condition": "    scores = None\n    if small:\n        scores = 0\n",
}


def may_see(between: str) -> bool:
    """Whether the `return` may have what the first statement bound."""
    source = parse(f"def forward(x):\n    scores = head(x)\n{between}    return scores\n")
    assert source is not None
    first = source.statement_at(2)
    last = next(source.every(cst.Return))
    assert isinstance(last.value, cst.Name)
    return may_be_bound_by(source, last.value, {id(first)})


@pytest.mark.parametrize("between", SEEN.values(), ids=SEEN)
def test_what_a_variable_may_be_bound_by(between: str) -> None:
    assert may_see(between)


@pytest.mark.parametrize("between", UNSEEN.values(), ids=UNSEEN)
def test_what_a_variable_is_no_longer_bound_by(between: str) -> None:
    assert not may_see(between)
