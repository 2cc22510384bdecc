"""Errors of samples that the program catches: from a worker they come as others."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

FIT = """
def fit(loader):
    for batch in loader:
        pass
def describe(loader):
    return size(loader.batch_size)
def size(count):
    return str(count)
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


@pytest.mark.parametrize(
    ("guarded", "caught", "edited"),
    [
        ("data = Images(paths)", "RuntimeError", True),
        ("fit(loader)", "torch.cuda.OutOfMemoryError", True),
        ("fit(loader)", "RuntimeError", False),
        ("described = [size(x) for x in loader]", "RuntimeError", False),
        ("print(sum(map(size, loader)))", "RuntimeError", False),
        ("COMMANDS['fit'](loader)", "RuntimeError", False),
        ("start(fit)", "RuntimeError", False),
        ("describe(loader)", "RuntimeError", True),
        ("again = DataLoader(data, collate_fn=size)", "RuntimeError", True),
    ],
)
def test_only_errors_that_are_caught_around_the_loop_come_as_others(guarded: str, caught: str, edited: bool) -> None:
    end = f"try:\n    {guarded}\nexcept {caught}:  # !\n    pass"
    text = program("if i > 99:\n    raise IndexError(i)\nreturn i, i", end=end, top=FIT)
    if edited:
        assert isinstance(asked("loader-workers", text), Edits)
    else:
        refused("loader-workers", text, "# !")


LAYERS = "def f0(x):\n    return x\ndef g0(x):\n    return x\n" + "".join(
    f"def {name}{at}(x):\n    return f{at - 1}(g{at - 1}(x))\n" for at in range(1, 40) for name in "fg"
)


def test_each_function_that_a_guarded_call_may_reach_is_looked_at_once() -> None:
    text = program(
        "if i > 99:\n    raise IndexError(i)\nreturn i, i", top=LAYERS, end="try:\n    f39(1)\nexcept E:\n    pass"
    )
    assert isinstance(asked("loader-workers", text), Edits)


MADE = """
def checked(paths):
    for path in paths:
        open(path).close()
    return Images(paths)
def make(paths):
    try:
        return checked(paths)
    except IndexError:
        return Images(paths[:9])
"""


def test_errors_that_are_caught_while_the_dataset_is_made_come_as_they_did() -> None:
    text = program("if i > 99:\n    raise IndexError(i)\nreturn i, i", dataset="make(paths)", top=MADE)
    assert isinstance(asked("loader-workers", text), Edits)
