"""The time for which a process's first thread was ready and had no core."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diagnose.collect.host import Host


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count it")
def test_it_is_a_share_of_the_time_between_readings() -> None:
    values = Host(os.getpid()).read()
    assert 0 <= values["host.queued"] <= 100


def test_where_the_kernel_does_not_count_it_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("diagnose.collect.host.Path.read_text", refuse)
    assert "host.queued" not in Host(os.getpid()).read()
