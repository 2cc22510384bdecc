"""The answers as tables for benchmarks/RESULTS.md: a row a program, a column a view."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from accuracy_score import VIEWS, Answer, figures


def markdown(answers: Sequence[Answer]) -> str:
    """The totals, then every program: what is missed is in words."""
    return "\n".join([*_totals(answers), "", *_programs(answers)])


def _totals(answers: Sequence[Answer]) -> Iterator[str]:
    by_view = dict(figures(answers))
    names = list(next(iter(by_view.values()), {}))
    yield _row(["", *by_view])
    yield _row(["---"] * (len(by_view) + 1))
    for name in names:
        yield _row([name, *(view[name] for view in by_view.values())])


def _programs(answers: Sequence[Answer]) -> Iterator[str]:
    views = [view for view in VIEWS if any(answer.view == view for answer in answers)]
    yield _row(["program", "step", "costs", *views, "high or medium that is not so"])
    yield _row(["---"] * (len(views) + 4))
    for program, group in itertools.groupby(answers, key=lambda answer: answer.program):
        of = {answer.view: answer for answer in group}
        one = next(iter(of.values()))
        cells = [_cell(of[view]) if view in of else "not recorded" for view in views]
        yield _row([f"`{program}`", _ms(one.step_ns), _ms(one.measured_ns), *cells, _wrong(list(of.values()))])


def _cell(answer: Answer) -> str:
    """Format the rank of the ailment, the error of its saving, and whether its line is wrong."""
    if not answer.ailment:
        return f"`{answer.first}`" if answer.first else "nothing"
    if answer.place is None:
        return f"missed; `{answer.first}`" if answer.first else "missed"
    place = "first" if answer.is_hit else f"{answer.place}., after `{answer.first}`"
    error = "" if answer.saving_error is None else f", {answer.saving_error:+.0%}"
    return place + error + (", wrong line" if answer.is_line_right is False else "")


def _wrong(of_program: Sequence[Answer]) -> str:
    """Rules by arm and view, the ailing program's own consequences left out."""
    said = [f"twin, {answer.view}: {', '.join(answer.false)}" for answer in of_program if answer.false]
    said += [f"{answer.view}: {', '.join(answer.others)}" for answer in of_program if answer.others]
    return "; ".join(said)


def _ms(time_ns: int | None) -> str:
    return "" if time_ns is None else f"{time_ns / 1e6:.1f} ms"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
