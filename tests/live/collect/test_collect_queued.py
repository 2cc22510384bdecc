"""Readings of a process from outside: the time for which it was ready and had no core, and that it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from diagnose.collect.host import Host


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count it")
def test_it_is_a_share_of_the_time_between_readings() -> None:
    values = Host(os.getpid()).read()
    assert 0 <= values["host.queued"] <= 100


def test_where_the_kernel_does_not_count_it_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("diagnose.collect.run_queue.Path.read_text", refuse)
    assert "host.queued" not in Host(os.getpid()).read()


def test_a_process_that_has_ended_has_no_readings() -> None:
    talk = "print('up', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", talk], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # before it speaks it may not hold a page of its own yet
    host = Host(child.pid)
    assert host.read()["host.rss_bytes"] > 1 << 20
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but still in the process table
    with pytest.raises(psutil.NoSuchProcess):
        host.read()
    child.wait()
    child.stdout.close()
