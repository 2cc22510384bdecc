"""The findings as JUnit XML, which continuous integration shows as tests: one case a rule.

A finding of severity high or medium is a failure; a smaller one passes and says what it is; a rule that could not tell
is skipped, with what it needs; a fix that was tried passes, whatever came of it. Form: the schema of Jenkins' JUnit
plug-in, which others read as well.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from diagnose.model import Finding, Severity
from diagnose.report import Report, Subject, as_state
from diagnose.report.sections.verdict_table import look
from diagnose.report.style.paths import place
from diagnose.report.wording.phrases import gain
from diagnose.units import printable

_FAILS = (Severity.HIGH, Severity.MEDIUM)


def render(subject: Subject) -> str:
    """One suite; without a diagnosis, one with an error."""
    state = as_state(subject)
    root = state.started.cwd if state.started else None
    suite = Element("testsuite", name="diagnose")
    diagnosis = state.diagnosis
    if diagnosis is None:
        _case(suite, "diagnosis", "error", "nothing was diagnosed")
    elif not diagnosis.findings:
        _case(suite, "no finding")
    for finding in diagnosis.findings if diagnosis else ():
        _finding(suite, finding, root)
    for answer in diagnosis.cannot_tell if diagnosis else ():
        _case(suite, answer.rule, "skipped", f"cannot tell: needs {answer.needs}")
    for verdict in state.verdicts:
        case = _case(suite, f"{verdict.fixer}: {look(state, verdict).label}")
        SubElement(case, "system-out").text = _xml(verdict.summary)
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in counts.items():
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _finding(suite: Element, finding: Finding, root: str | None) -> None:
    where = "".join(f"\n{place(one, root)}{f'  {one.code}' if one.code else ''}" for one in finding.where)
    rank = "" if finding.rank is None else f" on rank {finding.rank}"
    said = f"{finding.summary}\ngives back: {gain(finding)}{where}"
    if finding.severity in _FAILS:
        _case(suite, finding.rule + rank, "failure", finding.summary, said, finding.severity)
    else:
        case = _case(suite, finding.rule + rank)
        SubElement(case, "system-out").text = _xml(said)


def _case(
    suite: Element, name: str, tag: str | None = None, message: str = "", text: str = "", kind: str = ""
) -> Element:
    case = SubElement(suite, "testcase", classname="diagnose", name=_xml(name))
    if tag is not None:
        outcome = SubElement(case, tag, message=_xml(message))
        outcome.text = _xml(text) or None
        if kind:
            outcome.set("type", kind)
    return case


def _xml(text: str) -> str:
    """Return text without the characters that XML 1.0 cannot hold."""
    lines = text.split("\n")
    return "\n".join("".join(c for c in printable(line) if c not in "\ufffe\uffff") for line in lines)


REPORT = Report("junit", ".xml", render)
