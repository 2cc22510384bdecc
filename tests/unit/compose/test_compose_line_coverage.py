"""What is predicted of a fixer that treats some of the lines that a finding is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from composing import SOURCE, Stage, finding, fixer, replacing

from diagnose import compose
from diagnose.compose import WITHOUT_ASKING
from diagnose.compose.proposals import candidates
from diagnose.compose.proposals.line_coverage import part_left, promised_ns, promised_share, promised_together_ns
from diagnose.compose.search.bundle import Bundle, gather
from diagnose.compose.stack.run_context import knowledge
from diagnose.compose.stack.stack import Stack
from diagnose.engine import DiagnosisWithClaims
from diagnose.fixer import Fixer
from diagnose.model import Accounting, Confidence, Decision, Diagnosis, Finding, Gate, Place, Severity, Steps, Verdict
from diagnose.plugins import Catalogue, load
from diagnose.program import Program
from diagnose.session import TrialStarted
from diagnose.trace import Trace

pytestmark = pytest.mark.usefixtures("nothing_new")

POINTWISE = Path(__file__).parents[3] / "benchmarks" / "sickbay" / "unfused_pointwise"
MS = 1_000_000
LOSS, MODEL = 3, 4


def on_lines(name: str, old: str, *rules: str) -> Fixer:
    return fixer(name, replacing(old, f"{old}0"), lines_of=rules or ("slow",))


ONE, OTHER = on_lines("one", "loss = 2"), on_lines("other", "model = 3")


def spread(*shares: tuple[int, float | None], names: Sequence[str] = ("one", "other")) -> Finding:
    """A finding of 10 ms, a bound, on lines of the program with these parts of it."""
    places = tuple(Place("train.py", line, share=share) for line, share in shares)
    return replace(finding("slow", 10, *names), where=places, confidence=Confidence.BOUND)


def told(folder: Path, found: Finding, *fixers: Fixer) -> dict[str, Verdict]:
    """What a look ahead says of each fixer, by name."""
    return told_of(folder, SOURCE, found, *fixers)


def told_of(folder: Path, text: str, found: Finding, *fixers: Fixer) -> dict[str, Verdict]:
    (folder / "train.py").write_text(text)
    program = Program.parse(["train.py"], cwd=folder)
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20 * MS), Accounting(), (found,))
    catalogue = Catalogue({}, {one.name: one for one in fixers})
    verdicts = compose.dry_run(program, diagnosis, [Trace("run")], catalogue, lambda _: None, frozenset(Gate))
    return {verdict.fixer: verdict for verdict in verdicts}


def gathered(folder: Path, text: str, found: Sequence[Finding], *fixers: Fixer) -> Bundle:
    (folder / "train.py").write_text(text)
    program = Program.parse(["train.py"], cwd=folder)
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20 * MS), Accounting(), tuple(found))
    catalogue = Catalogue({}, {one.name: one for one in fixers})
    stack = Stack.of(program, knowledge(program, diagnosis, [Trace("run")]))
    return gather(stack, list(candidates.candidates(program, found, catalogue)), WITHOUT_ASKING)


def written_out() -> Finding:
    """What a run of the sick program on an H200 said of each line; `native-norm` was measured to save 11.0 ms, then
    `native-gelu` 10.8 ms."""
    lines = POINTWISE.joinpath("train.py").read_text().splitlines()
    shares = {"torch.tanh": 0.533, "scaled = ": 0.223, "return scaled": 0.140, "single = ": 0.104}
    known = [
        Place("train.py", next(at for at, line in enumerate(lines, 1) if code in line), share=share)
        for code, share in shares.items()
    ]
    caller = Place("train.py", next(at for at, line in enumerate(lines, 1) if "self.down(gelu(" in line))
    names = ("native-norm", "native-gelu")
    where = (known[0], caller, *known[1:])
    bound = Confidence.BOUND
    return Finding("unfused-pointwise", Severity.HIGH, 0, 22_909_017, 0.4, bound, "chains", where=where, fixers=names)


def test_each_of_two_fixers_is_predicted_by_its_lines_of_a_program_that_needs_both(tmp_path: Path) -> None:
    fixers = [load().fixers[name] for name in ("native-norm", "native-gelu")]
    verdicts = told_of(tmp_path, (POINTWISE / "train.py").read_text(), written_out(), *fixers)
    norm, gelu = verdicts["native-norm"], verdicts["native-gelu"]
    assert norm.predicted_ns == pytest.approx(10.7 * MS, rel=0.01)
    assert gelu.predicted_ns == pytest.approx(12.2 * MS, rel=0.01)
    assert norm.prediction is gelu.prediction is Confidence.BOUND


def test_both_at_once_are_predicted_to_save_the_whole(tmp_path: Path) -> None:
    fixers = [load().fixers[name] for name in ("native-norm", "native-gelu")]
    bundle = gathered(tmp_path, (POINTWISE / "train.py").read_text(), [written_out()], *fixers)
    assert len(bundle.members) == 2
    assert bundle.predicted_ns == 22_909_017


def test_only_lines_that_are_known_to_be_elsewhere_are_taken_off(tmp_path: Path) -> None:
    """A tenth is on lines that are not told: it may be any fixer's."""
    verdicts = told(tmp_path, spread((LOSS, 0.6), (MODEL, 0.3)), ONE, OTHER)
    assert (verdicts["one"].predicted_ns, verdicts["other"].predicted_ns) == (7 * MS, 4 * MS)


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([], id="no line"),
        pytest.param([(LOSS, None), (MODEL, None)], id="lines of unknown cost"),
        pytest.param([(LOSS, None), (MODEL, 0.9)], id="its own line's cost is unknown"),
        pytest.param([(1, 0.5), (MODEL, 0.5)], id="no line of its own"),
        pytest.param([(LOSS, 1.0)], id="its own line alone"),
    ],
)
def test_where_no_line_of_its_own_and_one_of_another_is_known_the_whole_is_predicted(
    tmp_path: Path, shares: list[tuple[int, float | None]]
) -> None:
    assert told(tmp_path, spread(*shares), ONE)["one"].predicted_ns == 10 * MS


def test_a_fixer_that_may_save_elsewhere_too_is_predicted_to_save_the_whole(tmp_path: Path) -> None:
    """A compiler that is turned on in one line makes all others faster, and so may a fixer of other rules' lines."""
    for rules in ((), ("other-rule",)):
        anywhere = replace(ONE, lines_of=rules)
        assert told(tmp_path, spread((LOSS, 0.6), (MODEL, 0.4)), anywhere)["one"].predicted_ns == 10 * MS


def test_a_part_of_what_was_measured_is_an_estimate_and_the_whole_is_none(tmp_path: Path) -> None:
    measured = replace(spread((LOSS, 0.6), (MODEL, 0.4)), confidence=Confidence.MEASURED)
    assert told(tmp_path, measured, ONE)["one"].prediction is Confidence.HINT
    whole = replace(measured, where=measured.where[:1])
    assert told(tmp_path, whole, ONE)["one"].prediction is Confidence.MEASURED


CALLS = """\
def half(x):
    return quarter(x) * 2


def quarter(x):
    return x / 4


def other(x):
    return x


y = half(1)
z = other(
    2,
)
"""


def test_what_a_rewritten_line_calls_goes_with_it(tmp_path: Path) -> None:
    """The operator that takes the place of a call does the work of the function, and of those that it calls."""
    inlined = on_lines("one", "y = half(1)")
    found = spread((13, 0.2), (2, 0.3), (6, 0.1), (10, 0.4), names=("one",))
    assert told_of(tmp_path, CALLS, found, inlined)["one"].predicted_ns == 6 * MS


def test_a_statement_of_several_lines_is_rewritten_where_one_of_them_is(tmp_path: Path) -> None:
    inner = on_lines("one", "    2,")
    found = spread((14, 0.5), (6, 0.3), (2, 0.2), names=("one",))
    assert told_of(tmp_path, CALLS, found, inner)["one"].predicted_ns == 5 * MS


def test_a_line_that_is_only_put_in_rewrites_none(tmp_path: Path) -> None:
    above = fixer("one", replacing("loss = 2", "more = 1\nloss = 2"), lines_of=("slow",))
    assert told(tmp_path, spread((LOSS, 0.6), (MODEL, 0.4)), above)["one"].predicted_ns == 10 * MS


@pytest.mark.parametrize("between", ["\x0c\n", "note = 'a\u2028b'\n"], ids=["form feed", "line separator"])
def test_lines_are_those_that_python_counts(tmp_path: Path, between: str) -> None:
    found = spread((3, 0.6), (4, 0.4))
    assert told_of(tmp_path, f"import torch\n{between}loss = 2\nmodel = 3\n", found, ONE)["one"].predicted_ns == 6 * MS


def test_a_file_that_is_no_python_is_taken_line_by_line(tmp_path: Path) -> None:
    text = "print 1\nloss = 2\nmodel = 3\n"
    found = spread((2, 0.6), (3, 0.4))
    assert told_of(tmp_path, text, found, ONE)["one"].predicted_ns == 6 * MS


def test_the_turn_of_a_fixer_is_that_of_the_whole_finding(tmp_path: Path) -> None:
    """What rewrites the least of a finding is tried before what changes all of it, by order class as ever."""
    everything = fixer("compile", replacing("import torch", "import torch as t"), order=60)
    found = spread((LOSS, 0.6), (MODEL, 0.4), names=("compile", "one", "other"))
    decisions = dict.fromkeys(("one", "other", "compile"), Decision.NO_CHANGE)
    stage = Stage(tmp_path, [everything, ONE, OTHER], [found], decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts if name in decisions] == ["one", "other", "compile"]


def test_a_trial_begins_with_the_part_and_its_verdict_keeps_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [ONE], [spread((LOSS, 0.6), (MODEL, 0.4), names=("one",))], {"one": Decision.NO_CHANGE})
    (verdict,) = stage.run().verdicts
    (started,) = [event for event in stage.events if isinstance(event, TrialStarted)]
    assert started.predicted_ns == verdict.predicted_ns == 6 * MS


def test_parts_from_before_a_kept_fix_divide_nothing_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window of a trial knows no lines: those of the first run still stand, but the kept fix's cost is gone."""
    left = replace(spread(names=("other",)), recoverable_ns=4 * MS)
    answer = Diagnosis(1, (), 1, None, Steps(4, 14 * MS, 14 * MS), Accounting(), (left,))
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [Trace("patched arm")])
    monkeypatch.setattr(candidates, "examine", lambda _traces, _catalogue: DiagnosisWithClaims(answer, {}))
    decisions = {"one": Decision.KEPT, "other": Decision.NO_CHANGE}
    stage = Stage(tmp_path, [ONE, OTHER], [spread((LOSS, 0.6), (MODEL, 0.4))], decisions)
    first, second = stage.run().verdicts
    assert (first.predicted_ns, second.predicted_ns) == (6 * MS, 4 * MS)
    assert [place.line for place in second.where] == [LOSS, MODEL]


def test_parts_of_one_finding_add_up_to_no_more_than_the_whole(tmp_path: Path) -> None:
    """Parts that lie beside each other are added; what both may be after, a tenth, is counted once."""
    found = spread((LOSS, 0.6), (MODEL, 0.3))
    assert gathered(tmp_path, SOURCE, [found], ONE, OTHER).predicted_ns == 10 * MS
    nobodys = spread((LOSS, 0.5), (MODEL, 0.2), (2, 0.2))
    assert gathered(tmp_path, SOURCE, [nobodys], ONE, OTHER).predicted_ns == 8 * MS


def test_beside_one_that_treats_the_whole_a_part_adds_nothing() -> None:
    found = spread((LOSS, 0.6), (MODEL, 0.4))
    assert promised_together_ns([(found, frozenset({1})), (found, frozenset())]) == 10 * MS
    assert promised_together_ns([(found, frozenset({1}))]) == 6 * MS


def test_a_part_promises_its_part_of_the_whole() -> None:
    found = spread((LOSS, 0.6), (MODEL, 0.4))
    assert part_left(found, frozenset({0})) == pytest.approx(0.4)
    assert promised_ns(found, frozenset({0})) == 4 * MS
    assert promised_share(found, frozenset({0})) == pytest.approx(0.4 * found.share)
    assert promised_ns(found) == found.recoverable_ns
