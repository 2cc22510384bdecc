"""A finding's time, its share, and the step that it is a share of divide: also where a live run, without the profiler,
has shorter steps than the traced ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.steps.step_share import of_step, of_traced_step
from diagnose.model import Facts
from diagnose.report.wording import phrases
from diagnose.rule import Trace
from diagnose.trace.drawn import drawn

CATALOGUE = plugins.load()
PART = re.compile(r"([\d.]+) (ns|µs|ms|s) of each [a-z ]*step[a-z ]* of ([\d.]+) (ns|µs|ms|s) \(([<>]?)([\d.]+) %\)")
NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
ROUNDED = 0.006
"""Three digits of a time and two or three of a share are off by so much at most, as parts of the step."""
SHORTER = 0.6
"""The unprofiled step over the traced one."""

PRODUCTS = """
    host: ol
    gpu :  kkkkkkk
    step:             |
"""


def parts(text: str) -> Iterable[tuple[float, float, float]]:
    """Per share that a text gives: the time, its step, and the share as written."""
    for part, unit, whole, of, less, share in PART.findall(text):
        if not less:
            yield float(part) * NS[unit], float(whole) * NS[of], float(share) / 100


def live(trace: Trace) -> Trace:
    """The recording as one of a live run, whose steps without the profiler are shorter."""
    shorter = round(SHORTER * Measures(trace).mean_ns)
    return replace(trace, facts=replace(trace.facts, step_ns_watched=shorter))


def firing() -> Iterable[object]:
    for rule in CATALOGUE.rules.values():
        for number, trace in enumerate(rule.fires):
            yield pytest.param((trace,), id=f"{rule.name}-{number}")
        for number, job in enumerate(rule.fires_job):
            yield pytest.param(job, id=f"{rule.name}-job-{number}")


@pytest.mark.parametrize("job", firing())
def test_every_share_divides(job: tuple[Trace, ...]) -> None:
    diagnosis = diagnose([live(trace) for trace in job], CATALOGUE)
    step_ns = diagnosis.step_ns
    if step_ns is None:
        return
    for finding in diagnosis.findings:
        assert finding.share == pytest.approx(finding.recoverable_ns / step_ns, abs=1e-4)
        assert finding.recoverable_ns <= step_ns
        for part_ns, whole_ns, share in parts(finding.summary):
            assert part_ns / whole_ns == pytest.approx(share, abs=ROUNDED), finding.summary
        named = re.findall(r"\([\d.]+ % of the step\)|per step \([\d.]+ %\)", finding.summary)
        assert not named, f"no step stands beside the share: {finding.summary}"


def test_time_read_off_the_recording_is_of_the_traced_step() -> None:
    trace = drawn(PRODUCTS, repeat=4, facts=Facts(step_ns_watched=8_000_000))
    measures = Measures(trace)
    assert of_traced_step(measures, measures.busy) == "7.00 ms of each traced step of 12.0 ms (58 %)"


def test_the_finding_is_of_the_step_without_the_profiler_which_the_title_names() -> None:
    trace = next(trace for trace in CATALOGUE.rules["fp32-matmul"].fires)
    diagnosis = diagnose([live(trace)], CATALOGUE)
    finding = next(one for one in diagnosis.findings if one.rule == "fp32-matmul")
    ((part_ns, traced_ns, _),) = parts(finding.summary)
    assert diagnosis.step_ns is not None and diagnosis.steps.mean_ns is not None
    assert traced_ns == pytest.approx(diagnosis.steps.mean_ns, rel=ROUNDED)
    assert finding.recoverable_ns <= part_ns
    assert finding.share == pytest.approx(finding.recoverable_ns / diagnosis.step_ns, abs=1e-4)
    assert phrases.gain(finding).startswith("at most")


def test_a_part_of_nothing_is_no_share() -> None:
    assert of_step(0, 0, 1) == "0 ns of each step of 0 ns (0 %)"
