"""An accounting drawn as a bar: nothing is lost, nothing is made up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diagnose.model import Accounting, Decision, Severity
from diagnose.report.style.step_bar import bar, cells, slices
from diagnose.report.style.vocabulary import CLASSES, DECISIONS, SEVERITIES

_times = st.integers(0, 10**10)
_accountings = st.builds(
    Accounting, _times, _times, _times, st.dictionaries(st.sampled_from([*list(CLASSES)[3:], "elsewhere"]), _times)
)


@given(_accountings, st.integers(1, 200))
def test_cells_sum_to_the_width_and_are_within_one_of_their_part(accounting: Accounting, width: int) -> None:
    parts = slices(accounting)
    if not parts:
        assert accounting.total_ns == 0
        return
    given_cells = cells(parts, width)
    assert sum(given_cells) == width
    assert all(abs(count - part.share * width) < 1 + 1e-6 for count, part in zip(given_cells, parts, strict=True))
    assert len(bar(parts, width)) == width


@given(_accountings)
def test_slices_sum_to_the_step(accounting: Accounting) -> None:
    assert sum(part.ns for part in slices(accounting)) == accounting.total_ns


def test_slices_keep_one_order_and_put_unknown_causes_last() -> None:
    accounting = Accounting(1, 1, 1, {"elsewhere": 1, "sync": 1, "input": 1})
    kinds = [part.kind for part in slices(accounting)]
    assert kinds == ["compute", "exposed_comm", "exposed_copy", "input", "sync", "elsewhere"]


def test_every_meaning_has_a_look_and_no_two_classes_share_a_fill() -> None:
    assert set(SEVERITIES) == set(Severity)
    assert set(DECISIONS) == set(Decision)
    marks = [look.mark for look in CLASSES.values()]
    assert len(set(marks)) == len(marks)
