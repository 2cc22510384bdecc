"""What is found while the program still trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diagnose import observe
from diagnose.errors import InputError
from diagnose.plugins import Catalogue
from diagnose.program.settings import Settings
from diagnose.session import AnyEvent, DiagnosisMade, Session
from diagnose.trace import Trace


def early(
    folder: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Sequence[Path]], list[Trace]]
) -> list[AnyEvent]:
    """What is recorded of a run whose recording is read by `read`."""
    recorded: list[AnyEvent] = []
    session = Session.create("train", recorded.append, folder)
    monkeypatch.setattr(observe, "open_traces", read)
    observe._diagnose_early(session, Catalogue({}, {}), Settings(), on_screen=False)
    session.close()
    return recorded


def test_what_was_traced_is_diagnosed_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (event,) = early(tmp_path, monkeypatch, lambda _paths: [Trace(source="rank0")])
    assert isinstance(event, DiagnosisMade)


@pytest.mark.parametrize("wrong", [InputError(Path("rank0"), "is damaged"), MemoryError(), IndexError("ours")])
def test_a_diagnosis_that_fails_leaves_the_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    def fails(_paths: Sequence[Path]) -> list[Trace]:
        raise wrong

    assert early(tmp_path, monkeypatch, fails) == []
