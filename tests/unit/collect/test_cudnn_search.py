"""cuDNN's search for the fastest convolutions, left out of processes that are not timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnose.collect.inside.process.cudnn_search import leave_out


def installed(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch's own question whether to search, asked where convolutions are computed, under a recipe."""
    asked = torch._C._get_cudnn_benchmark
    for owner, name in (
        (torch._C, "_get_cudnn_benchmark"),
        (torch._C, "_set_cudnn_benchmark"),
        (type(torch.backends.cudnn), "benchmark"),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])  # put back after the test
    leave_out(recipe, SimpleNamespace(on_torch=lambda callback: callback(torch)))  # type: ignore[arg-type]
    return asked


def program_reads() -> bool:
    return torch.backends.cudnn.benchmark


def test_a_program_that_searches_reads_its_setting_but_does_not_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = installed({"searches": True}, monkeypatch)
    torch.backends.cudnn.benchmark = True
    assert program_reads() and not searches()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        assert not program_reads()
    assert program_reads() and not searches()


def test_a_fix_that_makes_a_program_search_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program as found did not: then its algorithms are what the fix changes."""
    searches = installed({"searches": False}, monkeypatch)
    torch.backends.cudnn.benchmark = True
    try:
        assert searches()
    finally:
        torch.backends.cudnn.benchmark = False
