"""Traces in, ranked findings out: claims are settled, ranked, merged over ranks, and nothing is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose import plugins
from diagnose.engine import diagnose, examine
from diagnose.model import CannotTell, Confidence, Facts, Severity
from diagnose.plugins import Catalogue, Problem
from diagnose.rule import Claim, Evidence, Intervals, Measures, Place, Rule, Trace, drawn
from diagnose.trace.schema import Counters

MS = 1_000_000
TEN_MS = drawn("gpu : kkkkkkkkkk")


def claiming(name: str, start: int, end: int, **other: Any) -> Rule:
    """A rule that claims [start, end) milliseconds, all of it recoverable unless told otherwise."""

    def check(_: Measures) -> Iterator[Claim]:
        given = {"recoverable_ns": (end - start) * MS} | other
        yield Claim(f"{name} costs time", claims=Intervals.of([start * MS], [end * MS]), **given)

    return Rule(name, check, nearness=nearness.get(name, 50))


nearness = {"near": 10, "far": 90}


def catalogue(*rules: Rule) -> Catalogue:
    return Catalogue({rule.name: rule for rule in rules}, {})


def found(*rules: Rule, trace: Trace = TEN_MS) -> list[tuple[str, int]]:
    """Rules and milliseconds of the findings."""
    return [(finding.rule, finding.recoverable_ns // MS) for finding in diagnose([trace], catalogue(*rules)).findings]


def test_what_ends_the_run_comes_before_what_costs_little() -> None:
    leak = claiming("leak", 0, 0, confidence=Confidence.HINT, ends_run=True)
    mere_hint = claiming("hint", 0, 0, confidence=Confidence.HINT)
    little = drawn("gpu : " + "k" * 100)
    costs = claiming("heavy", 0, 6), claiming("light", 10, 13)
    assert [rule for rule, _ in found(leak, mere_hint, *costs, trace=little)] == ["leak", "heavy", "light", "hint"]


def test_findings_are_sorted_by_what_they_give_back() -> None:
    assert found(claiming("small", 0, 1), claiming("large", 5, 9)) == [("large", 4), ("small", 1)]


def test_no_nanosecond_is_found_twice() -> None:
    assert found(claiming("large", 0, 6), claiming("small", 4, 8)) == [("large", 6), ("small", 2)]


def test_of_equal_claims_the_one_nearest_the_source_wins() -> None:
    diagnosis = diagnose([TEN_MS], catalogue(claiming("far", 0, 4), claiming("near", 2, 6)))
    assert [(finding.rule, finding.recoverable_ns) for finding in diagnosis.findings] == [
        ("near", 4 * MS),
        ("far", 2 * MS),
    ]
    assert diagnosis.findings[1].evidence == (Evidence("also claimed by near", 2 * MS, "ns"),)


def test_a_finding_names_no_claim_that_came_to_nothing() -> None:
    (finding,) = diagnose([TEN_MS], catalogue(claiming("far", 2, 6), claiming("near", 2, 6))).findings
    assert (finding.rule, finding.evidence) == ("near", ())


def test_a_claim_that_loses_half_its_time_loses_half_its_gain() -> None:
    assert found(claiming("whole", 0, 6), claiming("half", 2, 10, recoverable_ns=4 * MS)) == [("whole", 6), ("half", 2)]


def test_a_claim_cannot_give_back_more_than_it_claims() -> None:
    assert found(claiming("greedy", 0, 3, recoverable_ns=99 * MS)) == [("greedy", 3)]
    assert found(claiming("outside", 20, 30)) == []


@pytest.mark.parametrize(("length", "severity"), [(20, "high"), (6, "medium"), (3, "low"), (1, "note")])
def test_severity_is_the_share_of_the_step(length: int, severity: str) -> None:
    trace = drawn("gpu : " + "k" * 100)
    assert diagnose([trace], catalogue(claiming("some", 0, length))).findings[0].severity is Severity(severity)


def test_what_no_trial_could_resolve_is_no_finding() -> None:
    trace = drawn("gpu : " + "k" * 1000)
    assert found(claiming("tiny", 0, 4), trace=trace) == []
    assert found(claiming("enough", 0, 6), trace=trace) == [("enough", 6)]


def test_a_hint_without_a_figure_is_kept_as_a_note() -> None:
    rule = claiming("pattern", 0, 0, recoverable_ns=0, confidence=Confidence.HINT)
    assert diagnose([TEN_MS], catalogue(rule)).findings[0].severity is Severity.NOTE


def test_what_will_end_the_run_comes_before_what_costs_little() -> None:
    leak = claiming("leak", 0, 0, recoverable_ns=0, confidence=Confidence.HINT, ends_run=True)
    findings = diagnose([TEN_MS], catalogue(claiming("some", 0, 6), leak)).findings
    assert (findings[0].rule, findings[0].severity) == ("leak", Severity.MEDIUM)


def test_figures_are_per_step() -> None:
    trace = drawn("gpu : kkkkkkkkk.\nstep:           |", repeat=4)
    diagnosis = diagnose([trace], catalogue(claiming("some", 12, 28)))
    assert (diagnosis.steps.count, diagnosis.steps.median_ns) == (3, 10 * MS)
    assert diagnosis.findings[0].recoverable_ns == 16 * MS // 3


def test_what_one_of_several_steps_has_is_a_bound_and_not_sure() -> None:
    trace = drawn("host: oooooooooo\nstep:           |", repeat=4)
    (once,) = diagnose([trace], catalogue(claiming("once", 10, 18))).findings
    assert (once.recoverable_ns, once.possible_ns) == (0, 8 * MS // 3)
    assert (once.severity, once.confidence) == (Severity.NOTE, Confidence.BOUND)
    assert once.confirm == "one of the 3 counted steps has most of this time: trace more steps"
    (uneven,) = diagnose([trace], catalogue(claiming("uneven", 10, 21))).findings
    assert uneven.recoverable_ns == pytest.approx(2 * MS / 3, rel=0.01), "the second step has 1 ms of it as well"
    (both,) = diagnose([trace], catalogue(claiming("both", 10, 26))).findings
    assert (both.possible_ns, both.confidence) == (None, Confidence.MEASURED)


def test_the_raw_claims_are_told_beside_the_diagnosis() -> None:
    trace = drawn("gpu : " + "k" * 1000)
    rules = claiming("tiny", 0, 4), claiming("large", 0, 900), claiming("covered", 100, 200), Rule("none", lambda _: [])
    seen = examine([trace], catalogue(*rules))
    assert seen.claimed == {"tiny": 0.004, "large": 0.9, "covered": 0.1}
    assert [finding.rule for finding in seen.diagnosis.findings] == ["large"]


def test_a_small_claim_under_the_noise_of_the_steps_is_dropped_and_a_large_one_doubted() -> None:
    trace = drawn("host: " + "o" * 40 + "\nstep: |        |       |           |          |")
    assert found(claiming("below", 10, 11, recoverable_ns=MS // 2), trace=trace) == []
    large = diagnose([trace], catalogue(claiming("large", 10, 12))).findings[0]
    assert large.confirm is not None
    assert "trace more steps" in large.confirm


def test_a_rule_that_raises_becomes_a_warning() -> None:
    def check(_: Measures) -> Iterator[Claim]:
        raise KeyError("broken")

    diagnosis = diagnose([TEN_MS], catalogue(Rule("bad", check), claiming("good", 0, 5)))
    assert [finding.rule for finding in diagnosis.findings] == ["good"]
    assert diagnosis.warnings[0] == "rule bad failed and was left out: KeyError: 'broken'"


@pytest.mark.parametrize("row", [-1, 1])
def test_a_rule_that_names_rows_which_its_table_does_not_have_becomes_a_warning(row: int) -> None:
    def check(measures: Measures) -> Iterator[Claim]:
        yield Claim("no", 5 * MS, measures.counted, evidence=[Evidence("kernels", 1, "count", (0, row))])

    diagnosis = diagnose([TEN_MS], catalogue(Rule("bad", check), claiming("good", 0, 5)))
    assert [finding.rule for finding in diagnosis.findings] == ["good"]
    assert diagnosis.warnings[0].endswith("IndexError: `kernels` names rows beyond the 1 of the table `device`")


def test_a_module_that_does_not_load_is_said() -> None:
    broken = Catalogue({}, {}, (Problem("my.rules.new", "SyntaxError: here"),))
    assert diagnose([TEN_MS], broken).warnings[0] == "my.rules.new could not be loaded: SyntaxError: here"


def test_what_cannot_be_told_is_listed_once_and_not_beside_a_finding() -> None:
    def check(measures: Measures) -> Iterator[CannotTell | Claim]:
        yield CannotTell("some", "more data")
        if measures.trace.rank == 1:
            yield from claiming("some", 0, 5).check(measures)

    silent = [drawn("gpu : kkkkkkkkkk", rank=0), drawn("gpu : kkkkkkkkkk", rank=2)]
    assert diagnose(silent, catalogue(Rule("some", check))).cannot_tell == (CannotTell("some", "more data"),)
    assert diagnose([*silent, drawn("gpu : kkkkkkkkkk", rank=1)], catalogue(Rule("some", check))).cannot_tell == ()


def test_what_all_ranks_have_is_one_finding_of_the_job() -> None:
    ranks = [drawn("gpu : " + "k" * length, rank=rank) for rank, length in enumerate((10, 20))]

    def check(measures: Measures) -> Iterator[Claim]:
        yield Claim("half", measures.total_ns // 2, measures.counted)

    diagnosis = diagnose(ranks, catalogue(Rule("half", check)))
    (finding,) = diagnosis.findings
    assert (finding.rank, finding.recoverable_ns) == (None, 10 * MS)
    assert diagnosis.accounting.total_ns == diagnosis.steps.median_ns == 20 * MS
    assert [(entry.rank, entry.accounting.total_ns) for entry in diagnosis.per_rank] == [(0, 10 * MS), (1, 20 * MS)]


def test_what_some_ranks_have_names_them() -> None:
    def check(measures: Measures) -> Iterator[Claim]:
        if measures.trace.rank in (1, 2):
            yield Claim("late", measures.trace.rank * 2 * MS, measures.counted)

    ranks = [drawn("gpu : kkkkkkkkkk", rank=rank) for rank in range(3)]
    (finding,) = diagnose(ranks, catalogue(Rule("late", check))).findings
    assert (finding.rank, finding.summary) == (2, "late; also on rank 1")


def test_only_fixers_that_exist_are_named() -> None:
    rule = claiming("some", 0, 5, fixers=("unheard-of", "loader-workers"))
    every = plugins.load()
    with_fixers = Catalogue({"some": rule}, every.fixers)
    assert diagnose([TEN_MS], with_fixers).findings[0].fixers == ("loader-workers",)


def test_a_line_that_can_be_read_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n    loss = step().item()\n", encoding="utf-8")
    rule = claiming("some", 0, 5, where=[Place(str(script), 2), Place("gone.py", 7)])
    there, gone = diagnose([TEN_MS], catalogue(rule)).findings[0].where
    assert (there.code, gone.code) == ("loss = step().item()", None)


def test_a_profiler_that_slows_the_steps_is_said() -> None:
    trace = drawn("gpu : kkkk      \nstep:          |", repeat=4, facts=Facts(step_ns_watched=5 * MS))
    assert "1.80 times as long" in " ".join(diagnose([trace], catalogue()).warnings)


def test_a_host_that_was_ahead_of_its_device_does_not_tell_what_the_profiler_cost() -> None:
    trace = drawn("gpu : kkkkkkkkkk\nstep:          |", repeat=4, facts=Facts(step_ns_watched=5 * MS))
    assert "times as long" not in " ".join(diagnose([trace], catalogue()).warnings)


def test_a_recording_of_nothing_is_a_diagnosis_of_nothing() -> None:
    diagnosis = diagnose([Trace(source="nothing")], plugins.load())
    assert (diagnosis.steps.count, diagnosis.steps.median_ns, diagnosis.findings) == (0, None, ())
    assert "no step was found" in diagnosis.warnings[0]
    assert diagnose([], plugins.load()).ranks == 0


def test_telemetry_alone_is_told_with_its_ranges() -> None:
    names = ("gpu.power_watts", "gpu.memory_used_bytes", "gpu.utilization", "gpu.throttle_reasons")
    read = [(0, 0, 71.0), (0, 1, 690.0), (1, 0, 4 << 20), (1, 1, 4 << 20), (2, 0, 0.0), (2, 1, 98.0), (3, 0, 4.0)]
    name, device, value = zip(*read, strict=True)
    counters = Counters.build({"time_ns": [MS] * len(read), "name": name, "device": device, "value": value})
    (said,) = diagnose([Trace(source="gpu.csv", names=names, counters=counters)], catalogue()).warnings
    assert said == (
        "it holds no work, only readings of 2 devices: power 71.0 … 690 W, memory used 4.00 MiB, utilization "
        "0.00 … 98.0 %; put it beside a trace of the run, in one folder"
    )


HEALTHY = drawn(
    """
    load:   ww      ww      ww      ww      ww
    host: ololol  ololol  ololol  ololol  ololol
    gpu :   kkkKKKnnnkkkKKKnnnkkkKKKnnnkkkKKKnnnkkkKKKnnn
    opt :      O       O       O       O       O
    """,
    kernels={"k": "nvjet_tst_128x256_64x4", "K": "sm90_xmma_gemm_bf16bf16", "n": "FusedAdamMathFunctor"},
)


def test_a_healthy_run_has_nothing_to_fix_first() -> None:
    severe = (Severity.HIGH, Severity.MEDIUM)
    assert [finding for finding in diagnose([HEALTHY], plugins.load()).findings if finding.severity in severe] == []
