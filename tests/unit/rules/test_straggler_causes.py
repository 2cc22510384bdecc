"""The late rank is named with what makes it late: its input, its host, its device's clock, the shape of its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diagnose import plugins
from diagnose.analysis.rank_digest import digest_of
from diagnose.engine import diagnose, diagnose_digests
from diagnose.model import CannotTell, Confidence, Diagnosis, Finding, Severity
from diagnose.trace import Collective, Trace
from diagnose.trace.drawn import drawn

MS = 1_000_000
CATALOGUE = plugins.load_rules()
KERNELS = {"b": "nvjet_tst_128x256", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
SUMS = {"g": Collective("all_reduce", 16 << 20, 2, "pg", members=(0, 1))}

ON_TIME = """
    host  : l.l.l.l.ssssssss
    gpu   : kkbb          xx
    gpu 20:     gggggggggg
    bwd   :   BB
    opt   :                O
"""


def rank(number: int, picture: str, **known: Any) -> Trace:
    return drawn(picture, repeat=6, kernels=KERNELS, comms=SUMS, rank=number, world_size=2, **known)


def late_rank(picture: str, early: str = ON_TIME, **known: Any) -> Finding:
    """The finding that names rank 1."""
    diagnosis = diagnose([rank(0, early), rank(1, picture, **known)], CATALOGUE)
    (found,) = [one for one in diagnosis.findings if one.rule == "straggler"]
    assert found.rank == 1
    return found


def test_its_input() -> None:
    found = late_rank(
        """
        load  : wwwwwwww
        host  : ........l.l.l.l.
        gpu   :         kkbb  xx
        gpu 20:             gg
        bwd   :           BB
        opt   :                O
        """
    )
    assert "it waits for its input" in found.summary and "(input-bound on rank 1)" in found.summary
    assert found.recoverable_ns == pytest.approx(8 * MS, rel=0.1)


def test_its_host() -> None:
    found = late_rank(
        """
        host  : ppppppppl.l.l.l.
        gpu   :         kkbb  xx
        gpu 20:             gg
        bwd   :           BB
        opt   :                O
        """
    )
    assert "it runs Python" in found.summary
    assert found.recoverable_ns == pytest.approx(8 * MS, rel=0.1)


SLOW = """
    host  : l.l.l.l.ssssssss
    gpu   : kkkkkkbbbbbb  xx
    gpu 20:             gg
    bwd   :       BBBBBB
    opt   :                O
"""


def test_its_clock() -> None:
    readings = {"sm_clock_mhz": 990.0, "max_sm_clock_mhz": 1980.0, "throttle_reasons": 32.0, "utilization": 99.0}
    counted = {f"gpu.{name}": [value] * 6 for name, value in readings.items()}
    found = late_rank(SLOW, counted=counted)
    assert "it computes longer" in found.summary
    assert "throttled on rank 1" in found.summary
    assert found.recoverable_ns > 7 * MS  # it does the same work: the whole gap comes back


def test_the_shape_of_its_work() -> None:
    """Three times the arithmetic: dealt out evenly, half of the gap comes back."""

    def shaped(rows: int) -> dict[str, Any]:
        sizes = f"[[{rows},8192],[8192,8192]]"
        return {"ops": {"o": "aten::mm"}, "shapes": {"o": (sizes, '["c10::BFloat16","c10::BFloat16"]')}}

    early = """
        host  : olololol.sssssss
        gpu   :  kkbb         xx
        gpu 20:      ggggggggg
        bwd   :   BB
        opt   :                O
    """
    late = """
        host  : olololol.sssssss
        gpu   :  kkkkkkbbbbbb xx
        gpu 20:              g
        bwd   :   BB
        opt   :                O
    """
    ranks = [rank(0, early, **shaped(2048)), rank(1, late, **shaped(6144))]
    (found,) = [one for one in diagnose(ranks, CATALOGUE).findings if one.rule == "straggler"]
    assert found.rank == 1 and "dealt out evenly" in found.summary
    assert "per step more than the others, with 3 times their arithmetic" in found.summary
    assert found.recoverable_ns == pytest.approx(4 * MS, rel=0.15)


def test_of_equal_ranks_nobody_is_late() -> None:
    diagnosis = diagnose([rank(number, ON_TIME) for number in range(2)], CATALOGUE)
    assert not [one for one in diagnosis.findings if one.rule == "straggler"]


ISSUES_SLOWLY = """
    host  : ooooooool.l.l.l.
    gpu   :         kkbb  xx
    gpu 20:             gg
    bwd   :           BB
    opt   :                O
"""


def issuing_slowly(
    theirs_ms: Sequence[float] | None,
    its_ms: Sequence[float] = (16.0,) * 6,
    recording_ms: float = 0.0,
    queue_unknown: bool = False,
) -> tuple[list[Finding], list[CannotTell]]:
    """What is said of a rank for which the other waits 8 ms of each 16, of hosts that take so long for each step."""
    digests = [digest_of(rank(number, ISSUES_SLOWLY if number else ON_TIME), CATALOGUE) for number in range(2)]
    known = []
    for digest, hosts_ms in zip(digests, (theirs_ms, its_ms), strict=True):
        hosts_ns = None if hosts_ms is None else np.asarray(np.asarray(hosts_ms) * MS, np.int64)
        record = replace(
            digest.record,
            hosts_ns=hosts_ns,
            hosts_most_ns=hosts_ns,
            recording_ns=round(recording_ms * MS),
            queue_unknown=queue_unknown,
        )
        known.append(replace(digest, record=record))
    diagnosis = diagnose_digests(known, CATALOGUE)
    found = [one for one in diagnosis.findings if one.rule == "straggler"]
    return found, [one for one in diagnosis.cannot_tell if one.rule == "straggler"]


@pytest.mark.parametrize(("theirs_ms", "gain_ms"), [(2, 8), (12, 4), (16, None), (None, 8)])
def test_where_others_issue_as_slowly_one_that_is_ahead_makes_nobody_late(
    theirs_ms: int | None, gain_ms: int | None
) -> None:
    found, unknown = issuing_slowly(None if theirs_ms is None else [theirs_ms] * 6)
    assert [one.recoverable_ns for one in found] == ([] if gain_ms is None else [pytest.approx(gain_ms * MS, rel=0.1)])
    assert not unknown


def test_a_host_that_takes_longer_in_each_step_is_named() -> None:
    (found,), unknown = issuing_slowly([8.0, 9.0, 10.0, 9.0, 8.0, 10.0], [15.0, 16.0, 14.0, 16.0, 15.0, 16.0])
    assert found.confidence is Confidence.MEASURED and found.severity is Severity.HIGH
    assert found.estimate_ns == pytest.approx(7 * MS, rel=0.05)
    assert not unknown


@pytest.mark.parametrize(
    ("theirs_ms", "its_ms"),
    [
        ([8.5, 30.3, 9.6, 8.0], [7.7, 27.3, 12.1, 11.6]),  # steps that vary, and one that is odd in both
        ([8.0, 8.0, 8.0, 8.0], [16.0, 16.0, 16.0, 8.0]),  # one that is as fast
        ([8.0, 8.0], [16.0, 16.0]),  # too few
    ],
)
def test_being_last_in_each_step_is_no_proof_where_the_steps_of_hosts_vary_as_much(
    theirs_ms: list[float], its_ms: list[float]
) -> None:
    """A rank that issues its work after the others goes on doing so, however fast it is."""
    found, unknown = issuing_slowly(theirs_ms, its_ms)
    assert not found
    assert ["whether its host takes longer than theirs is not beyond chance" in one.needs for one in unknown] == [True]


def test_one_odd_step_does_not_decide() -> None:
    found, unknown = issuing_slowly([16.0] * 6, [16.0, 16.0, 90.0, 16.0, 16.0, 16.0])
    assert not found and not unknown


def test_records_must_cost_less_than_what_comes_back_not_than_what_is_waited_for() -> None:
    """The other waits 8 ms, of which 4 come back; records cost 3 ms, and perhaps 1.6 times as much."""
    found, unknown = issuing_slowly([12.0] * 6, recording_ms=3)
    assert not found
    assert ["without Python stacks and shapes" in one.needs for one in unknown] == [True]


def test_a_slow_host_whose_wait_for_cores_nobody_recorded_is_a_bound() -> None:
    (found,), _ = issuing_slowly([8.0] * 6, queue_unknown=True)
    assert found.confidence is Confidence.BOUND and found.severity is Severity.NOTE
    assert "how long it waited for a core meanwhile is not recorded" in found.summary


@pytest.mark.parametrize("waits", ["oooooooo", "........", "fmfmfmfm", "cmcmcmcm"])
def test_others_that_wait_for_it_in_what_may_be_work_are_not_as_slow(waits: str) -> None:
    """A collective of the processor, polling, memory that is freed, copies from pageable memory."""
    early = ON_TIME.replace("ssssssss", waits)
    if "c" in waits:
        early += "    gpu 7 :          h h h h"
    assert late_rank(ISSUES_SLOWLY, early).estimate_ns == pytest.approx(8 * MS, rel=0.1)


def test_others_that_issue_all_along_are_as_slow() -> None:
    early = ON_TIME.replace("l.l.l.l.ssssssss", "lalalalaoaoaoaoa")
    ranks = [rank(0, early, ops={"a": "aten::add"}), rank(1, ISSUES_SLOWLY)]
    assert not [one for one in diagnose(ranks, CATALOGUE).findings if one.rule == "straggler"]


# What the profiler may have done


def late_on_host(recording_ns: int, ranks: int = 2) -> Diagnosis:
    """One rank's Python takes 8 ms of each step of 16, and writing records costs so much."""
    slow = ISSUES_SLOWLY.replace("oooooooo", "pppppppp")
    traces = [rank(number, slow if number == 1 else ON_TIME) for number in range(ranks)]
    digests = [digest_of(trace, CATALOGUE) for trace in traces]
    return diagnose_digests(
        [replace(one, record=replace(one.record, recording_ns=recording_ns)) for one in digests], CATALOGUE
    )


@pytest.mark.parametrize(
    ("recording_ms", "ranks", "named"),
    [(0, 2, True), (4, 2, True), (6, 2, False), (6, 4, True), (12, 4, True), (17, 4, False)],
)
def test_a_host_that_records_may_be_late_by_that_alone(recording_ms: int, ranks: int, named: bool) -> None:
    """Of four ranks, three show what is usual; of two, neither does."""
    diagnosis = late_on_host(recording_ms * MS, ranks)
    assert any(one.rule == "straggler" for one in diagnosis.findings) is named
    doubts = [one for one in diagnosis.cannot_tell if isinstance(one, CannotTell) and one.rule == "straggler"]
    assert bool(doubts) is not named
    assert all("rank 1 without Python stacks and shapes" in one.needs for one in doubts)


@pytest.mark.parametrize(("recording_ms", "ranks", "sure"), [(0, 4, True), (4, 2, False), (1, 4, True), (12, 4, False)])
def test_what_the_profiler_may_have_cost_makes_no_rank_gravely_late(recording_ms: int, ranks: int, sure: bool) -> None:
    (straggler,) = [one for one in late_on_host(recording_ms * MS, ranks).findings if one.rule == "straggler"]
    assert (straggler.confidence is Confidence.MEASURED) is sure
    assert (straggler.severity is Severity.HIGH) is sure
    assert ("the profiler's records cost its host" in straggler.summary) is not sure


# What a busy processor may have done


def late_and_computing(cores_unknown: bool) -> Diagnosis:
    """One rank computes 12 ms of each step of 16, the other 8."""
    longer = """
        host  : l.l.l.l.ssssssss
        gpu   : kkbbbbbbbbbb  xx
        gpu 20:             gg
        bwd   :   BB
        opt   :                O
    """
    digests = [digest_of(rank(number, picture), CATALOGUE) for number, picture in enumerate((ON_TIME, longer))]
    return diagnose_digests(
        [replace(one, record=replace(one.record, cores_unknown=cores_unknown)) for one in digests], CATALOGUE
    )


@pytest.mark.parametrize("cores_unknown", [False, True])
def test_a_rank_that_computes_longer_on_a_processor_may_have_had_no_core(cores_unknown: bool) -> None:
    diagnosis = late_and_computing(cores_unknown)
    assert any(one.rule == "straggler" for one in diagnosis.findings) is not cores_unknown
    doubts = [one for one in diagnosis.cannot_tell if isinstance(one, CannotTell) and one.rule == "straggler"]
    assert [("waits for a core: some seconds of a live run" in one.needs) for one in doubts] == [True] * cores_unknown


@pytest.mark.parametrize(("stands_ms", "named"), [(2, False), (6, True)])
def test_a_finding_that_explains_little_of_it_rules_no_busy_host_out(stands_ms: int, named: bool) -> None:
    """Of 9 ms a step for which the other waits, Python takes so many, and computing what is left."""
    late = f"""
    host  : {"p" * stands_ms}ol.l.l{"." * (8 - stands_ms)}l.
    gpu   : {"." * stands_ms}  {"k" * (10 - stands_ms)}bxxg
    bwd   :            BB
    opt   :                O
    """
    traces = [rank(0, ON_TIME), rank(1, late)]
    digests = [digest_of(trace, CATALOGUE) for trace in traces]
    unknown = [replace(one, record=replace(one.record, cores_unknown=True)) for one in digests]
    diagnosis = diagnose_digests(unknown, CATALOGUE)
    assert any(one.rule == "straggler" for one in diagnosis.findings) is named


def test_a_rank_that_is_late_in_too_few_steps_is_left_open() -> None:
    """Of two ranks one comes last in each step, whoever it is: seen twice, that proves nothing."""
    late = """
    load  : wwww
    host  :     l.l.l.l.ssss
    gpu   :     kkbb      xx
    gpu 20:         gggggg
    opt   :                O
    """
    for repeats, expected in ((3, set()), (6, {"straggler"})):
        ranks = [
            drawn(picture, repeat=repeats, kernels=KERNELS, comms=SUMS, rank=number, world_size=2)
            for number, picture in enumerate((ON_TIME, late))
        ]
        diagnosis = diagnose(ranks, CATALOGUE)
        assert {one.rule for one in diagnosis.findings} & {"straggler"} == expected
        needs = [one.needs for one in diagnosis.cannot_tell if one.rule == "straggler"]
        assert [text.startswith("more steps: the others wait for rank 1") for text in needs] == [True] * (not expected)


# What the cores of a busy host may have done

LATE_BY_PYTHON = """
    host  : l.....l.....l.l.
    gpu   :  kkk   bb     xx
    gpu 20:              gg
    bwd   :         BBBB
    opt   :                O
"""
IN_TIME = """
    host  : l.l.l.l.ssssssss
    gpu   :  kkbb         xx
    gpu 20:      gggggggggg
    bwd   :   BB
    opt   :                O
"""


@pytest.mark.parametrize("queued", [[60.0, 60.0], [0.0, 60.0]])
def test_cores_that_all_ranks_wait_for_make_none_of_them_late(queued: list[float]) -> None:
    """Where the others wait for none, it is the reason; where they do too, nobody knows whether it has more to do."""
    pictures = (IN_TIME, LATE_BY_PYTHON)
    ranks = [
        rank(number, picture, counted={"host.queued": [percent] * 8})
        for number, (picture, percent) in enumerate(zip(pictures, queued, strict=True))
    ]
    (found,) = [one for one in diagnose(ranks, CATALOGUE).findings if one.rule == "straggler"]
    assert found.rank == 1 and "it runs Python" in found.summary
    alone = queued[0] == 0
    assert ("(cpu-contention on rank 1)" in found.summary) is alone
    assert ("the ranks wait for cores, and whether it has more to do is not recorded" in found.summary) is not alone
    assert found.confidence is (Confidence.MEASURED if alone else Confidence.BOUND)
    assert "dealt out" not in found.summary, "what it computes more is not what makes it late"
