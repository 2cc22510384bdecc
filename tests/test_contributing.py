"""The walk-throughs of CONTRIBUTING.md are whole files that work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.fixer import Edits

TEXT = (Path(__file__).resolve().parent.parent / "CONTRIBUTING.md").read_text()
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


def test_a_rule_that_cannot_be_loaded_is_a_visible_problem(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('unfinished')\n")
    (tmp_path / "empty.py").write_text("")
    problems = {problem.module.rpartition(".")[2]: problem.message for problem in plugins.load(tmp_path).problems}
    assert problems == {"broken": "RuntimeError: unfinished", "empty": "defines no RULE"}
