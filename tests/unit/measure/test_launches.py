"""When work was launched whose launch call was not recorded."""

from __future__ import annotations

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.views.launches import launches_of
from diagnose.rule import drawn

MS = 1_000_000
OPENED_WHILE_AHEAD = drawn(
    """
    host:  lol lol lol
    gpu : uuuuaabbbbaabbbbaabbbb
    step: |   |   |   |
    """,
    kernels=dict.fromkeys("ab", "kernel"),
)


def test_work_before_the_first_of_known_launch_was_launched_before_the_recording() -> None:
    launches = launches_of(OPENED_WHILE_AHEAD)
    first = np.argsort(OPENED_WHILE_AHEAD.device.start_ns)[0]
    assert not launches.linked[first]
    assert launches.start_ns[first] == launches.end_ns[first] < OPENED_WHILE_AHEAD.calls.start_ns.min()


def test_the_first_step_begins_where_that_work_ends() -> None:
    measures = Measures(OPENED_WHILE_AHEAD)
    assert (measures.steps.start_ns // MS).tolist() == [4, 10, 16]
    assert (measures.steps.length_ns // MS).tolist() == [6, 6, 6]
    assert measures.steps.left_out == ()


def test_what_the_first_step_would_lose_is_replayed_like_any_others() -> None:
    measures = Measures(OPENED_WHILE_AHEAD)
    short = np.flatnonzero((measures.trace.device.end_ns - measures.trace.device.start_ns == 2 * MS) & measures.rows)
    assert len(short) == 3
    saved = [gained_ns(measures, sped_up(measures, np.array([row]), 0.0), measures.total_ns) for row in short]
    assert saved == [2 * MS] * 3


def test_work_of_unknown_launch_between_others_counts_from_where_it_begins() -> None:
    trace = drawn(
        """
        host: lol
        gpu :  aauuubb
        """,
        kernels=dict.fromkeys("ab", "kernel"),
    )
    launches = launches_of(trace)
    [unknown] = np.flatnonzero(~launches.linked)
    assert launches.start_ns[unknown] == trace.device.start_ns[unknown]


def test_a_host_that_was_more_than_a_step_ahead_is_known_to_have_been() -> None:
    trace = drawn(
        """
        host:  lol
        gpu : uuuuuu uuuuuu uuuuuu aabbbb
        step: |   |
        """,
        kernels=dict.fromkeys("ab", "kernel"),
    )
    assert (Measures(trace).steps.start_ns // MS).tolist() == [20]


def test_a_launch_that_was_lost_on_a_side_stream_leaves_the_steps_before_it() -> None:
    trace = drawn(
        """
        host  : lol    lol    lol    lolol
        gpu   :   aaabb  aaabb  aaabb  aaabb
        gpu 7 :                   uu      aa
        step  : |      |      |      |      |
        """,
        kernels=dict.fromkeys("ab", "kernel"),
    )
    assert (Measures(trace).steps.start_ns // MS).tolist() == [0, 7, 14, 21]


def test_what_a_side_stream_does_while_the_queue_of_before_lasts_was_launched_before() -> None:
    trace = drawn(
        """
        host  : lol lollol
        gpu   : uuuuu aabbbb aabb
        gpu 7 :   uu            aa
        step  : |   |     |
        """,
        kernels=dict.fromkeys("ab", "kernel"),
    )
    launches = launches_of(trace)
    assert (launches.start_ns < 0)[~launches.linked].tolist() == [True, True]


def test_work_whose_launches_are_missing_in_each_step_belongs_to_its_step() -> None:
    trace = drawn(
        """
        host: pppol  pppol  pppol  pppol
        gpu :  uu bb  uu bb  uu bb  uu bb
        step: |      |      |      |      |
        """,
        kernels={"b": "kernel"},
    )
    steps = Measures(trace).steps
    assert (steps.start_ns // MS).tolist() == [0, 6, 13, 20]
    assert steps.left_out == ()


def test_where_few_launches_are_known_they_tell_nothing_of_the_rest() -> None:
    trace = drawn(
        """
        host:    l
        gpu : uu  aa uu uu
        """,
        kernels={"a": "kernel"},
    )
    launches = launches_of(trace)
    unknown = ~launches.linked
    assert unknown.sum() == 3
    assert (launches.start_ns == trace.device.start_ns)[unknown].all()
