"""Which probes settle which findings, what their answers say of them, and how that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diagnose.collect.experiments import Probe, load_probes
from diagnose.model import Bearing, Confidence, Finding, ProbeResult, Severity
from diagnose.plugins import load_rules
from diagnose.probing.choice import Probing, settling
from diagnose.probing.probe_comparison import bearing_on
from diagnose.probing.trial import result_of
from diagnose.report.export import markdown
from diagnose.report.page import html
from diagnose.report.terminal.probes import as_text
from diagnose.session import State
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison, Ending
from diagnose.trial.process.arm import ArmFailed, Trouble
from diagnose.tui.tabs.overview import Outcome
from diagnose.units import NS_PER_MS
from diagnose.verdict import Pair

WHOLE = Probe("whole", "", ("input-bound",), ())
MORE = Probe("more", "", (), ("slow-optimizer",))
COMPILED = Probe("compiled", "", ("launch-bound",), (), compiles=True)
SWEEP = Probe("sweep", "", ("small-batch",), (), settings=({"factor": 1}, {"factor": 2}))


def finding(rule: str, saves_ms: float, step_ms: float = 100) -> Finding:
    saves_ns = round(saves_ms * NS_PER_MS)
    return Finding(rule, Severity.HIGH, None, saves_ns, saves_ms / step_ms, Confidence.MEASURED, "")


def saves(low_ms: float, high_ms: float, **fields: Any) -> ProbeResult:
    figures = {"step_ns": 100 * NS_PER_MS, "probed_ns": 50 * NS_PER_MS, "pairs": 8, "generations": 2} | fields
    return ProbeResult("one", saved_ns=(round(low_ms * NS_PER_MS), round(high_ms * NS_PER_MS)), **figures)


def as_drawn(state: State) -> str:
    """The overview's last panel."""
    panel = Outcome()
    panel.state = state
    return "\n".join(line.plain for line in panel.draw(200, None))


@pytest.mark.parametrize(
    ("probe", "rule", "saved", "left", "bearing"),
    [
        (WHOLE, "input-bound", (9, 11), (), Bearing.CONFIRMS),
        (WHOLE, "input-bound", (0, 1), (), Bearing.CONTRADICTS),
        (WHOLE, "input-bound", (40, 50), (), Bearing.CONTRADICTS),
        (WHOLE, "input-bound", (0, 1), ("a wait",), Bearing.OPEN),
        (MORE, "slow-optimizer", (0, 1), (), Bearing.CONTRADICTS),
        (MORE, "slow-optimizer", (40, 50), (), Bearing.OPEN),
    ],
)
def test_a_probe_confirms_contradicts_or_leaves_open(
    probe: Probe, rule: str, saved: tuple[int, int], left: tuple[str, ...], bearing: Bearing
) -> None:
    """10 ms are predicted, which may be from 4.5 to 22 ms."""
    result = bearing_on(saves(*saved, left=left), probe, [finding(rule, 10), finding("gc-pause", 30)])
    assert [(one.rule, one.bearing) for one in result.findings] == [(rule, bearing)]


def test_what_was_predicted_of_a_busier_machine_is_taken_as_a_share_of_the_step() -> None:
    (one,) = bearing_on(saves(9, 11), WHOLE, [finding("input-bound", 30, step_ms=300)]).findings
    (same,) = bearing_on(saves(9, 11), WHOLE, [finding("input-bound", 10)]).findings
    assert one.predicted_ns == same.predicted_ns


def test_no_prediction_is_longer_than_the_step() -> None:
    (one,) = bearing_on(saves(85, 95), WHOLE, [finding("input-bound", 90)]).findings
    assert one.predicted_ns[1] == 100 * NS_PER_MS


def test_without_an_answer_nothing_is_said_of_a_finding() -> None:
    assert bearing_on(ProbeResult("one", refused="no loader"), WHOLE, [finding("input-bound", 10)]).findings == ()


def test_the_probes_of_the_largest_findings_come_cheapest_first() -> None:
    probes = {probe.name: probe for probe in (COMPILED, SWEEP, MORE, WHOLE)}
    found = [
        finding("launch-bound", 50),
        finding("slow-optimizer", 10),
        finding("input-bound", 20),
        finding("small-batch", 30),
        finding("gc-pause", 90),
    ]
    assert [probe.name for probe in settling(found, probes)] == ["whole", "more", "sweep", "compiled"]


def test_a_finding_of_less_than_a_fix_must_save_needs_no_probe() -> None:
    assert settling([finding("input-bound", 1, step_ms=200)], {"whole": WHOLE}) == []


def test_probes_name_rules_that_exist() -> None:
    rules = load_rules().rules
    for probe in load_probes().values():
        assert {*probe.measures, *probe.bounds} <= set(rules), probe.name


def test_named_probes_are_run_whatever_was_found() -> None:
    assert [probe.name for probe in Probing(("no-sync",)).chosen([])] == ["no-sync"]
    assert Probing().chosen([]) == []


def compared(pairs: int = 8, generations: int = 2, ratio: float = 0.6) -> Comparison:
    step = 100.0 * NS_PER_MS
    of_each = pairs // generations
    return Comparison(
        [Pair(number // of_each, step, ratio * step) for number in range(pairs)], generations, step_ns=round(step)
    )


def test_a_comparison_becomes_a_step_with_and_without_and_an_interval() -> None:
    result = result_of("one", {"factor": 2}, compared(), 0.05)
    assert (result.step_ns, result.probed_ns) == (100 * NS_PER_MS, 60 * NS_PER_MS)
    assert result.saved_ns == pytest.approx((40 * NS_PER_MS, 40 * NS_PER_MS))
    assert not result.refused


def test_an_interval_of_one_generation_has_the_luck_of_processes_in_it() -> None:
    found = compared(generations=1)
    assert found.saving is not None
    assert found.saving.high == pytest.approx(0.4)
    assert result_of("one", {}, found, 0.05).saved_ns == pytest.approx((35 * NS_PER_MS, 45 * NS_PER_MS))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Comparison(failed=(PATCHED, ArmFailed(Trouble.REFUSED, "no loader"))), "no loader"),
        (
            Comparison(failed=(PATCHED, ArmFailed(Trouble.CRASHED, "the program exited\nValueError: x"))),
            "the program with the probe crashed: the program exited: ValueError: x",
        ),
        (
            Comparison(failed=(ORIGINAL, ArmFailed(Trouble.HUNG, "no answer in time"))),
            "the program as found, beside the probe, hung: no answer in time",
        ),
        (Comparison(ending=Ending.OUT_OF_TIME), "the budget left no time to end its trial"),
        (Comparison(ended_after=9), "the program ends before it could be measured"),
    ],
)
def test_where_there_is_no_answer_the_reason_is_told(found: Comparison, why: str) -> None:
    result = result_of("one", {}, found, 0.05)
    assert (result.refused, result.saved_ns) == (why, None)


def test_the_report_tells_steps_bearings_and_what_was_left() -> None:
    answered = bearing_on(saves(9, 11, left=("a wait at train.py:3",)), WHOLE, [finding("input-bound", 10)])
    slower = replace(saves(-2, 1), probe="two", setting={"factor": 2})
    text = as_text([answered, slower, ProbeResult("three", refused="no loader")], 120, colour=False)
    assert "one: 100 ms a step, 50.0 ms with the probe, which saves 9.00 ms to 11.0 ms (8 pairs)" in text
    assert "the probe agrees: 9.00 ms to 11.0 ms" in text
    assert "left as it is: a wait at train.py:3" in text
    assert "two with factor=2" in text
    assert "saves −2.00 ms to 1.00 ms" in text
    assert "three: no answer: no loader" in text


@pytest.mark.parametrize("render", [markdown.render, html.render, as_drawn], ids=["markdown", "page", "screen"])
def test_every_report_of_a_run_has_the_answers_of_its_probes(render: Callable[[State], str]) -> None:
    answered = bearing_on(saves(9, 11, left=("a wait",)), WHOLE, [finding("input-bound", 10)])
    said = render(State(probes=(answered,)))
    for words in ("100 ms a step, 50.0 ms with the probe", answered.findings[0].summary, "left as it is: a wait"):
        assert words in said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({0.5: 50, 1: 50, 2: 51, 4: 100}, "2 times the program's batch gives as many samples per second as any; twice"),
        ({0.5: 50, 1: 100, 2: 200}, "0.5 times the program's batch gives as many samples per second as any"),
        ({1: 50, 2: 80, 4: 120}, "samples per second grow up to the largest batch that was measured, 4 times"),
    ],
)
def test_a_sweep_says_where_samples_per_second_stop_growing(steps: dict[float, int], said: str) -> None:
    results = [
        replace(saves(0, 0), setting={"factor": factor}, probed_ns=took * NS_PER_MS) for factor, took in steps.items()
    ]
    text = " ".join(as_text(results, 200, colour=False).split())
    assert said in text
    assert ("the step waits for the host" in text) == (steps.get(2) == 51)


def test_a_sweep_of_sequences_counts_tokens() -> None:
    results = [
        replace(saves(0, 0), setting={"length": at}, probed_ns=took) for at, took in ((0.5, 10), (1, 20), (2, 60))
    ]
    text = " ".join(as_text(results, 200, colour=False).split())
    assert "0.5 times the program's length gives as many tokens per second as any" in text


def test_a_delay_says_how_much_of_it_the_step_shows() -> None:
    result = replace(saves(-10, -9), probed_ns=109 * NS_PER_MS, setting={"delayed": "host"}, delay_ns=10 * NS_PER_MS)
    assert "of a delay of 10.0 ms the step shows 90 %" in as_text([result], 160, colour=False)
