"""What the tests of fixers share: a fixer turned loose on the text of a program, and the program that a text is."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from diagnose import plugins
from diagnose.fixer import Edits, Fixer, Scalar, example_request

FIXERS: Mapping[str, Fixer] = plugins.load().fixers


def rewritten(
    name: str, text: str, setting: Mapping[str, Scalar] | None = None, *, rule: str = "as-found"
) -> str | None:
    """The new text, which is Python; None where the program is left alone."""
    answer = FIXERS[name].rewrite(example_request(rule, text, setting=setting))
    if not isinstance(answer, Edits):
        return None
    compile(answer.files["train.py"], "train.py", "exec")
    return answer.files["train.py"]


def fixed(name: str, text: str, *, rule: str = "as-found") -> str:
    """The same where a program must not be left alone."""
    answer = FIXERS[name].rewrite(example_request(rule, text))
    assert isinstance(answer, Edits), answer
    return answer.files["train.py"]


def imported(text: str) -> ModuleType:
    """The module that a program is, once it has run."""
    module = ModuleType("train")
    exec(compile(text, "train.py", "exec"), module.__dict__)
    return module
