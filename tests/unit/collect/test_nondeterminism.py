"""Warnings of nondeterministic operators are heard, whatever filters the program sets; others are shown as ever."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from diagnose.collect.inside.process.nondeterminism import NondeterminismWarnings


@pytest.fixture
def heard() -> Iterator[NondeterminismWarnings]:
    asked = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings():
        yield NondeterminismWarnings()
    torch.use_deterministic_algorithms(asked)


def put() -> None:
    torch.zeros(2).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


def test_an_operator_without_a_deterministic_form_is_taken_down_and_not_printed(
    heard: NondeterminismWarnings, capsys: pytest.CaptureFixture[str]
) -> None:
    put()
    torch.zeros(2).add_(1)
    assert heard.operators == {"put_"}
    assert not capsys.readouterr().err


def test_filters_and_printers_of_the_program_hide_it_until_it_is_listened_for_again(
    heard: NondeterminismWarnings,
) -> None:
    shown = []
    warnings.filterwarnings("ignore")
    warnings.showwarning = lambda message, *_rest: shown.append(str(message))
    put()
    assert not heard.operators
    heard.listen()
    put()
    warnings.filterwarnings("always")
    warnings.warn("the program's own", stacklevel=1)
    assert heard.operators == {"put_"}
    assert shown == ["the program's own"]
