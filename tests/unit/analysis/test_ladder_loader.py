"""A ladder does not lead below the step that the loader's workers keep up with, until a rung treats the loader."""

from __future__ import annotations

from dataclasses import replace

from diagnose.analysis.ladder import ladder_of
from diagnose.measure import Measures
from diagnose.measure.steps.loader_capacity import busy_loader_ns
from diagnose.model import Accounting, Confidence, Diagnosis, Facts, Finding, RankAccounting, Severity, Site, Steps
from diagnose.report.sections.ladder import summary
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn

MS = 1_000_000


def diagnosis(*rules: tuple[str, int]) -> Diagnosis:
    """A step of 60 ms in which each of these is measured to save so many milliseconds."""
    found = [
        Finding(rule, Severity.HIGH, None, saves * MS, saves / 60, Confidence.MEASURED, "") for rule, saves in rules
    ]
    steps = Steps(1, 60 * MS, 60 * MS, 60 * MS, "optimizer")
    return Diagnosis(1, ("r",), 1, None, steps, Accounting(compute=60 * MS), tuple(found), step_ns=60 * MS)


def test_what_makes_the_device_faster_does_not_make_the_workers_faster() -> None:
    ladder = ladder_of(diagnosis(("low-precision-headroom", 30)), None, lambda _: False, loader_ns=50 * MS)
    assert ladder is not None
    (rung,) = ladder.rungs
    assert rung.likely_ns == rung.step_ns[0] == 50 * MS
    assert "Below 50.0 ms its loader's workers, as they are, do not keep up." in summary(ladder)


def test_a_rung_that_treats_the_loader_leads_below() -> None:
    given = diagnosis(("low-precision-headroom", 30), ("input-bound", 10))
    ladder = ladder_of(given, None, lambda _: False, loader_ns=50 * MS)
    assert ladder is not None
    assert [rung.likely_ns for rung in ladder.rungs] == [50 * MS, 40 * MS]


def test_a_loader_that_keeps_up_with_all_rungs_is_no_matter() -> None:
    ladder = ladder_of(diagnosis(("low-precision-headroom", 30)), None, lambda _: False, loader_ns=20 * MS)
    assert ladder is not None
    assert ladder.rungs[0].likely_ns == 30 * MS
    assert "keep up" not in summary(ladder)


def test_a_loader_that_nobody_watched_is_an_open_question_until_a_rung_treats_it() -> None:
    waits = Accounting(compute=59 * MS, idle={"input": MS})
    question = "Whether its loader keeps up with shorter steps is not known."
    for rules, asked in (((("memory-bound", 30),), True), ((("memory-bound", 30), ("input-bound", 1)), False)):
        given = diagnosis(*rules)
        rank = RankAccounting(0, "r", given.steps, waits)
        for ranks, loader_ns, open_question in (((rank,), None, asked), ((), None, False), ((rank,), 20 * MS, False)):
            ladder = ladder_of(replace(given, per_rank=ranks), None, lambda _: False, loader_ns)
            assert ladder is not None
            assert (question in summary(ladder)) == open_question


def test_no_loader_however_fast_takes_from_the_time_in_which_the_device_computes() -> None:
    """Of 60 ms the device waits for input in 30; what is measured as that saves up to 2.2 times as much elsewhere."""
    given = diagnosis(("input-bound", 30))
    spent = Accounting(compute=25 * MS, idle={"input": 30 * MS, "dispatch": 5 * MS})
    known = replace(given, per_rank=(RankAccounting(0, "r", given.steps, spent),), has_device=True)
    lows = []
    for one in (known, replace(known, has_device=False)):
        ladder = ladder_of(one, None, lambda _: False)
        assert ladder is not None
        lows.append(ladder.rungs[0].step_ns[0])
    assert lows == [25 * MS, 0]


def watched(busy: float, workers: float, cores: int | None = None, num_workers: int = 4) -> Trace:
    """Steps of 10 ms beside which workers were read to be busy, in percent of a core."""
    return drawn(
        """
        host: oo........
        opt :          O
        """,
        repeat=4,
        counted={"host.workers_cpu": [busy] * 3, "host.workers": [workers] * 3},
        sites=[Site("DataLoader", "train.py", 3, "main", {"num_workers": num_workers})],
        facts=Facts(cpu_count=cores),
    )


def test_workers_keep_up_with_what_they_compute_for_a_step() -> None:
    assert busy_loader_ns(Measures(watched(200.0, 4.0))) == 5 * MS
    assert busy_loader_ns(Measures(watched(200.0, 8.0, cores=2))) == 10 * MS, "two cores are all busy"


def test_without_workers_or_readings_nobody_knows() -> None:
    assert busy_loader_ns(Measures(watched(200.0, 4.0, num_workers=0))) is None
    assert busy_loader_ns(Measures(drawn("host: oo\nopt :  O", repeat=4))) is None
