"""Errors as they arrive from another process."""

from __future__ import annotations

import pickle

import pytest

from diagnose.errors import DiagnoseError, InputError, NotATrace, ProgramFailed, UsageError


@pytest.mark.parametrize(
    "error",
    [
        UsageError("no such flag"),
        InputError("trace.json", "cut off"),
        NotATrace("trace.json", "nothing in it"),
        ProgramFailed("train.py ended with exit code 3", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_says_the_same_after_its_way_from_another_process(error: DiagnoseError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
