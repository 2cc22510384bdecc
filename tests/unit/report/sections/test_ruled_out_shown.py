"""What a finding rules out is said beside its evidence, wherever the finding is shown."""

from __future__ import annotations

from dataclasses import replace

import journals
import tinygpt
from screens import drawn_at_once  # noqa: F401 - `drawn_at_once` holds for each test here

from diagnose.report.export import markdown
from diagnose.report.page import html
from diagnose.report.terminal import text
from diagnose.session import State, fold
from diagnose.tui.tabs.findings import detail

UNLIKE = "a slow host: it issues work for 1.00 ms per step, the device works for 9.00 ms"


def state(*ruled_out: str) -> State:
    found = fold(journals.diagnosed())
    assert found.diagnosis is not None
    first, *others = found.diagnosis.findings
    findings = (replace(first, ruled_out=ruled_out), *others)
    return replace(found, diagnosis=replace(found.diagnosis, findings=findings))


def shown(*ruled_out: str) -> list[str]:
    """The finding as text, Markdown, a screen and a page, each on one line."""
    run = state(*ruled_out)
    assert run.diagnosis is not None
    screen = detail(run.diagnosis.findings[0], tinygpt.CWD, 100, tinygpt.SOURCES.get, str)
    whole = (text.render(run), markdown.render(run), "\n".join(line.plain for line in screen), html.render(run))
    return [" ".join(report.split()) for report in whole]


def test_it_is_said_in_every_report() -> None:
    for report, said in zip(shown(UNLIKE), (" ", ": ", " ", "</dt><dd>"), strict=True):
        assert f"uled out{said}{UNLIKE}" in report


def test_a_finding_that_rules_nothing_out_says_nothing_of_it() -> None:
    assert not any("uled out" in report for report in shown())
