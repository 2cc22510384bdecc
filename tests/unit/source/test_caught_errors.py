"""Errors of samples that the program catches: from a worker they come as others."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

FIT = """
def fit(loader):
    for batch in loader:
        pass
"""
_RETRY = """
import contextlib, functools
def retry(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        try:  # no loop
            return fn(*args)
        except {}:
            return None
    return wrapper
def attempt(fn, *args):
    try:  # nor here
        return fn(*args)
    except {}:
        return None
"""


@pytest.mark.parametrize(
    ("caught", "edited"), [("IndexError", False), ("LookupError", False), ("KeyboardInterrupt", True)]
)
@pytest.mark.parametrize(
    "end",
    [
        "with contextlib.suppress({}):  # !\n    fit(loader)",
        "try:\n    rows = list(loader)\nexcept {}:  # !\n    pass",
        "try:\n    trainer.fit(model, datamodule)\nexcept {}:  # !\n    pass",
        "attempt(fit, loader)  # !",
        "@retry\ndef run(loader):  # !\n    fit(loader)\nrun(loader)",
    ],
)
def test_errors_are_caught_by_more_than_a_try_around_a_loop(end: str, caught: str, edited: bool) -> None:
    top = FIT + _RETRY.format(caught, caught)
    text = program("if i > 99:\n    raise IndexError(i)\nreturn i, i", end=end.format(caught), top=top)
    if edited:
        assert isinstance(asked("loader-workers", text), Edits), asked("loader-workers", text)
    else:
        refused("loader-workers", text, "# !")
