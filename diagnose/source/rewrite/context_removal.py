"""Taking a context away from around code: an item of a `with`, or the whole statement and its indentation."""

from __future__ import annotations

import libcst as cst

from diagnose.source.tree.syntax import Source, Splice


def unwrap(source: Source, item: cst.WithItem) -> list[Splice]:
    """Take out one item of a `with`; if it is the only one, its body moves to the left. Empty where that cannot be.

    Lines inside of strings stay where they are, since moving them would change the strings.
    """
    around = source.parent(item)
    assert isinstance(around, cst.With)  # the grammar has items nowhere else
    if len(around.items) > 1:
        return [_without(source, around, item)]
    if not isinstance(around.body, cst.IndentedBlock):
        return []
    first, last = around.body.body[0], around.body.body[-1]
    start = source.line_start(source.span(around)[0])
    outer = source.indent(around)
    inner = source.indent(first)
    body = source.after_line(source.text.rindex(":", start, _first_of_body(source, around)))
    end = source.after_line(source.span(last)[1])
    cuts = [Splice(start, body, "")]
    kept = _string_lines(source, around.body)
    at = body
    while at < end:
        following = source.after_line(at)
        line = source.text[at:following]
        if line.startswith(inner) and at not in kept:
            cuts.append(Splice(at, at + len(inner), outer))
        at = following
    return cuts


def _first_of_body(source: Source, around: cst.With) -> int:
    """Return where the colon lies before: the header's last item, and at most white space and a parenthesis after
    it."""
    end = source.wide_span(around.items[-1])[1]
    return source.text.index(":", end) + 1


def _string_lines(source: Source, body: cst.CSTNode) -> set[int]:
    """The offsets of lines that begin inside of a string."""
    found: set[int] = set()
    for kind in (cst.SimpleString, cst.FormattedString):
        for text in source.every(kind, body):
            start, end = source.span(text)
            at = source.after_line(start)
            while at <= end and at > start:
                found.add(at)
                following = source.after_line(at)
                if following == at:
                    break
                at = following
    return found


def _without(source: Source, around: cst.With, item: cst.WithItem) -> Splice:
    """One of several items, with its comma."""
    at = around.items.index(item)
    if at + 1 < len(around.items):
        return Splice(source.wide_span(item.item)[0], source.wide_span(around.items[at + 1].item)[0], "")
    before = around.items[at - 1]
    tail = before.asname.name if before.asname is not None else before.item
    own = item.asname.name if item.asname is not None else item.item
    return Splice(source.wide_span(tail)[1], source.wide_span(own)[1], "")
