"""The reference of rules and fixers as one page of Markdown, made from their code: `diagnose explain --markdown`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from diagnose.model import Gate
from diagnose.rule import Symptom

if TYPE_CHECKING:
    from diagnose.fixer import Fixer
    from diagnose.plugins import Catalogue

_PROMISES = {
    Gate.BITWISE: "loss, gradients and parameters stay equal bit for bit under deterministic settings",
    Gate.ROUNDING: "the error against a float64 reference stays within three times the original's, or that of the "
    "declared number format",
    Gate.TRAINING: "the training itself changes: tried only under `--allow training`",
}
_LONGEST_EXAMPLE = 24
"""Lines of a diff that is shown."""


def reference_page(catalogue: Catalogue) -> str:
    """Rules by symptom, then every fixer with an example of its edit."""
    lines = [
        "# Rules and fixers",
        "",
        "Made by `diagnose explain --markdown`; `make reference` writes it anew. `diagnose explain NAME` says more.",
        "",
        "## Rules",
    ]
    for symptom in Symptom:
        rules = [rule for _, rule in sorted(catalogue.rules.items()) if rule.symptom is symptom]
        if rules:
            lines += ["", f"### {symptom.value[:1].upper()}{symptom.value[1:]}", ""]
            lines += ["| rule | finds | tried by |", "|---|---|---|"]
        for rule in rules:
            tried = ", ".join(f"[`{name}`](#{name})" for name in rule.fixers if catalogue.offers(name))
            lines.append(f"| `{rule.name}` | {_cell(rule.doc)} | {tried or 'by hand'} |")
    lines += ["", "## Fixers", ""]
    lines += [f"- *{gate.value}*: {promise}." for gate, promise in _PROMISES.items()]
    for name, fixer in sorted(catalogue.fixers.items()):
        lines += ["", f"### {name}", "", f"{_cell(fixer.doc)} Gate: {fixer.gate.value}.", *_example(fixer)]
    return "\n".join(lines) + "\n"


def _cell(doc: str) -> str:
    return (doc.splitlines()[0] if doc else "").replace("|", "\\|")


def _example(fixer: Fixer) -> list[str]:
    """The shortest edit among the fixer's examples, as a diff; nothing where all are long."""
    diffs = [
        [
            line
            for line in difflib.unified_diff(one.before.splitlines(), one.after.splitlines(), lineterm="", n=2)
            if not line.startswith(("---", "+++", "@@"))
        ]
        for one in fixer.examples
        if isinstance(one.before, str) and isinstance(one.after, str)
    ]
    short = min((diff for diff in diffs if diff), key=len, default=[])
    return ["", "```diff", *short, "```"] if 0 < len(short) <= _LONGEST_EXAMPLE else []
