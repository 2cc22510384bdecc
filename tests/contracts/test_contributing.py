"""The walk-throughs of CONTRIBUTING.md are whole files that work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.fixer import Edits

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
RULE_FILE, FIXER_FILE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def catalogue(tmp_path: Path) -> plugins.Catalogue:
    """The built-in rules and fixers, with those of the walk-throughs in folders of a user's."""
    for folder, name, text in (("rules", "memory_sets", RULE_FILE), ("fixers", "zero_grad_none", FIXER_FILE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(text)
    found = plugins.load(tmp_path / "rules", tmp_path / "fixers")
    assert found.problems == ()
    return found


def test_the_rule_is_found_and_fires_on_its_drawing_alone(catalogue: plugins.Catalogue) -> None:
    rule = catalogue.rules["memory-sets"]
    assert "What proves it" in rule.doc
    fired = {finding.rule: finding for finding in diagnose(rule.fires, catalogue).findings}
    assert fired["memory-sets"].recoverable_ns == 4_000_000
    assert "memory-sets" not in {finding.rule for finding in diagnose(rule.silent, catalogue).findings}


def test_the_fixer_is_found_and_does_what_its_examples_say(catalogue: plugins.Catalogue) -> None:
    fixer = catalogue.fixers["zero-grad-none"]
    changes, leaves = fixer.examples
    answer = fixer.rewrite(changes.request(changes.before))
    assert isinstance(answer, Edits)
    assert answer.files == {"train.py": changes.after}
    assert fixer.rewrite(leaves.request(leaves.before)) is None


@pytest.mark.parametrize("page", [TEXT, GLOSSARY], ids=["CONTRIBUTING", "glossary"])
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"`((?:diagnose|rules|fixers|tests)/[\w/]+\.py)`", page)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("start", "most"),
    [("A rule", 8), ("A fixer", 8), ("An A/B trial", 20), ("A reader", 8), ("Nsight Systems' reader", 8)],
)
def test_what_one_reads_to_understand_one_thing_is_short(start: str, most: int) -> None:
    (entry,) = re.findall(rf"^\*\*{start}\*\*.*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    files = re.findall(r"`([\w/]+\.py)`", entry)
    assert 4 <= len(files) == len(set(files)) <= most


def test_a_rule_that_cannot_be_loaded_is_a_visible_problem(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('unfinished')\n")
    (tmp_path / "empty.py").write_text("")
    problems = {problem.module.rpartition(".")[2]: problem.message for problem in plugins.load(tmp_path).problems}
    assert problems == {"broken": "RuntimeError: unfinished", "empty": "defines no RULE"}
