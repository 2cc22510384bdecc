"""New arguments of calls in lines that grow too long."""

from __future__ import annotations

import pytest

from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import parse, splice

LONGEST = 120


def with_keywords(text: str, name: str, **keywords: str) -> str:
    """Return a text with these arguments in its one call of a function."""
    source = parse(text)
    assert source is not None
    (call,) = source.calls_named(name)
    return splice(text, set_keywords(source, call, keywords))


@pytest.mark.parametrize(
    ("line", "in_a_row"),
    [
        ("{} = x.to(device)", False),
        ("{} = iter(x.to(device))", False),
        ("{} = criterion(model(x.to(device)) * scale, y)", True),
        ("{} = criterion(model(x.to(device)), y)", True),
        ("{} = x.to(device); loss.backward()", True),
        ("{}, y = x.to(device), y.cuda()", True),
        ("{}, y = [x.to(device)], y", False),
    ],
)
def test_a_call_between_others_keeps_its_line(line: str, in_a_row: bool) -> None:
    comment = "#" * LONGEST
    text = f"{comment}\n{line.format('x' * (LONGEST + len('{}') - len(line)))}\n"
    edited = with_keywords(text, "to", non_blocking="True")
    assert (edited.count("\n") == text.count("\n")) is in_a_row, edited
    assert ("(device, non_blocking=True)" in edited) is in_a_row


@pytest.mark.parametrize(
    ("width", "below"),
    [
        (70, "    {}, shuffle=True, num_workers=2, pin_memory=True\n"),
        (90, "    {},\n    shuffle=True,\n    num_workers=2,\n    pin_memory=True,\n"),
    ],
)
def test_arguments_move_to_one_line_below_where_that_takes_them_all(width: int, below: str) -> None:
    name = "x" * width
    text = f"{'#' * LONGEST}\nloader = DataLoader({name}, shuffle=True, num_workers=0)\n"
    edited = with_keywords(text, "DataLoader", num_workers="2", pin_memory="True")
    assert edited.partition("\n")[2] == f"loader = DataLoader(\n{below.format(name)})\n"
