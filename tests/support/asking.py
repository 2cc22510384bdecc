"""Asks a fixer for its edit of one text, as the fixing does for one finding."""

from __future__ import annotations

import difflib
from dataclasses import replace

from diagnose.fixer import Answer, Edits, Request, Site, example_request
from diagnose.model import Place, Scalar
from diagnose.plugins import load

FIXERS = load().fixers


def asked(fixer: str, rule: str, text: str, at: str = "", sites: tuple[Site, ...] = (), **setting: Scalar) -> Answer:
    """The answer of a fixer where a finding names the line with some code."""
    request: Request = example_request(rule, text, sites=sites, setting=setting)
    (path,) = request.sources
    lines = [number for number, line in enumerate(text.splitlines(), 1) if at and at in line]
    finding = replace(request.finding, where=tuple(Place(path, line) for line in lines))
    return FIXERS[fixer].rewrite(replace(request, finding=finding))


def changed(text: str, answer: Answer) -> list[str]:
    """The lines that go and come, without their indentation."""
    assert isinstance(answer, Edits), answer
    (after,) = answer.files.values()
    compile(after, "edited", "exec")
    compared = list(difflib.unified_diff(text.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    return [line[0] + line[1:].strip() for line in compared if not line.startswith("@@") and line[1:].strip()]
