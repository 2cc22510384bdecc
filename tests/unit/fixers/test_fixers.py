"""Every fixer keeps what its file promises: one test for all of them."""

from __future__ import annotations

import pytest

from diagnose.fixer import Edits, Example, Fixer, Gate, Request
from diagnose.plugins import load
from diagnose.source.rewrite.shim import MODULE
from diagnose.source.tree.edits import parse

CATALOGUE = load()
FIXERS = CATALOGUE.fixers
HEADINGS = ("What it changes", "Why it helps", "Fix safety")

EXAMPLES = [
    pytest.param(fixer, example, id=f"{name}-{number}")
    for name, fixer in FIXERS.items()
    for number, example in enumerate(fixer.examples)
]


def edited(fixer: Fixer, request: Request) -> str | None:
    """The text of the one file after the fixer, or None where the fixer leaves it alone."""
    answer = fixer.rewrite(request)
    if not isinstance(answer, Edits):
        return None
    assert set(answer.files) - {f"{MODULE}.py"} == {"train.py"}
    if len(answer.files) > 1:  # what is added beside the script has to be told
        assert "diagnose_fixes.py" in answer.summary
    assert answer.summary
    assert "\n" not in answer.summary
    return answer.files["train.py"]


def test_the_fixers_of_this_project_load() -> None:
    assert not [problem for problem in CATALOGUE.problems if "fixers" in problem.module]
    assert {"loader-workers", "defer-item", "allow-tf32", "fused-optimizer"} <= set(FIXERS)


@pytest.mark.parametrize(("fixer", "example"), EXAMPLES)
def test_a_source_becomes_what_the_example_says_and_is_then_left_alone(fixer: Fixer, example: Example) -> None:
    before, after = example.before, example.after
    for text in filter(None, (before, after)):
        compile(text, fixer.name, "exec", dont_inherit=True)
        assert parse(text) is not None
    assert edited(fixer, example.request(before)) == after
    if after is not None:
        assert edited(fixer, example.request(after)) is None
    line_ends_of_windows = before.replace("\r\n", "\n").replace("\n", "\r\n")
    expected = after and after.replace("\r\n", "\n").replace("\n", "\r\n")
    assert edited(fixer, example.request(line_ends_of_windows)) == expected
    no_last_line_end = before.rstrip("\r\n")
    assert edited(fixer, example.request(no_last_line_end)) == (after and after.rstrip("\r\n"))


@pytest.mark.parametrize("fixer", FIXERS.values(), ids=FIXERS)
def test_the_file_explains_itself(fixer: Fixer) -> None:
    for heading in HEADINGS:
        assert f"\n{heading}\n    " in fixer.doc
    assert fixer.doc.splitlines()[0].endswith(".")
    assert fixer.name == fixer.name.lower().replace("_", "-")
    assert fixer.gate in Gate
    assert (fixer.rounds_to is not None) <= (fixer.gate is not Gate.BITWISE)


@pytest.mark.parametrize("fixer", FIXERS.values(), ids=FIXERS)
def test_the_file_shows_what_it_does_and_what_it_leaves(fixer: Fixer) -> None:
    assert any(example.after is not None for example in fixer.examples)
    assert any(example.after is None for example in fixer.examples)
    assert all(fixer.settings(example.request(example.before)) for example in fixer.examples)


@pytest.mark.parametrize("fixer", FIXERS.values(), ids=FIXERS)
def test_a_source_that_is_not_python_is_left_alone(fixer: Fixer) -> None:
    example = fixer.examples[0]
    request = example.request(example.before)
    broken = Request(
        request.finding, {"train.py": "def (:\n"}, request.sites, request.facts, request.setting, "train.py"
    )
    assert edited(fixer, broken) is None
