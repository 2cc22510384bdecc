"""A fixer that a finding names and that has no edit says why, wherever the finding is shown."""

from __future__ import annotations

from dataclasses import replace

import journals
import tinygpt
from screens import drawn_at_once  # noqa: F401 - `drawn_at_once` holds for each test here

from diagnose.compose.journal import NOTHING_TO_CHANGE
from diagnose.model import Decision, Verdict
from diagnose.report.export import markdown
from diagnose.report.page import html
from diagnose.report.sections.verdict_table import without_edit
from diagnose.report.terminal import text
from diagnose.session import State, fold
from diagnose.tui.tabs.findings import detail

WHY = "train.py:27: the dataset is changed from outside"


def asked() -> State:
    """A run whose first finding names two fixers, neither of which has an edit."""
    state = fold(journals.diagnosed())
    assert state.diagnosis is not None
    first, *others = state.diagnosis.findings
    first = replace(first, fixers=("loader-workers", "loader-prefetch"))
    return replace(
        state,
        diagnosis=replace(state.diagnosis, findings=(first, *others)),
        verdicts=(
            Verdict("loader-workers", Decision.ADVICE, WHY),
            Verdict("loader-prefetch", Decision.NOT_TRIED, NOTHING_TO_CHANGE),
        ),
    )


def test_the_reason_is_the_fixers_own_and_else_names_the_line() -> None:
    state = asked()
    assert state.diagnosis is not None
    first, second, *_ = state.diagnosis.findings
    assert without_edit(state, first) == [f"loader-workers: {WHY}", "loader-prefetch: nothing to change at train.py:27"]
    assert without_edit(state, second) == [], "nobody asked its fixers"


def test_text_markdown_page_and_screen_say_it_beside_the_finding() -> None:
    state = asked()
    assert state.diagnosis is not None
    first = state.diagnosis.findings[0]
    screen = detail(first, tinygpt.CWD, 100, tinygpt.SOURCES.get, str, no_edit=without_edit(state, first))
    for report in (text.render(state), markdown.render(state), "\n".join(line.plain for line in screen)):
        words = " ".join(report.split())
        assert f"loader-workers: {WHY}" in words
        assert "loader-prefetch: nothing to change at train.py:27" in words
    assert f"<dt>no edit</dt><dd>loader-workers: {WHY}</dd>" in html.render(state)
