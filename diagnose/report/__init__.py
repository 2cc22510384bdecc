"""Reports of a run or a recording as text. Each format is one file: a module that ends in `REPORT = Report(...)`.

    terminal | page | export   the reports themselves
    sections                   parts that several reports have
    wording                    sentences
    style                      labels, colours, lines, names of files

A report is a pure function of a folded journal (`session.State`) or of a `Diagnosis` alone. It reads no clock, no
terminal and no file; what it cannot know, it leaves out or says so.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from diagnose.model import Diagnosis
from diagnose.session import State

Subject = Diagnosis | State
PAGE = "report.html"
"""The file in a run folder that holds the HTML report."""


@dataclass(frozen=True)
class Report:
    """One format of `diagnose report`."""

    name: str
    """What `--format` takes."""
    suffix: str
    """The suffix of a file that holds it, with the dot."""
    render: Callable[[Subject], str]


def formats() -> dict[str, Report]:
    """All formats by name, in alphabetical order."""
    names = [info.name for info in pkgutil.walk_packages(__path__, f"{__name__}.")]
    modules = (importlib.import_module(name) for name in names)
    found = [module.REPORT for module in modules if isinstance(getattr(module, "REPORT", None), Report)]
    return {report.name: report for report in sorted(found, key=lambda report: report.name)}


def as_state(subject: Subject) -> State:
    """A diagnosis alone as the state of a run that consists of it."""
    return State(diagnosis=subject) if isinstance(subject, Diagnosis) else subject
