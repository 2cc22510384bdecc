"""Operators that read a value of the device: their wait and their own work go together."""

from __future__ import annotations

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.measure.replay.savings import without_waits
from diagnose.rule import Claim, drawn

MS = 1_000_000
OPS = {"o": "aten::item", "i": "aten::_local_scalar_dense", "n": "aten::linear"}
READ = """
    op  : nn oooooooo nn
    op  :     iiiiii
    host:  l   ssss    l
    gpu :   kkkkk       kk
    step:                 |
"""


def test_the_outermost_reading_operator_counts() -> None:
    measures = Measures(drawn(READ, ops=OPS))
    assert list(measures.value_reads) == [(3 * MS, 11 * MS)]


def test_an_operator_that_waits_for_another_reason_is_no_reading() -> None:
    assert not len(Measures(drawn(READ, ops=OPS | {"o": "aten::copy_", "i": "aten::to"})).value_reads)


def test_without_the_wait_what_reads_the_value_takes_no_time_either() -> None:
    """The host's time for a step is 18 columns, 8 of them in reading; of those it waits for 4."""
    reads = Measures(drawn(READ, repeat=4, ops=OPS))
    copies = Measures(drawn(READ, repeat=4, ops=OPS | {"o": "aten::copy_", "i": "aten::to"}))
    assert reads.replay.trusted
    assert reads.replay.saved_ns(without_waits(reads)) > copies.replay.saved_ns(without_waits(copies)) > 0


def test_a_host_with_more_to_do_than_the_device_loses_by_waiting_as_well() -> None:
    """Host work takes 8 columns of 14, device work 6: without the waits 8 are left, of which 2 are for launches."""
    measures = Measures(
        drawn(
            """
            host: ooolsssooolsss
            gpu :     kkk    kkk
            step:               |
            """,
            repeat=6,
            unit_ns=40_000,
        )
    )
    (claim,) = (a for a in plugins.load().rules["host-sync"].check(measures) if isinstance(a, Claim))
    assert (measures.host_work_ns > measures.busy_ns).all()
    assert abs(claim.recoverable_ns / measures.step_count - 6 * 40_000) <= 40_000
