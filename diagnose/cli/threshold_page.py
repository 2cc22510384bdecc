"""The page of thresholds: `python -m diagnose.cli.threshold_page docs/thresholds.md`, in a checkout."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = {
    "rules": "Rules",
    "diagnose/measure": "Measures",
    "diagnose/trial": "Trials",
    "diagnose/compose": "Which fixes are tried",
    "fixers": "Fixers",
    "diagnose/watching": "Watching long runs",
    "diagnose/regressions": "Regressions between commits",
}
"""The folders whose constants decide, with the heading of each in the page."""
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_ENTRY = re.compile(r"^    (?=_?[A-Z][A-Z0-9_]{2,}\b)", re.MULTILINE)
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.operator, ast.unaryop, ast.expr_context)


@dataclass(frozen=True)
class Threshold:
    """A number that a module names and decides by."""

    path: str
    name: str
    value: str
    """The expression in the source."""
    basis: str
    """The text beside the constant; empty where there is none."""


def thresholds(root: Path) -> Iterator[Threshold]:
    """Yield the module constants with a number as their value below the folders of a checkout, in order."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield from _of_module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def _of_module(path: str, text: str) -> Iterator[Threshold]:
    tree, lines = ast.parse(text), text.splitlines()
    following = [*tree.body[1:], None]
    for number, (statement, after) in enumerate(zip(tree.body, following, strict=True)):
        named = _number(statement)
        if named is None:
            continue
        name, value = named
        own = _documentation(after) or _comment(statement, lines) or _section(ast.get_docstring(tree) or "", name)
        yield Threshold(path, name, value, own or _of_group(tree.body[number:], lines))


def _number(statement: ast.stmt | None) -> tuple[str, str] | None:
    """Return the name and the expression of a constant; None for any other statement."""
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return None
    if not isinstance(target, ast.Name) or not _CONSTANT.fullmatch(target.id):
        return None
    parts = list(ast.walk(value))
    numbers = [part for part in parts if isinstance(part, ast.Constant)]
    if not numbers or not all(isinstance(part, _ARITHMETIC) for part in parts):
        return None
    return (target.id, ast.unparse(value)) if all(type(one.value) in (int, float) for one in numbers) else None


def _documentation(statement: ast.stmt | None) -> str:
    """Return the text of a statement that is one string: it documents what stands before it."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return ""
    return " ".join(str(statement.value.value).split())


def _comment(statement: ast.stmt, lines: list[str]) -> str:
    """Return the comment at the end of a statement's line, else the one in the lines directly above it."""
    beside = lines[(statement.end_lineno or statement.lineno) - 1].partition("  # ")[2]
    above: list[str] = []
    for line in reversed(lines[: statement.lineno - 1]):
        if not line.startswith("# "):
            break
        above.insert(0, line[2:])
    return beside.strip() or " ".join(above)


def _section(documentation: str, name: str) -> str:
    """Return what the section on thresholds of a module's docstring says of a name."""
    section = documentation.partition("\nThresholds\n")[2].partition("\n\n")[0]
    entries = (" ".join(entry.split()) for entry in _ENTRY.split(section))
    return next((entry for entry in entries if re.search(rf"\b{name}\b", entry)), "")


def _of_group(statements: list[ast.stmt], lines: list[str]) -> str:
    """Return the text of the last constant of a group: constants in consecutive lines, documented together."""
    for statement, after in zip(statements, [*statements[1:], None], strict=True):
        if _number(statement) is None:
            return ""
        if text := _documentation(after) or _comment(statement, lines):
            return text
        if after is None or after.lineno != (statement.end_lineno or statement.lineno) + 1:
            return ""
    return ""


def page(root: Path) -> str:
    """Return the page in Markdown."""
    lines = [
        "# Thresholds",
        "",
        "The numbers by which rules, measures, trials and fixers decide, each with what the code says of it: its",
        "meaning, and the measurement, document or reason that it rests on. A number for which no such reason is given",
        "is chosen, not measured. Made from the code by `make reference`.",
    ]
    found = list(thresholds(root))
    for folder, title in FOLDERS.items():
        lines += ["", f"## {title}", "", "| constant | value | basis |", "|---|---|---|"]
        for one in found:
            if one.path.startswith(f"{folder}/"):
                where = one.path.removeprefix(f"{folder}/")
                lines.append(f"| `{one.name}`<br>{where} | `{one.value}` | {one.basis.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(Path.cwd()), encoding="utf-8")
