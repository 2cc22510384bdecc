"""Code that runs in daemonic processes is found by who is handed its function."""

from __future__ import annotations

import libcst as cst
import pytest

from diagnose.source.dataflow.daemonic_processes import daemon_that_runs
from diagnose.source.tree.edits import parse

PROGRAM = """\
import functools
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

def train(rate):
    return inner(rate)

def inner(rate):
    return DataLoader(rate)

"""


def started_by(code: str, program: str = PROGRAM) -> str | None:
    source = parse(program + code)
    assert source is not None
    loader = next(call for call in source.every(cst.Call) if source.code(call.func) == "DataLoader")
    return daemon_that_runs({"train.py": source}, "train.py", loader)


@pytest.mark.parametrize(
    "code",
    [
        "mp.Pool(2).map(train, rates)",
        "with mp.Pool(2) as pool: found = pool.starmap_async(functools.partial(train, 1), rates)",
        "mp.Process(target=train, args=(0.1,), daemon=True).start()",
        "mp.Process(target=lambda: train(0.1), daemon=True).start()",
    ],
)
def test_a_daemonic_process_that_runs_the_code_is_named(code: str) -> None:
    assert started_by(code) == "train.py:11"


def test_a_function_may_reach_it_through_a_variable() -> None:
    assert started_by("task = functools.partial(train, 0.1)\nmp.Pool(2).map(task, rates)") == "train.py:12"


def test_a_process_may_become_daemonic_before_it_starts() -> None:
    assert started_by("one = mp.Process(target=train)\none.daemon = True") == "train.py:11"


@pytest.mark.parametrize(
    "code",
    [
        "train(0.1)",
        "mp.Process(target=train).start()",
        "mp.Process(target=train, daemon=False).start()",
        "rows = mp.Pool(2).map(len, texts)\ntrain(rows)",
        "ProcessPoolExecutor().map(train, rates)",
        "threading.Thread(target=train, daemon=True).start()",
        "from multiprocessing.dummy import Pool\nPool(2).map(train, rates)",
    ],
)
def test_other_processes_and_threads_may_have_children(code: str) -> None:
    assert started_by(code) is None
