"""What a profiler window leaves behind in the process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

from diagnose.collect.inside.window.profiler_window import let_cupti_leave

NAME = "TEARDOWN_CUPTI"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(NAME, raising=False)
    yield
    os.unsetenv(NAME)


def of_the_process() -> bytes | None:
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    found: bytes | None = library.getenv(NAME.encode())
    return found


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [("13.0", b"1"), ("12.6", b"1"), ("12.10", b"1"), ("12.4", None), ("11.8", None), (None, None)],
)
def test_cupti_leaves_where_it_may_come_back_beside_cuda_graphs(cuda: str | None, expected: bytes | None) -> None:
    let_cupti_leave(cuda)
    assert of_the_process() == expected
    assert NAME not in os.environ, "the program may print its variables"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "0")
    let_cupti_leave("13.0")
    assert of_the_process() == b"0"
