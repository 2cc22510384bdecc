"""The arguments of a call: find one, set some. What is added follows the layout of the call and of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.source.tree.edits import replace
from diagnose.source.tree.syntax import Source, Splice


def argument(call: cst.Call, keyword: str, position: int | None = None) -> cst.Arg | None:
    """The argument given for a parameter, by keyword or at a position from 0 (where no star comes before it)."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg
    if position is not None and position < len(call.args):
        before = call.args[: position + 1]
        if all(arg.keyword is None and not arg.star for arg in before):
            return before[-1]
    return None


def has_star(call: cst.Call) -> bool:
    """Whether arguments come from a sequence or mapping that only the running program knows."""
    return any(arg.star for arg in call.args)


def argument_code(source: Source, arg: cst.Arg) -> str:
    """An argument with its keyword or star, without the comma after it and comments behind that."""
    start, end = _arg_span(source, arg)
    return source.text[start:end]


def put_first(source: Source, call: cst.Call, code: str) -> Splice:
    """Another argument before all others of a call that has some, on a line of its own where they are."""
    start, _ = _arg_span(source, call.args[0])
    lead = source.text[source.line_start(start) : start]
    return Splice(start, start, f"{code}, " if lead.strip() else f"{code},{source.newline}{lead}")


def set_keywords(
    source: Source,
    call: cst.Call,
    values: Mapping[str, str],
    *,
    positions: Mapping[str, int] | None = None,
    remove: Sequence[str] = (),
) -> list[Splice]:
    """Set keyword arguments to code, in place where the argument is there already, else at the end of the call.

    `positions` gives the position of parameters that may be passed without their name. Arguments in `remove` give
    their place to new ones first; what is left of them goes. The arguments of a one-line call that would grow too
    long move to a line below, or to one line each, but for a call in a comprehension, or one of many on a line that was
    too long before. Raises ValueError for `remove` of more than one argument without a new one to take its place.
    """
    splices: list[Splice] = []
    new: list[str] = []
    for keyword, code in values.items():
        there = argument(call, keyword, (positions or {}).get(keyword))
        if there is None:
            new.append(f"{keyword}={code}")
        elif source.code(there.value) != code:
            splices.append(replace(source, there.value, code))
    gone = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value in remove]
    while gone and new:
        start, end = _arg_span(source, gone.pop(0))
        splices.append(Splice(start, end, new.pop(0)))
    if len(gone) > 1:
        raise ValueError("only one argument can be removed without a new one in its place")
    if gone:
        splices.append(_without(source, call, gone[0]))
    return splices + (_with(source, call, new, _growth(splices)) if new else [])


def remove_argument(source: Source, call: cst.Call, arg: cst.Arg) -> Splice:
    """Take an argument out of a call, with its comma, and with its line where it has one of its own."""
    return _without(source, call, arg)


def _arg_span(source: Source, arg: cst.Arg) -> tuple[int, int]:
    """Return the span from the keyword or star to the end of the value; without the comma."""
    start, _ = source.wide_span(arg)
    return start, source.wide_span(arg.value)[1]


def _comma_end(source: Source, arg: cst.Arg) -> int | None:
    return source.span(arg.comma)[1] if isinstance(arg.comma, cst.Comma) else None


def _own_lines(source: Source, call: cst.Call) -> bool:
    """Whether each argument of a call begins a line."""
    starts = [_arg_span(source, arg)[0] for arg in call.args]
    return all(not source.text[source.line_start(start) : start].strip() for start in starts)


def _ends_in_own_line(source: Source, call: cst.Call) -> bool:
    """Whether the last argument has a line for itself, with the comma that says that more may follow."""
    last = call.args[-1]
    start, comma_end = _arg_span(source, last)[0], _comma_end(source, last)
    if comma_end is None or source.span(call)[1] - 1 <= source.line_end(comma_end):
        return False
    return not source.text[source.line_start(start) : start].strip()


def _with(source: Source, call: cst.Call, new: Sequence[str], growth: int) -> list[Splice]:
    """New arguments at the end of a call that grows by `growth` characters through other edits."""
    if call.args and (_own_lines(source, call) or _ends_in_own_line(source, call)):
        return _on_lines(source, call, new)
    row = _in_row(source, call, new)
    first, last = source.lines_of(call)
    long_before = isinstance(source.parent(call), cst.Arg) and len(source.line_text(last)) > source.line_limit
    if long_before or len(source.line_text(last)) + growth + _growth(row) <= source.line_limit:
        return row
    if first == last and _is_packed(source, call):
        return row
    if any(source.inside(call, around) is not None for around in (cst.FormattedStringExpression, cst.BaseComp)):
        return row
    return _broken(source, call, new, growth) if first == last else _in_new_row(source, call, new) or row


def _is_packed(source: Source, call: cst.Call) -> bool:
    """Whether a call shares its line with other arguments, elements or statements, which new lines would tear apart."""
    line = source.statement(call)
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) > 1:
        return True
    element = source.inside(call, cst.Element)
    for each in getattr(source.parent(element), "elements", ()) if element is not None else ():
        if each is not element and source.lines_of(each.value)[0] == source.lines_of(call)[0]:
            return True
    below: cst.CSTNode = call
    while (arg := source.inside(below, cst.Arg)) is not None:
        outer = source.parent(arg)
        if not isinstance(outer, cst.Call) or len(outer.args) > 1 or arg.value is not below:
            return True
        below = outer
    return False


def _in_row(source: Source, call: cst.Call, new: Sequence[str]) -> list[Splice]:
    """New arguments on the line of the last one."""
    if not call.args:
        end = source.span(call)[1] - 1
        return [Splice(end, end, ", ".join(new))]
    (start, end), comma_end = _arg_span(source, call.args[-1]), _comma_end(source, call.args[-1])
    if comma_end is not None:
        return [Splice(comma_end, comma_end, "".join(f" {text}," for text in new))]
    added = "".join(f", {text}" for text in new)
    if _lonely_generator(call):
        return [Splice(start, start, "("), Splice(end, end, ")" + added)]
    return [Splice(end, end, added)]


def _in_new_row(source: Source, call: cst.Call, new: Sequence[str]) -> list[Splice]:
    """New arguments on a line below the last one, where an argument begins that line; empty where none does."""
    starts = [_arg_span(source, arg)[0] for arg in call.args]
    line = source.line_start(starts[-1]) if starts else 0
    row = next((start for start in starts if start >= line), line)
    if not starts or source.text[line:row].strip():
        return []
    lead = source.newline + source.text[line:row]
    end, comma_end = _arg_span(source, call.args[-1])[1], _comma_end(source, call.args[-1])
    if comma_end is not None:
        return [Splice(comma_end, comma_end, lead + " ".join(f"{text}," for text in new))]
    return [Splice(end, end, "," + lead + ", ".join(new))]


def _on_lines(source: Source, call: cst.Call, new: Sequence[str]) -> list[Splice]:
    """New arguments on lines of their own, as those that are there."""
    last = call.args[-1]
    start, end = _arg_span(source, last)
    comma_end = _comma_end(source, last)
    lead = source.newline + source.text[source.line_start(start) : start]
    line_end = source.line_end(comma_end or end)
    closing = source.span(call)[1] - 1
    if closing < line_end:  # the parenthesis closes on the line of the last argument
        line_end = comma_end or end
    if comma_end is None:
        block = "".join(f"{lead}{text}," for text in new)[:-1]
        if line_end == end:
            return [Splice(end, end, "," + block)]
        return [Splice(end, end, ","), Splice(line_end, line_end, block)]
    return [Splice(line_end, line_end, "".join(f"{lead}{text}," for text in new))]


def _broken(source: Source, call: cst.Call, new: Sequence[str], growth: int) -> list[Splice]:
    """A call on one line, with its arguments on a line below, or with every one on a line of its own and a comma after
    each where one line is too short for all, as formatters write it."""
    start, end = source.span(call)
    line = source.text[source.line_start(start) : start]
    outer = source.newline + line[: len(line) - len(line.lstrip())]
    inner = outer + source.indentation
    added = "".join(f"{inner}{text}," for text in new)
    if not call.args:
        return [Splice(end - 1, end - 1, added + outer)]
    splices = []
    opening, closing = ("(", ")") if _lonely_generator(call) else ("", "")
    after = source.text.rindex("(", source.wide_span(call.func)[1], _arg_span(source, call.args[0])[0]) + 1
    first, last = _arg_span(source, call.args[0])[0], _arg_span(source, call.args[-1])[1]
    row = closing + "".join(f", {text}" for text in new)
    width = len(inner.lstrip("\r\n")) + len(opening) + last - first + growth + len(row)
    if _comma_end(source, call.args[-1]) is None and width <= source.line_limit:
        return [Splice(after, first, inner + opening), Splice(last, end - 1, row + outer)]
    for arg in call.args:
        begin, finish = _arg_span(source, arg)
        splices.append(Splice(after, begin, inner + opening))
        after = _comma_end(source, arg) or finish
    comma = "" if isinstance(call.args[-1].comma, cst.Comma) else ","
    return [*splices, Splice(after, end - 1, closing + comma + added + outer)]


def _lonely_generator(call: cst.Call) -> bool:
    """Whether the only argument is a generator without parentheses: it needs them once it has company."""
    return len(call.args) == 1 and isinstance(call.args[0].value, cst.GeneratorExp) and not call.args[0].value.lpar


def _growth(splices: Sequence[Splice]) -> int:
    return sum(len(edit.text) - (edit.end - edit.start) for edit in splices)


def _without(source: Source, call: cst.Call, arg: cst.Arg) -> Splice:
    index = call.args.index(arg)
    start, end = _arg_span(source, arg)
    end = _comma_end(source, arg) or end
    if _own_lines(source, call) and source.span(call)[1] - 1 > source.line_end(end):
        return Splice(source.line_start(start), source.after_line(end), "")
    if index + 1 < len(call.args):
        return Splice(start, _arg_span(source, call.args[index + 1])[0], "")
    if index:
        before = call.args[index - 1]
        return Splice(_arg_span(source, before)[1], end, "")
    return Splice(start, end, "")
