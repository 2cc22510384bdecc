"""Who has the cores that a training thread waits for: the words name the run's own processes or strangers."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import Facts, Site
from diagnose.rule import CannotTell, Claim, Confidence, drawn

RULE = plugins.load().rules["cpu-contention"]


def told(*, sites: tuple[Site, ...] = (), **percent: float) -> Claim:
    """The claim on a CPU-only run with these readings of the host, on two cores."""
    readings = {f"host.{name}": [value] * 8 for name, value in ({"queued": 80.0} | percent).items()}
    trace = drawn(
        """
        host: oooooooo    oooooo
        opt :                  O
        """,
        repeat=4,
        counted=readings,
        facts=Facts(cpu_count=2),
        sites=sites,
    )
    (claim,) = (answer for answer in RULE.check(Measures(trace)) if isinstance(answer, Claim))
    return claim


def test_what_it_costs_is_an_estimate_and_no_limit() -> None:
    """Threads that share cores lengthen each other besides, and one with a core may wait for something else."""
    assert told().confidence is Confidence.HINT
    assert told(queued=20.0).recoverable_ns == pytest.approx(told(queued=80.0).recoverable_ns / 4)


def test_what_else_takes_time_keeps_its_part_wherever_in_the_step_it_is() -> None:
    """Half of each step waits for a batch, at its start or at its end: half a core leaves half of that."""
    for first, last in (("wwww", "oooo"), ("oooo", "wwww")):
        trace = drawn(
            f"""
            host: {first.replace("w", " ")}{last.replace("w", " ")} o
            load: {first.replace("o", " ")}{last.replace("o", " ")}
            opt :          O
            """,
            repeat=4,
            ops={"w": "DataLoader.__next__"},
            counted={"host.queued": [50.0] * 8},
            facts=Facts(cpu_count=2),
        )
        found = {one.rule: one.estimate_ns for one in diagnose([trace], plugins.load()).findings}
        assert found["input-bound"] == pytest.approx(2_000_000, rel=0.1)


def test_strangers_who_use_more_than_the_run_are_named() -> None:
    claim = told(cpu=25, others_cpu=175, workers=0)
    assert claim.summary.endswith("programs that are no part of the run use 1.8 of its 2 cores")
    assert claim.confirm == "a run with nothing else on these cores"
    assert claim.fixers == ()  # no change of this program frees a core of theirs


def test_the_run_s_own_processes_are_named_where_they_use_more() -> None:
    claim = told(cpu=180, others_cpu=10, workers=6)
    assert claim.summary.endswith("6 child processes share 2 cores with it")
    assert claim.confirm == "a trial with fewer workers or threads"


def test_nobody_is_accused_where_nothing_is_known() -> None:
    assert told().summary.endswith("of its time")


def test_fewer_workers_are_offered_only_to_a_run_that_has_some() -> None:
    loader = Site("DataLoader", "train.py", 3, arguments={"num_workers": 6})
    model = Site("optimizer", "train.py", 5)
    both, threads = ("loader-workers", "set-num-threads"), ("set-num-threads",)
    assert told(workers=6).fixers == told(sites=(loader, model), workers=6).fixers == both
    assert told(workers=0).fixers == told().fixers == threads
    assert told(sites=(model,), workers=6).fixers == threads  # what compiles, for example


def test_where_nobody_looked_it_is_told_in_what_the_thread_stands_still_longest() -> None:
    loading = drawn(
        """
        host: xllllllllol       ol
        gpu :          kk kkkkkk  kkkkkk
        """,
        ops={"x": "aten::native_batch_norm"},
    )
    (answer,) = RULE.check(Measures(loading))
    assert isinstance(answer, CannotTell)
    assert answer.needs.endswith(
        "for 8.00 ms at once in cudaLaunchKernel in aten::native_batch_norm, as where a kernel's code is loaded first"
    )
