"""Every gap has a cause: it is cut at the launch of the work that ends it."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.measure import Measures
from diagnose.trace.drawn import drawn

MS = 1_000_000


def idle(text: str, **known: Any) -> dict[str, int]:
    """Milliseconds (or columns) of idle time by cause, those with any."""
    unit = known.get("unit_ns", MS)
    accounting = Measures(drawn(text, **known)).accounting
    return {cause: length // unit for cause, length in accounting.idle.items() if length}


def test_before_the_launch_the_host_during_it_the_launch_after_it_something_else() -> None:
    assert idle("""
        host: ll     ppooll
        gpu :   kk           kk
    """) == {"launch": 2 + 2, "dispatch": 2, "python": 5, "dependency": 2}


@pytest.mark.parametrize(
    ("lane", "cause"),
    [
        ("load:     wwwww", "input"),
        ("gc  :     ggggg", "gc"),
        ("comp:     xxxxx", "compile"),
        ("ckpt:     fffff", "io"),
        ("host: l   sssss l", "sync"),
        ("host: l   mmmmm l", "allocator"),
        ("host: l   ooooo l", "dispatch"),
    ],
)
def test_what_the_host_did_while_it_was_late(lane: str, cause: str) -> None:
    host = "" if lane.startswith("host") else "host: l         l\n"
    gaps = idle(f"{host}{lane}\n" + "gpu :  kkk       kk")
    assert gaps.pop(cause) == 5
    assert gaps == {"launch": 1 + 1, "python": 1}


def test_waiting_for_data_under_a_busy_device_costs_nothing() -> None:
    assert idle("""
        load:   wwwwwwww
        host: ll
        gpu :   kkkkkkkkkk
    """) == {"launch": 2}


def test_a_gap_after_the_launch_returned_waits_for_something_else() -> None:
    gaps = idle(
        """
        host: lol
        gpu :   k   K
    """,
        kernels={"K": "second"},
    )
    assert gaps == {"launch": 1, "dependency": 1 + 3}


@pytest.mark.parametrize(
    ("work", "gaps"),
    [
        # 20 µs after the call, as launches on an idle device of AMD's take.
        ("  k      k", {"launch": 2 + 3}),
        # 30 µs are longer than any launch takes.
        ("  k       k", {"launch": 2 + 1, "dependency": 3}),
    ],
)
def test_an_idle_device_takes_some_microseconds_to_begin_what_is_launched(work: str, gaps: dict[str, int]) -> None:
    assert idle(f"host: l   ool\ngpu : {work}", unit_ns=10_000) == {**gaps, "python": 1, "dispatch": 2}


def test_work_that_was_launched_under_a_busy_device_waits_for_its_turn() -> None:
    assert idle("host: lol\ngpu :   kkk k", unit_ns=10_000) == {"launch": 2, "dependency": 1}


def test_the_refill_after_a_wait_belongs_to_the_wait() -> None:
    gaps = idle(
        """
        host: ol   sssso  ol
        gpu :   kkkkkk     kkk
    """,
        unit_ns=10_000,
    )
    assert gaps == {"dispatch": 1, "launch": 1, "sync": 1 + 4}


def test_long_python_after_a_wait_stays_python() -> None:
    gaps = idle("""
        host: ol   ssss     ol
        gpu :   kkkkkk        kkk
    """)
    assert gaps == {"dispatch": 1 + 1, "launch": 1 + 1, "sync": 1, "python": 5}


def test_a_wait_that_ends_before_the_device_runs_dry_explains_nothing() -> None:
    gaps = idle(
        """
        host: ol sss        ol
        gpu :   kkkkkk        kkk
    """,
        unit_ns=10_000,
    )
    assert gaps == {"dispatch": 2, "launch": 2, "python": 6}


def test_the_backward_thread_explains_its_own_launches() -> None:
    assert idle("""
        host  : ol
        host 1:      oool
        gpu   :   kk     kk
    """) == {"dispatch": 1 + 3, "launch": 2, "python": 1}


def test_work_of_unknown_origin_leaves_its_gap_unknown() -> None:
    assert idle("gpu : uu   uu") == {"unknown": 3}


def test_the_host_may_explain_a_gap_before_work_of_unknown_origin() -> None:
    assert idle("""
        load:   ww
        host: ol
        gpu :   k   uu
    """) == {"dispatch": 1, "launch": 1, "input": 1, "unknown": 2}


def test_samples_refine_what_the_records_leave_open() -> None:
    loader = [("torch/utils/data/dataloader.py", 700, "__next__"), ("train.py", 9, "main")]
    gaps = idle(
        """
        host: l           l
        gpu :  kk          k
        line:    iiiippppp
    """,
        stacks={"i": loader, "p": [("train.py", 12, "main")]},
    )
    assert gaps == {"launch": 2, "input": 4, "python": 5}


def test_samples_do_not_stretch_what_is_recorded_exactly() -> None:
    loader = [("torch/utils/data/dataloader.py", 700, "__next__"), ("train.py", 9, "main")]
    gaps = idle(
        """
        load:    wwww
        host: l           l
        gpu :  kk          k
        line:      i
    """,
        stacks={"i": loader},
    )
    assert gaps == {"launch": 2, "input": 4, "python": 5}


def test_a_pageable_copy_to_the_host_is_a_wait() -> None:
    trace = drawn("""
        host: l  ccccc   l
        gpu :  kkkkkkd    kk
    """)
    measures = Measures(trace)
    assert measures.waits.total_ns == 5 * MS
    assert len(measures.wait_calls) == 1


def test_samples_of_a_run_that_was_not_traced_leave_the_time_unknown() -> None:
    trace = drawn(
        """
        line: pppppppppp
        step:           |
        """,
        repeat=4,
        stacks={"p": [("train.py", 52, "forward")]},
    )
    measures = Measures(trace)
    assert {cause: times.total_ns for cause, times in measures.idle.items() if times} == {
        "unknown": measures.step_count * 10 * MS
    }
