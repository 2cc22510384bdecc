"""Refusals before a program is started: no PyTorch beside it, or a job on several hosts where trials need one."""

from __future__ import annotations

import importlib.util
import os
import sys

from diagnose.cli.programs.argv_split import Split
from diagnose.errors import EnvironmentLacks, UsageError
from diagnose.program.rendezvous import names_several_hosts


def require_torch() -> None:
    """Raise EnvironmentLacks where the program could not import torch."""
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacks(
            f"PyTorch is not installed beside {sys.executable}; install diagnose into the environment in which the "
            "program runs, or PyTorch into this one (analyze, view and report work without it)"
        )


def on_one_host(words: Split) -> None:
    """Raise UsageError for a job on several hosts."""
    if words.launcher and names_several_hosts(words.program, os.environ):
        raise UsageError(
            "the arms of a trial live on one host, and this launcher waits for others: try fixes on the ranks of one "
            "(--nnodes 1); to see all hosts, start `diagnose run` on each, then `diagnose gather`"
        )
