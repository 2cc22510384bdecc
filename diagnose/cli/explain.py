"""`diagnose explain`: what a rule finds or a fixer changes, why it costs, and how it is proven."""

from __future__ import annotations

import argparse
import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.streams import result, talk
from diagnose.errors import UsageError
from diagnose.model import Gate

_MOST_NAMED = 6

if TYPE_CHECKING:
    from diagnose.plugins import Catalogue
    from diagnose.rule import Rule


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "explain",
        help="what a rule finds, or what a fixer changes",
        description="Says what a rule finds, what proves it and what fixes it, or what a fixer changes and when it is "
        "safe. Without a name, lists all rules and fixers.",
    )
    parser.add_argument("name", metavar="NAME", nargs="*", help="a rule or a fixer; without one, all are listed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", action="store_true", help="print the reference of all as a page of Markdown")
    parser.add_argument("--rules", type=Path, metavar="DIR", help="a folder of further rules, one a file")
    parser.add_argument("--fixers", type=Path, metavar="DIR", help="a folder of further fixers, one a file")


def run(args: argparse.Namespace) -> int:
    """Print the documentation of one rule or fixer, or the list of all."""
    from diagnose.plugins import load

    catalogue = load(args.rules, args.fixers)
    for problem in catalogue.problems:
        talk(f"diagnose: {problem.module} was left out: {problem.message}")
    if args.markdown:
        from diagnose.cli.reference_page import reference_page

        result(reference_page(catalogue))
        return 0
    docs = {name: ("rule", rule.doc) for name, rule in catalogue.rules.items()}
    docs |= {name: ("fixer", fixer.doc) for name, fixer in catalogue.fixers.items()}
    asked = " ".join(args.name)
    if not asked:
        result(_listing(docs, catalogue, args.json))
        return 0
    name = _written_as_a_name(asked)
    if name not in docs:
        raise UsageError(f"there is no rule or fixer named {asked}{_hint(asked, docs)}")
    kind, doc = docs[name]
    if args.json:
        result(json.dumps({"name": name, "kind": kind, "text": doc}, indent=2, ensure_ascii=False))
    else:
        more = _tried(catalogue.rules[name], catalogue) if kind == "rule" else _offered(name, catalogue)
        result(f"{name} ({kind})\n\n{doc}{more}")
    return 0


def _written_as_a_name(words: str) -> str:
    """`host-sync` for `Host sync` and `host_sync`."""
    return "-".join(words.lower().replace("_", " ").split())


def _hint(words: str, docs: dict[str, tuple[str, str]]) -> str:
    """The names that may have been meant: those whose text has all the words, else nearly the same one."""
    wanted = words.lower().split()
    about = [name for name, (_, doc) in sorted(docs.items()) if all(word in f"{name} {doc}".lower() for word in wanted)]
    if wanted and about:
        about.sort(key=lambda name: not all(word in name for word in wanted))
        more = f" and {len(about) - _MOST_NAMED} more" if len(about) > _MOST_NAMED else ""
        return f"; about it are {', '.join(about[:_MOST_NAMED])}{more}"
    near = difflib.get_close_matches(_written_as_a_name(words), docs, 1)
    return f"; did you mean {near[0]}?" if near else "; `diagnose explain` lists all"


def _offered(fixer: str, catalogue: Catalogue) -> str:
    """Return the findings that call for a fixer, and the command that tries it alone."""
    rules = [name for name, rule in catalogue.rules.items() if fixer in rule.fixers]
    allow = " --allow training" if catalogue.fixers[fixer].gate is Gate.TRAINING else ""
    return (
        f"\n\nCalled for by\n    {', '.join(rules) or 'No rule that is here.'}"
        f"\n\nTry it alone\n    diagnose fix --only {fixer}{allow} SCRIPT"
    )


def _tried(rule: Rule, catalogue: Catalogue) -> str:
    """Return the fixers that a rule's text names; a rule may name some that nobody has written yet."""
    there = [name for name in rule.fixers if catalogue.offers(name)]
    return f"\n\nTried by `diagnose fix`\n    {', '.join(there) or 'Nothing yet: this is to be fixed by hand.'}"


def _listing(docs: dict[str, tuple[str, str]], catalogue: Catalogue, as_json: bool) -> str:
    if as_json:
        listed = [{"name": name, "kind": kind, "summary": doc.partition("\n")[0]} for name, (kind, doc) in docs.items()]
        return json.dumps(listed, indent=2, ensure_ascii=False)
    widest = max(map(len, docs), default=0)
    lines: list[str] = []
    for symptom, names in _by_symptom(catalogue).items():
        lines += [*([""] if lines else []), f"{symptom[:1].upper()}{symptom[1:]}"]
        for name in names:
            kind, doc = docs[name]
            mark = "  " if kind == "rule" else "    → "
            lines.append(f"{mark + name:<{widest + 6}}  {doc.splitlines()[0] if doc else ''}")
    return "\n".join(lines)


def _by_symptom(catalogue: Catalogue) -> dict[str, list[str]]:
    """Rules by what a user sees, each followed by its fixers where they are named first; the others come last."""
    from diagnose.rule import Symptom

    listed: dict[str, list[str]] = {}
    seen: set[str] = set()
    for symptom in Symptom:
        names = listed.setdefault(symptom.value, [])
        for name, rule in sorted(catalogue.rules.items()):
            if rule.symptom is symptom:
                tried = [fixer for fixer in rule.fixers if catalogue.offers(fixer) and fixer not in seen]
                names += [name, *tried]
                seen.update(tried)
    listed["fixes of several symptoms"] = sorted(catalogue.fixers.keys() - seen)
    return {symptom: names for symptom, names in listed.items() if names}
