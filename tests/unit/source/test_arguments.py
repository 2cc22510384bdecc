"""New arguments of calls in lines that grow too long."""

from __future__ import annotations

import pytest

from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import parse, splice

LONGEST = 120


@pytest.mark.parametrize(
    ("line", "in_a_row"),
    [
        ("{} = x.to(device)", False),
        ("{} = iter(x.to(device))", False),
        ("{} = criterion(model(x.to(device)) * scale, y)", True),
        ("{} = criterion(model(x.to(device)), y)", True),
        ("{} = x.to(device); loss.backward()", True),
    ],
)
def test_a_call_between_others_keeps_its_line(line: str, in_a_row: bool) -> None:
    comment = "#" * LONGEST
    text = f"{comment}\n{line.format('x' * (LONGEST + len('{}') - len(line)))}\n"
    source = parse(text)
    assert source is not None
    (call,) = source.calls_named("to")
    edited = splice(text, set_keywords(source, call, {"non_blocking": "True"}))
    assert (edited.count("\n") == text.count("\n")) is in_a_row, edited
    assert ("(device, non_blocking=True)" in edited) is in_a_row
