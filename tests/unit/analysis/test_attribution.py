"""Claims that compete: the cause nearest the source has the time, and no sum exceeds the step or a replay's saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose import plugins
from diagnose.analysis.attribution import AttributedClaim, attribute
from diagnose.analysis.rank_digest import digest_of
from diagnose.engine import diagnose
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.model import Confidence, Facts
from diagnose.rule import Claim, Intervals, Measures, Rule, Trace, drawn
from diagnose.trace.schema import Counters

MS = 1_000_000
RULES = plugins.load()
BUSY = drawn("gpu : kkkkkkkkkk")


def claims(trace: Trace, *given: tuple[str, int, int, int, float]) -> dict[str, AttributedClaim]:
    """Claims by name, nearness and the milliseconds [start, end) of which they say that such a part comes back."""
    pairs = [
        (
            Rule(name, lambda _: (), nearness=nearness),
            Claim(name, round((end - start) * MS * part), Intervals.of([start * MS], [end * MS])),
        )
        for name, nearness, start, end, part in given
    ]
    return {one.rule.name: one for one in attribute(pairs, Measures(trace))}


def test_a_cause_within_another_ones_time_has_its_own() -> None:
    found = claims(BUSY, ("collection", 12, 2, 4, 1.0), ("python", 40, 0, 10, 1.0))
    assert (found["collection"].recoverable_ns, found["python"].recoverable_ns) == (2 * MS, 8 * MS)
    assert found["python"].shared == (("collection", 2 * MS),)


def test_the_cause_that_wins_names_the_other() -> None:
    found = claims(BUSY, ("near", 1, 0, 6, 1.0), ("far", 2, 3, 6, 1.0))
    assert (found["near"].recoverable_ns, found["far"].recoverable_ns) == (6 * MS, 0)
    assert found["near"].shared == (("far", 3 * MS),)
    assert found["far"].shared == (("near", 3 * MS),)


def test_two_ways_to_speed_up_one_kernel_multiply() -> None:
    found = claims(BUSY, ("near", 1, 0, 10, 0.5), ("far", 2, 0, 10, 0.5))
    assert (found["near"].recoverable_ns, found["far"].recoverable_ns) == (5 * MS, MS * 5 // 2)


def test_a_claim_keeps_what_it_would_be_alone() -> None:
    found = claims(BUSY, ("near", 1, 0, 6, 1.0), ("far", 2, 0, 8, 1.0))
    assert (found["far"].recoverable_ns, found["far"].alone_ns) == (2 * MS, 8 * MS)


WAITING = drawn(
    """
    host: ol ssssss ol
    gpu :   kkkkkk    kkk
    step:                |
    """,
    repeat=4,
    unit_ns=10_000,
)


def test_what_one_cure_makes_needless_is_not_counted_for_the_next() -> None:
    measures = Measures(WAITING)
    waits = Cut(waits=np.ones(len(measures.trace.calls), np.bool_))
    saved = measures.replay.saved_ns(waits)
    idle = measures.idle_of()
    half = len(idle) // 2
    one, other = (Intervals(idle.starts[part], idle.ends[part]) for part in (slice(half), slice(half, None)))
    pairs = [
        (Rule("waits", lambda _: ()), Claim("all", saved, one, cut=waits)),
        (Rule("again", lambda _: ()), Claim("all", saved, other, cut=waits)),
    ]
    assert saved > 0
    assert sum(found.recoverable_ns for found in attribute(pairs, measures)) <= saved


def test_of_causes_of_the_same_time_the_nearest_is_replayed_first() -> None:
    """Both would bring all of it, the general one a little more: it gets what is left."""
    measures = Measures(WAITING)
    waits = Cut(waits=np.ones(len(measures.trace.calls), np.bool_))
    saved, idle = measures.replay.saved_ns(waits), measures.idle_of() & measures.counted
    near = Rule("near", lambda _: (), nearness=10), Claim("waits", saved, idle, cut=waits)
    far = Rule("far", lambda _: (), nearness=60), Claim("all", idle.total_ns, idle)
    found = {one.rule.name: one.recoverable_ns for one in attribute([far, near], measures)}
    assert 0 < saved < idle.total_ns
    assert found["near"] == saved
    assert found["near"] + found["far"] <= idle.total_ns


def test_faster_kernels_are_worth_what_the_host_lets_them_be() -> None:
    trace = drawn(
        """
        host: olololol
        gpu :   kkKKkkKK
        step:           |
        """,
        repeat=4,
        unit_ns=10_000,
        kernels={"K": "other_kernel"},
    )
    measures = Measures(trace)
    rows = np.arange(len(trace.device))
    # The host takes 8 of 10 columns to issue the step; kernels in no time leave that.
    assert gained_ns(measures, sped_up(measures, rows, 0.0), 1 << 60) <= 3 * 30_000


def first(trace: Trace) -> list[str]:
    return [finding.rule for finding in diagnose([trace], RULES).findings]


COMPETING: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "input-bound before host-sync": (
        ("input-bound", "host-sync"),
        {
            "text": """
            load:          wwwwwwww
            host: ol sssss         ol sssss
            gpu :   kkkkkk           kkkkkk
            opt :          O
            """,
        },
    ),
    "gc-pause before python-stall": (
        ("gc-pause", "python-stall"),
        {
            "text": """
            gc  :     xxxxxxxx
            host: ol            ol
            gpu :   kk            kkkkkk
            step:                       |
            """,
        },
    ),
    "python-stall before launch-bound": (
        ("python-stall", "launch-bound"),
        {
            "text": """
            host: olol             olol
            gpu :   k k              k k
            step:                       |
            """,
        },
    ),
    "device-to-host-copies before host-sync": (
        ("device-to-host-copies", "host-sync"),
        {
            "text": """
            host: olcsssssss ol
            gpu :   kkkddddd   kkk
            step:                 |
            """,
        },
    ),
    # The host has more to do than the device, and yet most of what it loses it loses by waiting.
    "host-sync before launch-bound": (
        ("host-sync", "launch-bound"),
        {
            "text": """
            host: ooolsssooolsss
            gpu :     kkk    kkk
            step:               |
            """,
            "unit_ns": 40_000,
        },
    ),
    "graph-breaks before launch-bound": (
        ("graph-breaks", "launch-bound"),
        {
            "text": """
            op  : rrrrrrrrrrrrrrrrr
            op  :  gggg       ggggg
            op  :          qqqqqqqq
            host:  ol         olol
            gpu :    kk          kK
            step:                  |
            """,
            "unit_ns": 40_000,
            "kernels": {"K": "other_kernel"},
            "ops": {
                "r": "Torch-Compiled Region: 0/0",
                "q": "Torch-Compiled Region: 1/0",
                "g": "CompiledFunction",
            },
        },
    ),
    "cpu-contention before input-bound": (
        ("cpu-contention", "input-bound"),
        {
            "text": """
            host:         oo
            load: wwwwwwww
            opt :          O
            """,
            "ops": {"o": "host.queued"},
            "counters": Counters.build({"time_ns": range(8), "name": [0] * 8, "value": [70.0] * 8}),
            "facts": Facts(cpu_count=2),
        },
    ),
}


@pytest.mark.parametrize("name", COMPETING)
def test_the_cause_nearest_the_source_comes_first(name: str) -> None:
    (near, far), drawing = COMPETING[name]
    found = first(drawn(**drawing, repeat=6))
    assert near in found
    assert far not in found or found.index(near) < found.index(far)


LETTERS = {
    "gpu": "kkABtdDhHzc..",
    "load": "ww.....",
    "gc": "x.......",
    "comp": "x.......",
}


@st.composite
def drawings(draw: st.DrawFn) -> dict[str, Any]:
    """Lanes of any letters: host and device unrelated, as launches are then made up, or a host that launches each."""
    width = draw(st.integers(8, 30))
    lanes = ["gpu", *draw(st.lists(st.sampled_from(["load", "gc", "comp"]), max_size=2, unique=True))]
    rows = {
        lane: "".join(draw(st.lists(st.sampled_from(LETTERS[lane]), min_size=width, max_size=width))) for lane in lanes
    }
    rows["host"] = "".join(draw(st.lists(st.sampled_from("oossp.. "), min_size=width, max_size=width)))
    rows["step"] = " " * width + "|"
    text = "\n".join(f"{lane:<5}: {row.replace('.', ' ')}" for lane, row in rows.items())
    kernels = {
        "A": "ampere_sgemm_128x64_tn",
        "B": "void at::native::vectorized_elementwise_kernel<4, MulFunctor<float>>",
    }
    return {
        "text": text,
        "kernels": kernels,
        "repeat": draw(st.integers(2, 4)),
        "unit_ns": draw(st.sampled_from([5_000, 50_000, 1_000_000])),
    }


@given(drawings())
def test_the_sum_of_all_findings_never_exceeds_the_step(drawing: dict[str, Any]) -> None:
    digest = digest_of(drawn(**drawing), RULES)
    assert not digest.failures
    count = max(digest.steps.count, 1)
    assert sum(finding.recoverable_ns for finding in digest.findings) * count <= digest.steps.total_ns
    assert all(0 <= finding.share <= 1 for finding in digest.findings)


def test_where_no_replay_lands_a_measured_finding_is_a_bound_and_says_so() -> None:
    trace = drawn(
        """
        host: lol sssssss
        gpu :  k       k
        step:            |
        """,
        repeat=4,
        unit_ns=10_000,
    )
    measures = Measures(trace)
    assert not measures.replay.trusted
    rule = Rule("some", lambda m: [Claim("idle", m.idle_of().total_ns, m.idle_of())])
    (finding,) = diagnose([trace], plugins.Catalogue({"some": rule}, {})).findings
    assert finding.confidence is Confidence.BOUND
    assert finding.confirm is not None
    assert "a replay of what was recorded misses the steps by" in finding.confirm
