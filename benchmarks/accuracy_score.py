"""Diagnoses what `accuracy record` left, and compares the answers with what is known of the programs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from accuracy_programs import Program

from diagnose.engine import diagnose
from diagnose.model import Confidence, Diagnosis, Finding, Severity
from diagnose.plugins import Catalogue, load_rules
from diagnose.trace.readers import open_traces

VIEWS = {"run": "run", "stack": "plain/stack", "bare": "plain/bare"}
"""What can be known of a program: a run folder, a profile with shapes and stacks, one with neither."""
WITH_LINES = ("run", "stack")
_WEIGHTY = (Severity.HIGH, Severity.MEDIUM)


@dataclass(frozen=True)
class Answer:
    """The diagnosis of one program in one view, beside the truth."""

    program: str
    view: str
    ailment: str
    first: str | None
    """The rule of the first finding on the ailing program."""
    place: int | None
    """Where the ailment stands among its findings, from 1; None where it was not found."""
    is_line_right: bool | None
    """None where there is no line at fault, or the view knows no lines; of a profile's stacks, the function."""
    said_line: str | None
    others: tuple[str, ...]
    """High and medium findings on the ailing program that are not true of it."""
    false: tuple[str, ...] | None
    """High and medium findings on the healthy program; None where it was not recorded."""
    predicted_ns: int | None
    """Recoverable time of the ailment's finding."""
    measured_ns: int | None
    """Step of the ailing program less the same work of the healthy one, neither of them profiled."""
    step_ns: int | None

    @property
    def is_hit(self) -> bool:
        """Whether the first finding is the ailment."""
        return self.place == 1

    @property
    def saving_error(self) -> float | None:
        """Prediction against measurement, as a share of the measured saving."""
        if self.predicted_ns is None or not self.measured_ns or self.measured_ns <= 0:
            return None
        return (self.predicted_ns - self.measured_ns) / self.measured_ns


def score(out: Path, programs: Sequence[Program]) -> list[Answer]:
    """An answer for each program and view that was recorded."""
    catalogue = load_rules()
    return [
        answer
        for program in programs
        for view in VIEWS
        if (answer := _answer(out / program.name, program, view, catalogue)) is not None
    ]


def _answer(folder: Path, program: Program, view: str, catalogue: Catalogue) -> Answer | None:
    ailing = _diagnosis(folder / "train" / VIEWS[view], catalogue)
    healthy = _diagnosis(folder / "healthy" / VIEWS[view], catalogue)
    if ailing is None and (program.ailment or healthy is None):
        return None
    findings = ailing.findings if ailing else ()
    place = next((number for number, found in enumerate(findings, 1) if found.rule == program.ailment), None)
    finding = findings[place - 1] if place else None
    accepted = {program.ailment, *program.also}
    said = finding.where[0] if finding and finding.where else None
    return Answer(
        program=program.name,
        view=view,
        ailment=program.ailment,
        first=findings[0].rule if findings else None,
        place=place,
        is_line_right=_is_line_right(program, view, finding),
        said_line=f"{PurePath(said.file).name}:{said.line}" if said else None,
        others=tuple(found.rule for found in findings if found.severity in _WEIGHTY and found.rule not in accepted),
        false=None if healthy is None else _weighty(healthy, program.healthy_also),
        predicted_ns=None if finding is None else predicted_ns(finding),
        measured_ns=_saving_ns(folder, program.work_ratio),
        step_ns=_step_ns(folder / ("train" if program.ailment else "healthy")),
    )


def predicted_ns(finding: Finding) -> int | None:
    """The saving that is predicted. A hint says that it is not known, which is no prediction of nothing."""
    return None if finding.confidence is Confidence.HINT else finding.estimate_ns


def _diagnosis(recording: Path, catalogue: Catalogue) -> Diagnosis | None:
    return diagnose(open_traces([recording]), catalogue) if any(recording.rglob("*.gz")) else None


def _weighty(diagnosis: Diagnosis, accepted: frozenset[str]) -> tuple[str, ...]:
    found = (one.rule for one in diagnosis.findings if one.severity in _WEIGHTY)
    return tuple(rule for rule in found if rule not in accepted)


def _is_line_right(program: Program, view: str, finding: Finding | None) -> bool | None:
    lines = program.lines()
    if not lines or finding is None or view not in WITH_LINES:
        return None
    if not finding.where or PurePath(finding.where[0].file).name != program.where:
        return False
    line = finding.where[0].line
    # A profile's stacks name functions: the lines in them are where functions begin, or stood when it began.
    return line in lines or (view == "stack" and any(line in function for function in program.functions()))


def _step_ns(arm: Path) -> int | None:
    """The slowest rank's step without a profiler."""
    records = [json.loads(path.read_text()) for path in arm.glob("plain/timing/*.json")]
    return max((int(record["step_ns"]) for record in records), default=None)


def _saving_ns(folder: Path, work_ratio: float) -> int | None:
    ailing, healthy = _step_ns(folder / "train"), _step_ns(folder / "healthy")
    return None if ailing is None or healthy is None else ailing - round(healthy / work_ratio)


# -- for people ---------------------------------------------------------------------------------------------------


def table(answers: Sequence[Answer]) -> str:
    """A line a program and view, then the totals."""
    head = (
        f"{'program':<28} {'view':<6} {'first finding':<24} {'hit':<4} {'line':<5} {'predicted':>10} {'measured':>10}"
    )
    rows = [f"{head} {'error':>6}  high or medium that is not so", *map(_row, answers), "", *totals(answers)]
    return "\n".join(rows)


def _row(answer: Answer) -> str:
    hit = "" if not answer.ailment else "yes" if answer.is_hit else f"{answer.place}." if answer.place else "no"
    line = {None: "", True: "yes", False: "no"}[answer.is_line_right]
    error = "" if answer.saving_error is None else f"{answer.saving_error:+.0%}"
    wrong = [f"healthy: {', '.join(answer.false)}"] if answer.false else []
    wrong += [f"ailing: {', '.join(answer.others)}"] if answer.others else []
    if answer.is_line_right is False:
        wrong.append(f"line: {answer.said_line or 'none'}")
    return (
        f"{answer.program:<28} {answer.view:<6} {answer.first or '-':<24} {hit:<4} {line:<5} "
        f"{_ms(answer.predicted_ns):>10} {_ms(answer.measured_ns):>10} {error:>6}  {'; '.join(wrong)}"
    ).rstrip()


def totals(answers: Sequence[Answer]) -> Iterator[str]:
    """The published figures, a line a view."""
    for view, named in figures(answers):
        yield f"{view:<6} {', '.join(f'{name} {figure}' for name, figure in named.items())}"


def figures(answers: Sequence[Answer]) -> Iterator[tuple[str, dict[str, str]]]:
    """The published figures by view, each with its name."""
    for view in VIEWS:
        of_view = [answer for answer in answers if answer.view == view]
        ailing = [answer for answer in of_view if answer.ailment]
        if not of_view:
            continue
        pointed = [answer for answer in ailing if answer.is_line_right is not None]
        errors = [abs(answer.saving_error) for answer in ailing if answer.is_hit and answer.saving_error is not None]
        yield (
            view,
            {
                "first": _share(ailing, lambda answer: answer.is_hit),
                "found": _share(ailing, lambda answer: answer.place is not None),
                "line": _share(pointed, lambda answer: answer.is_line_right),
                "false on healthy": _share([a for a in of_view if a.false is not None], lambda answer: answer.false),
                "saving off by": f"{statistics.median(errors) if errors else math.nan:.0%} (median of {len(errors)})",
                "beyond a factor of two": _share(ailing, _is_beyond_two),
            },
        )


def _is_beyond_two(answer: Answer) -> bool:
    error = answer.saving_error
    return answer.is_hit and error is not None and not -0.5 <= error <= 1.0


def _share(answers: Sequence[Answer], holds: Callable[[Answer], object]) -> str:
    return f"{sum(bool(holds(answer)) for answer in answers)} of {len(answers)}" if answers else "-"


def _ms(time_ns: int | None) -> str:
    return "" if time_ns is None else f"{time_ns / 1e6:.2f} ms"
