"""Order, parents, offsets and scopes of nodes are LibCST's own, found at once."""

from __future__ import annotations

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider, WhitespaceInclusivePositionProvider

from diagnose.source.tree.syntax import Source, parse

PROGRAM = '''\
"""What it does."""
import torch.nn as nn  # layers
from typing import (
    List,
)


@decorated(1, *two, key=[3])
class Model(nn.Module, metaclass=Meta):

    def forward(self, x: "List[nn.Module]", *, scale=(1.0)) -> None:
        if (x  is  None): return  # early
        with open("a") as file, (lock):
            total += [y ** 2 for y in x if y not in file][0:-1]
        return lambda z: (yield f"{z!r:>{scale}} {nn.ReLU}")

    async def later(self):
        try:
            await self.forward(x := 3)
        except* (KeyError, ValueError) as error:
            raise error from None
        # the end of the block
'''
TEXTS = {
    "as it is": PROGRAM,
    "without a last line end": PROGRAM.rstrip(),
    "lines of Windows": PROGRAM.replace("\n", "\r\n"),
    "tabs": PROGRAM.replace("    ", "\t"),
    "empty": "",
    "a comment": "# nothing\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_offsets_and_lines_are_those_of_libcst(text: str) -> None:
    source = Source(text)
    wrapper = MetadataWrapper(source.module, unsafe_skip_copy=True)
    narrow, wide = (wrapper.resolve(one) for one in (PositionProvider, WhitespaceInclusivePositionProvider))
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:at])) for at in range(len(lines) + 1)]
    for node in source.walk():
        for span, known in ((source.span(node), narrow[node]), (source.wide_span(node), wide[node])):
            ends = [starts[min(at.line - 1, len(lines))] + at.column for at in (known.start, known.end)]
            assert [min(each, len(text)) for each in ends] == list(span)
        assert source.lines_of(node) == (narrow[node].start.line, narrow[node].end.line)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_nodes_are_gone_through_as_libcst_does(text: str) -> None:
    source = Source(text)
    marks = (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.Newline)

    def below(node: cst.CSTNode) -> list[cst.CSTNode]:
        assert all(source.parent(child) is node for child in node.children)
        return [node, *(each for child in node.children for each in below(child))]

    found = [node for node in below(source.module) if not isinstance(node, marks)]
    assert [node for node in source.walk() if not isinstance(node, marks)] == found
    for node in found:
        calls = [each for each in below(node) if isinstance(each, cst.Call)]
        assert list(source.every(cst.Call, node)) == calls
        assert list(source.named("x", node)) == [
            each for each in below(node) if isinstance(each, cst.Name) and each.value == "x"
        ]


def test_names_are_resolved_as_by_libcst_also_in_annotations_that_are_strings() -> None:
    source = Source(PROGRAM)
    scopes = MetadataWrapper(source.module, unsafe_skip_copy=True).resolve(ScopeProvider)
    asked = [node for node in source.walk() if isinstance(node, cst.BaseExpression | cst.BaseStatement)]
    assert len(asked) > 50
    for node in asked:
        scope = scopes.get(node)
        known = {name.name for name in scope.get_qualified_names_for(node)} if scope is not None else set()
        assert source.names(node) == known
    relu = next(node for node in source.every(cst.Attribute) if node.attr.value == "ReLU")
    assert source.names(relu) == {"torch.nn.ReLU"}


def test_a_node_that_was_made_anew_is_gone_through_too() -> None:
    made = cst.parse_expression("f(g(1))")
    assert len(list(Source("a = 1\n").every(cst.Call, made))) == 2


def test_a_file_is_parsed_when_a_node_of_it_is_asked_for() -> None:
    source = parse(
        "def f():\n    g()\n\n\nclass A:\n    def m(self):\n        if n % 2:\n            self.h()\n        self.k()\n"
    )
    assert source is not None
    assert [(each.name, each.is_method) for each in source.outlined] == [("f", False), ("m", True)]
    assert [each.called for each in source.outlined] == [
        (frozenset({"g"}), frozenset()),
        (frozenset(), frozenset({"k"})),
    ]
    assert source.mentions("class")
    assert source.calls_named("nowhere") == ()
    assert "module" not in vars(source)
    assert source.function(1).name.value == "m"
    assert "module" in vars(source)


def test_what_python_cannot_read_is_no_source() -> None:
    assert parse("def f(:\n") is None
