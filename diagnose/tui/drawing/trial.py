"""One fix in detail: its pairs of blocks, how its interval narrowed, and what its verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from diagnose.model import Decision, Verdict
from diagnose.report.sections.verdict_table import is_idle, remark
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import place
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import MUTED, Look, named_count
from diagnose.report.wording.phrases import begun, particulars, sentence
from diagnose.session import TrialBlock, TrialState
from diagnose.tui.drawing.chart import narrowing
from diagnose.tui.drawing.diff_lines import diff_lines
from diagnose.tui.theme import FAINT, STEP
from diagnose.units import format_ns, format_setting

_CHART, _HIGHEST_CHART = 7, 15  # rows
_NAME = 12
_TICKS = "▁▂▃▄▅▆▇█"


def trial_lines(
    trial: TrialState | None,
    verdict: Verdict | None,
    look: Look,
    resolution: float,
    width: int,
    root: str | None = None,
    rows: int = 0,
) -> list[Text]:
    """The details of one fix in lines of `width` columns; its chart grows with the `rows` that there are."""
    name = verdict.fixer if verdict else trial.started.fixer if trial else ""
    if trial is None and verdict is None:
        return [styled("This fix has not been tried yet.", FAINT)]
    head = styled(f"{look.mark} {look.label}  ", f"bold {look.colour}").append(name, "bold")
    words = _said(verdict) if verdict else trial.started.summary if trial else ""
    lines = [head, *(styled(line) for line in wrap(sentence(words), width) if line), Text()]
    if verdict is not None:
        lines += _particulars([*_untried(verdict, root), *particulars(verdict)], width)
    elif trial is not None:
        lines += _particulars(_so_far(trial), width)
    if trial is not None and trial.blocks:
        if verdict is not None:
            lines.append(Text())
        lines += _pairs(trial.blocks, look, resolution, width, min(max(rows // 4, _CHART), _HIGHEST_CHART))
    diff = (verdict.diff if verdict else "") or (trial.started.diff if trial else "")
    return [*lines, Text(), *diff_lines(diff, width)] if diff else lines


def _said(verdict: Verdict) -> str:
    """The sentence of a verdict, of a kept one without the figures that follow it."""
    if is_idle(verdict):
        return begun(f"{verdict.summary}. `diagnose explain {verdict.fixer}` says what it changes")
    return begun(remark(verdict) if verdict.decision is Decision.KEPT else verdict.summary)


def _untried(verdict: Verdict, root: str | None) -> list[tuple[str, str]]:
    """Return what is known of a fix that had no trial: where it would be, and what it was predicted to save."""
    if verdict.decision not in (Decision.NOT_TRIED, Decision.ADVICE):
        return []
    said = [("where", f"{place(where, root)}  {where.code or ''}".rstrip()) for where in verdict.where[:1]]
    if verdict.predicted_ns:
        said.append(("predicted", f"{format_ns(verdict.predicted_ns)} less of each step"))
    return said


def _so_far(trial: TrialState) -> list[tuple[str, str]]:
    said = []
    if trial.started.setting:
        said.append(("setting", format_setting(trial.started.setting)))
    if trial.started.predicted_ns:
        said.append(("prediction", f"{format_ns(trial.started.predicted_ns)} less of each step"))
    if not trial.blocks:
        said.append(("measured", "waiting for the first pair of blocks …"))
    return said


def _particulars(said: Sequence[tuple[str, str]], width: int) -> list[Text]:
    lines = []
    for name, words in said:
        first, *rest = wrap(words, width - _NAME)
        lines.append(styled(f"{name:<{_NAME}}", MUTED).append(first))
        lines += [styled(" " * _NAME + line) for line in rest]
    return lines


def _pairs(blocks: Sequence[TrialBlock], look: Look, resolution: float, width: int, height: int) -> list[Text]:
    shown = list(blocks)[-max(width - _NAME - 12, 8) :]
    highest = max(max(block.original_ns, block.patched_ns) for block in shown)
    lines = []
    for name, times, colour in (
        ("original", [block.original_ns for block in shown], STEP),
        ("patched", [block.patched_ns for block in shown], look.colour),
    ):
        line = styled(f"{name:<{_NAME}}", MUTED).append(_ticks(times, highest), colour)
        lines.append(line.append(f"  {format_ns(sum(times) / len(times))}", "bold"))
    points = [
        (block.low, block.saving, block.high)
        for block in blocks
        if block.low is not None and block.saving is not None and block.high is not None
    ]
    if points:
        title, of = "saving of a step, after each pair", f"{named_count(len(blocks), 'pair')}, 95 % interval"
        beside = len(title) + 3 + len(of) <= width
        head = styled(title, "bold")
        below = [] if beside else [styled(of, FAINT)]
        if beside:
            head.append(f"   {of}", FAINT)
        lines += [Text(), head, *below, *narrowing(points, width, height, resolution, look.colour)]
    return lines


def _ticks(times: Sequence[int], top: int) -> str:
    """Columns from zero, so that their heights compare as the times do."""
    return "".join(_TICKS[min(int(time / max(top, 1) * 8), 7)] for time in times)
