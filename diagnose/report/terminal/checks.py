"""The output of `diagnose check`: each fixer's diff with the gates' answers, and the fixers without an edit."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.text import Text

from diagnose.model import EditCheck, GateAnswer
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import heading, print_sections, styled
from diagnose.report.style.vocabulary import BAD, GOOD, MUTED

_COLOURS = {GateAnswer.PASSED: GOOD, GateAnswer.REFUSED: BAD, GateAnswer.UNVERIFIED: MUTED}


def as_json(checks: Sequence[EditCheck], *, whole: bool) -> str:
    """The one check as an object; where it is a `whole` list, the list as `checks` of one object."""
    objects = [_object(one) for one in checks]
    return json.dumps({"checks": objects} if whole else objects[0], indent=2, ensure_ascii=False)


def _object(check: EditCheck) -> dict[str, object]:
    return {
        "fixer": check.fixer,
        "edits": bool(check.diff),
        "diff": check.diff,
        "detail": check.detail,
        "gate": check.gate.value,
        "gates": [{"name": one.name, "answer": one.answer.value, "detail": one.detail} for one in check.gates],
        "setting": dict(check.setting),
        "settings": [dict(one) for one in check.settings],
    }


def as_text(checks: Sequence[EditCheck], width: int, *, colour: bool) -> str:
    """A section for each edit, then one line for each fixer without."""
    sections = [_section(one, width) for one in checks if one.diff]
    sections.append([line for one in checks if not one.diff for line in _told(f"{one.fixer}: {one.detail}", width)])
    return print_sections(sections, colour)


def _section(check: EditCheck, width: int) -> list[Text]:
    lines = [heading(check.fixer, "", width).append(f"   {check.gate.value}", f"bold {_COLOURS[check.gate]}")]
    lines += _told(check.detail, width)
    if check.setting:
        others = [_words(one) for one in check.settings if one != check.setting]
        more = f"; --setting checks another: {', '.join(others)}" if others else ""
        lines += _told(f"with {_words(check.setting)}{more}", width)
    lines += [Text(), *(styled(line) for line in check.diff.splitlines()), Text()]
    for one in check.gates:
        first, *rest = wrap(f"{one.name}: {one.answer.value}. {one.detail}", width - 2)
        lines.append(styled("  ").append(first, _COLOURS[one.answer]))
        lines += [styled(f"    {line}", _COLOURS[one.answer]) for line in rest]
    return lines


def _words(setting: object) -> str:
    assert isinstance(setting, dict)
    return " ".join(f"{name}={value}" for name, value in setting.items())


def _told(words: str, width: int) -> list[Text]:
    return [styled(f"  {line}", MUTED) for line in wrap(words, width - 2)]
