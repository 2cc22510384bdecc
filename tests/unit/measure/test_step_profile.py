"""What is explored after the verdict: kernels and operators as tables, and some steps span by span."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.profile import step_lanes
from diagnose.measure.profile.step_profile import profile_of, slowest_profile
from diagnose.model import Lane, StepProfile
from diagnose.trace.drawn import drawn

MS = 1_000_000
PICTURE = """
    load: ww
    host:   ol ol  ol
    gpu :    aa bbb aa
    step:             |
"""
KERNELS = {"a": "a_gemm_kernel", "b": "vectorized_elementwise_kernel"}


def profile(picture: str = PICTURE, repeat: int = 4) -> StepProfile:
    return profile_of(Measures(drawn(picture, repeat=repeat, kernels=KERNELS)))


def lane(of: StepProfile, name: str) -> Lane:
    assert of.timeline is not None
    (found,) = [one for one in of.timeline.lanes if one.name == name]
    return found


def test_kernels_are_summed_by_name_the_longest_first() -> None:
    found = profile()
    times = {row.name: (row.kind, row.total_ns // found.step_count // MS, row.count) for row in found.kernels}
    steps = found.step_count
    assert times == {
        "a_gemm_kernel": ("matmul", 4, 2 * steps),
        "vectorized_elementwise_kernel": ("pointwise", 3, steps),
    }
    assert [row.name for row in found.kernels] == ["a_gemm_kernel", "vectorized_elementwise_kernel"]


def test_each_operator_has_its_own_time_on_the_host_and_that_of_what_it_launched() -> None:
    (row,) = profile().operators
    found = profile()
    assert row.device_ns == sum(kernel.total_ns for kernel in found.kernels)
    assert row.count == 3 * found.step_count


def test_gaps_and_kernels_of_a_stream_fill_the_steps_exactly() -> None:
    found = profile()
    assert found.timeline is not None
    filled = sum(lane(found, "idle, by cause").length_ns) + sum(lane(found, "stream 0").length_ns)
    assert filled == found.timeline.steps_ns[-1]
    causes = {found.timeline.looks[look] for look in lane(found, "idle, by cause").look}
    assert "input" in causes


def test_spans_of_a_lane_do_not_overlap() -> None:
    found = profile()
    assert found.timeline is not None
    for one in found.timeline.lanes:
        ends = [start + length for start, length in zip(one.start_ns, one.length_ns, strict=True)]
        assert all(end <= start for end, start in zip(ends, one.start_ns[1:], strict=False)), one.name


def test_too_many_spans_are_joined_where_they_are_short_and_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_lanes, "MOST_DRAWN", 20)
    monkeypatch.setattr(step_lanes, "FINEST", 10)
    picture = f"""
    gpu : {"a." * 20}{"." * 10}{"b" * 10}
    step: {" " * 60}|
    """
    trace = drawn(picture, repeat=3, unit_ns=1_000, kernels=KERNELS)
    found = profile_of(Measures(trace))
    assert found.timeline is not None and found.timeline.joined_below_ns > 0
    assert sum(len(one.start_ns) for one in found.timeline.lanes) <= 20
    labels = {found.timeline.labels[label] for label in lane(found, "stream 0").label}
    assert any("more" in label for label in labels)


def test_a_finding_names_a_stretch_of_time_within_the_timeline() -> None:
    trace = drawn("load: wwww\nhost:     ol\ngpu :      k\nstep:       |", repeat=5)
    diagnosis = diagnose([trace], plugins.load_rules())
    finding = diagnosis.findings[0]
    found = slowest_profile([trace], diagnosis)
    assert finding.example_ns is not None and found is not None and found.timeline is not None
    begin, end = (moment - found.timeline.begin_ns for moment in finding.example_ns)
    assert 0 <= begin < end <= found.timeline.steps_ns[-1]


def test_without_steps_there_is_nothing_to_explore() -> None:
    trace = drawn("host: p", repeat=1)
    diagnosis = diagnose([trace], plugins.load_rules())
    found = slowest_profile([trace], diagnosis)
    assert found is None or found.timeline is None or found.step_count
