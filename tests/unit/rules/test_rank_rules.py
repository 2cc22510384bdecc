"""Collectives by phase and cost, and what several ranks say together."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diagnose import plugins
from diagnose.analysis.job import ask_job_rules
from diagnose.analysis.rank_digest import digest_of
from diagnose.engine import diagnose, diagnose_digests
from diagnose.measure import Measures
from diagnose.measure.comm.collective_lines import places_by_cost
from diagnose.measure.comm.collectives import Phase, kind_of
from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.links import link_of, wire_share
from diagnose.measure.job.ranks import Job
from diagnose.model import Facts
from diagnose.plugins import Catalogue
from diagnose.rule import CannotTell, Claim, JobClaim, Rule, nothing_alone
from diagnose.trace import Collective, StackFrame, Thread, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Ops, RangeKind, Ranges

MS = 1_000_000
US = 1_000
RULES = plugins.load_rules().rules
MODEL = {"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}


def all_reduce(size_bytes: int, ranks: int = 2) -> Collective:
    return Collective("all_reduce", size_bytes, ranks, "default_pg")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", ""),
    ],
)
def test_collectives_are_known_by_name_where_nothing_else_says(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_phases_and_rounds_of_an_accumulation() -> None:
    trace = drawn(
        """
        gpu   : kkkbbb   kkkbbb   x
        gpu 20: a    gggg     gggg
        bwd   :    BBB      BBB
        opt   :                   O
        """,
        repeat=3,
        kernels=MODEL,
        comms={"a": Collective("broadcast", 100, 2), "g": all_reduce(1 << 26)},
    )
    comm = Measures(trace).communication
    assert comm.kind[:3].tolist() == ["broadcast", "all_reduce", "all_reduce"]
    assert comm.phase[:3].tolist() == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]
    assert comm.round[:3].tolist() == [0, 1, 2]
    assert comm.gradients[:3].tolist() == [False, True, True]


def test_the_fastest_of_its_size_shows_what_is_waiting() -> None:
    trace = drawn(
        """
        gpu   : kkk    kkk  kkk
        gpu 20:    aaaa   aa   aaa
        opt   :                   O
        """,
        repeat=2,
        comms={"a": all_reduce(1 << 20)},
    )
    comm = Measures(trace).communication
    assert set(comm.transfer_ns.tolist()) == {2 * MS}
    unsized = drawn("gpu 20: cccc.cc\ngpu   : ....k..k\nopt   :        O", repeat=2)
    assert set(Measures(unsized).communication.transfer_ns.tolist()) == {2 * MS, 4 * MS}


def on_host(shapes: Sequence[str]) -> Trace:
    """Collectives of gloo: called on the main thread, run on another one."""
    names = ("c10d::allreduce_", "gloo:all_reduce", "ProfilerStep#1")
    count = len(shapes)
    called = np.arange(count) * 10 * MS
    return Trace(
        source="test",
        names=names,
        texts=tuple(shapes),
        threads=(Thread(1, 1), Thread(1, 2)),
        ops=Ops.build(
            {
                "start_ns": called,
                "end_ns": called + US,
                "name": [0] * count,
                "thread": [0] * count,
                "shapes": np.arange(count),
            }
        ),
        ranges=Ranges.build(
            {
                "start_ns": [*(called + MS).tolist(), 0],
                "end_ns": [*(called + 5 * MS).tolist(), 10 * MS * count],
                "name": [1] * count + [2],
                "kind": [RangeKind.COLLECTIVE] * count + [RangeKind.STEP],
                "thread": [1] * count + [0],
            }
        ).sorted_by_start(),
        facts=Facts(cpu_count=2),
    )


def test_collectives_of_the_host_have_the_sizes_and_calls_of_their_operators() -> None:
    comm = Measures(on_host(["[[[512], [512, 512]], [], []]", "[[[7]], []]", "nonsense"])).communication
    assert comm.size_bytes.tolist() == [4 * 512 * 513, 28, 0]
    assert comm.issued_ns.tolist() == [0, 10 * MS, 20 * MS]
    assert comm.kind.tolist() == ["all_reduce"] * 3


def test_bytes_over_the_bus() -> None:
    kinds = np.array(["all_reduce", "all_gather", "broadcast", "all_reduce"])
    assert wire_share(kinds, np.array([2, 4, 4, 0])).tolist() == [1.0, 0.75, 0.0, 0.0]


@pytest.mark.parametrize(
    ("names", "ranks", "link"),
    [
        (("NVIDIA H200",) * 4, 4, "NVLink"),
        (("NVIDIA H100 80GB HBM3",) * 8, 8, "NVLink"),
        (("Tesla V100-PCIE-32GB",) * 2, 2, "PCI Express 3"),
        (("NVIDIA H200",) * 8, 16, None),
        (("NVIDIA H200",), 2, None),
        (("some device",) * 8, 8, None),
        ((), 2, None),
    ],
)
def test_links_are_known_by_device_within_one_host_alone(names: tuple[str, ...], ranks: int, link: str | None) -> None:
    found = link_of(Trace(source="test", device_names=names, collectives=(all_reduce(1, ranks),)))
    assert (found.name if found else None) == link


def test_latency_and_rate_are_read_off_the_sizes() -> None:
    trace = drawn(
        """
        gpu   : kkkbbbbbbbbbbbbbbb x
        gpu 20:    sMMLLLLsMMLLLLs
        bwd   :   BBBBBBBBBBBBBBBBB
        opt   :                   O
        """,
        repeat=3,
        kernels=MODEL,
        comms={"s": all_reduce(1), "M": all_reduce(1_000_000), "L": all_reduce(3_000_000)},
    )
    cost = Measures(trace).exchange.cost_of_size
    assert cost is not None
    assert cost == pytest.approx((MS, 1.0), rel=0.01)


def test_gradients_that_become_ready_last_are_nobodys_fault() -> None:
    trace = drawn(
        """
        gpu   : kkkbbbbbbbb    x
        gpu 20:     gggggggGGGG
        bwd   :    BBBBBBBBB
        opt   :                O
        """,
        repeat=3,
        kernels=MODEL,
        comms={"g": all_reduce(70 << 20), "G": all_reduce(40 << 20)},
    )
    measures = Measures(trace)
    assert measures.exchange.inherent_ns[:2].tolist() == [0, 11 * MS // 4]
    (claim,) = [one for one in RULES["exposed-communication"].check(measures) if isinstance(one, Claim)]
    assert claim.claims.total_ns == measures.step_count * (4 * MS - 11 * MS // 4)


def test_the_line_of_the_costlier_collective_comes_first_however_long_the_host_was_in_another() -> None:
    trace = drawn(
        """
        gpu   : kkkbbbbbbbbb             x
        gpu 20:       gggg      ww ww ww
        bwd   :    BBBBBBBBBBB
        opt   :                          O
        line  :    bbbbbbbbbbb  ww ww ww
        """,
        repeat=3,
        kernels=MODEL,
        comms={"g": all_reduce(1 << 20), "w": Collective("broadcast", 96 << 20, 2, "default_pg")},
        stacks={"b": [StackFrame("train.py", 9, "main")], "w": [StackFrame("train.py", 12, "main")]},
    )
    measures = Measures(trace)
    cost_ns = np.where(measures.communication.kind == "broadcast", 2 * MS, MS)
    assert [(place.line, round(place.share or 0, 3)) for place in places_by_cost(measures, cost_ns)] == [
        (12, 0.857),
        (9, 0.143),
    ]
    assert places_by_cost(measures, np.zeros_like(cost_ns)) == ()


def test_each_collective_has_one_cause() -> None:
    trace = drawn(
        """
        gpu   : kkkbbb   kkkbbb   x
        gpu 20:      gggg     gggg
        bwd   :    BBB      BBB
        opt   :                   O
        """,
        repeat=3,
        kernels=MODEL,
        comms={"g": all_reduce(1 << 24)},
        device_names=("NVIDIA H200", "NVIDIA H200"),
    )
    assert Measures(trace).exchange.waste[:2].tolist() == [Waste.REPEATED, Waste.SLOW]


def test_a_small_collective_that_takes_longer_than_a_large_one_is_no_slow_link() -> None:
    trace = drawn(
        """
        gpu   : kkkbbb         x
        gpu 20:       sssggbb
        bwd   :    BBBBBB
        opt   :                O
        """,
        repeat=4,
        kernels=MODEL,
        comms={"s": all_reduce(1 << 20), "g": all_reduce(1 << 24), "b": all_reduce(1 << 24)},
        device_names=("NVIDIA H200", "NVIDIA H200"),
    )
    assert not Measures(trace).exchange.slow
    plain = replace(trace, collectives=(*trace.collectives[:1], all_reduce(1 << 24), *trace.collectives[2:]))
    assert Measures(plain).exchange.slow


EARLY = """
    gpu   : kkkk
    gpu 20:     cccccccc
    opt   :             O
"""
LATE = """
    load  : wwwwww
    gpu   :       kkkk
    gpu 20:           cc
    opt   :             O
"""


def pair() -> list[Trace]:
    """Two ranks; the second one waits 6 ms for its input before each step."""
    return [drawn(picture, repeat=5, rank=rank, world_size=2) for rank, picture in enumerate((EARLY, LATE))]


def test_the_late_ranks_own_finding_becomes_the_reason() -> None:
    diagnosis = diagnose(pair(), plugins.load_rules())
    straggler = diagnosis.findings[0]
    assert (straggler.rule, straggler.rank) == ("straggler", 1)
    assert "input-bound on rank 1" in straggler.summary
    assert straggler.recoverable_ns == pytest.approx(6 * MS, rel=0.01)
    assert "input-bound" not in {one.rule for one in diagnosis.findings}
    (exposed,) = [one for one in diagnosis.findings if one.rule == "exposed-communication"]
    assert exposed.recoverable_ns == pytest.approx(2 * MS, rel=0.01), "what is left is the transfer"


BUSY = """
    gpu   : kkkkkkkkkk
    gpu 20:           cc
    opt   :             O
"""


def test_of_uneven_work_what_lies_above_the_mean_comes_back() -> None:
    early, _ = pair()
    busy = drawn(BUSY, repeat=5, rank=1, world_size=2)
    straggler = diagnose([early, busy], plugins.load_rules()).findings[0]
    assert (straggler.rule, straggler.rank) == ("straggler", 1)
    assert "waits for it 6.00 ms" in straggler.summary
    assert straggler.recoverable_ns == pytest.approx(3 * MS, rel=0.01)


def test_what_one_rank_hides_no_rank_gets_back() -> None:
    exposed = """
        gpu   : kkkbbb      x
        gpu 20:       wwwwww
        bwd   :    BBB
        opt   :             O
    """
    hidden = exposed.replace("kkkbbb      ", "kkkbbbbbbbbb")
    comms = {"w": Collective("broadcast", 96 << 20, 2, "default_pg")}
    ranks = [
        drawn(picture, repeat=4, kernels=MODEL, comms=comms, rank=rank, world_size=2)
        for rank, picture in enumerate((exposed, hidden))
    ]
    catalogue = plugins.load_rules()
    assert "exposed-communication" in {one.rule for one in diagnose(ranks[:1], catalogue).findings}
    assert "exposed-communication" not in {one.rule for one in diagnose(ranks, catalogue).findings}
    both = [ranks[0], replace(ranks[0], rank=1)]
    assert "exposed-communication" in {one.rule for one in diagnose(both, catalogue).findings}


def test_alone_each_rank_says_what_it_sees() -> None:
    early, late = pair()
    catalogue = plugins.load_rules()
    assert diagnose([early], catalogue).findings[0].rule == "exposed-communication"
    assert diagnose([late], catalogue).findings[0].rule == "input-bound"
    assert "straggler" in {one.rule for one in diagnose([early], catalogue).cannot_tell}


def test_what_travels_is_enough() -> None:
    catalogue = plugins.load_rules()
    digests = [pickle.loads(pickle.dumps(digest_of(trace, catalogue))) for trace in pair()]
    assert diagnose_digests(digests, catalogue) == diagnose(pair(), catalogue)


def test_a_rank_given_twice_is_asked_once() -> None:
    early, late = pair()
    found = [one.rule for one in diagnose([early, late, late], plugins.load_rules()).findings]
    assert found.count("straggler") == 1


def test_a_rule_on_jobs_that_raises_hides_no_other() -> None:
    def broken(_job: Job, _findings: object) -> list[JobClaim | CannotTell]:
        raise ZeroDivisionError("no ranks")

    rule = Rule("broken", nothing_alone, check_job=broken)
    digests = [digest_of(trace, Catalogue({}, {})) for trace in pair()]
    whole = ask_job_rules(digests, Catalogue({"broken": rule, "straggler": RULES["straggler"]}, {}))
    assert [one.rule for one in whole.joint] == ["straggler"]
    assert whole.failures == ("rule broken failed and was left out: ZeroDivisionError: no ranks",)


@pytest.mark.parametrize(("size_bytes", "told"), [(-1, True), (16_000, False)])
def test_many_collectives_whose_sizes_nobody_recorded_are_not_told_to_be_small(size_bytes: int, told: bool) -> None:
    measures = Measures(
        drawn(
            """
            gpu   : kkkkbbbb            x
            gpu 20:      gGgGgGgGgGgGgGg
            bwd   :     BBBBBBBBBBBBBBBB
            opt   :                     O
            """,
            repeat=4,
            kernels=MODEL,
            comms={"g": all_reduce(size_bytes), "G": all_reduce(size_bytes * 2 if size_bytes > 0 else -1)},
        )
    )
    answers = [*RULES["small-buckets"].check(measures)]
    assert [isinstance(answer, CannotTell) for answer in answers if not isinstance(answer, Claim)] == [True] * told


def test_waiting_that_one_rank_cannot_see_is_not_said_to_be_zero() -> None:
    lanes = """
        gpu   : kkk   kkkx
        gpu 20:    aaa
        opt   :          O
    """
    trace = drawn(lanes, repeat=4, kernels=MODEL, comms={"a": Collective("all_to_all", 96 << 20, 8, "ep")})
    (claim,) = [one for one in RULES["exposed-communication"].check(Measures(trace)) if isinstance(one, Claim)]
    assert not [one for one in claim.evidence if one.measure.startswith("waiting for other ranks")]
