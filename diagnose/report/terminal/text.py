"""The report as plain text: what a terminal shows when a command is done.

It reads from the top: what the run is, where its time goes, what to fix first, what could not be told, what was tried
and what that gave, and the next command to type. It means the same without colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from diagnose.model import Decision, Finding, Place
from diagnose.report import Report, Subject, as_state
from diagnose.report.sections.ladder import ladder_lines
from diagnose.report.sections.memory import ONLY_MEMORY, headline, memory_lines, title
from diagnose.report.sections.next_steps import next_commands
from diagnose.report.sections.run_outcome import is_failed, kept_by_trial, nothing_kept
from diagnose.report.sections.side_by_side import spread_words, traced_lines
from diagnose.report.sections.verdict_table import without_edit
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import clip, clipped_path, place
from diagnose.report.style.step_bar import bar, is_recorded, legend, slices
from diagnose.report.style.styled_text import heading, print_sections, styled
from diagnose.report.style.vocabulary import BAD, CLASSES, GOOD, MUTED, SEVERITIES, named_count
from diagnose.report.terminal.probes import probe_lines
from diagnose.report.terminal.text_fixes import fix_lines
from diagnose.report.wording.cannot_tell import unsure
from diagnose.report.wording.compute_bounds import bounds_of_compute
from diagnose.report.wording.health import is_healthy, is_quiet, quiet_news, unexplained
from diagnose.report.wording.mean_vs_median import on_average
from diagnose.report.wording.phrases import awaited, by_hand, evidence, final, gain, sentence
from diagnose.report.wording.run_title import accounting_title, identity, is_one_piece
from diagnose.report.wording.warnings import said_once
from diagnose.session import State
from diagnose.units import format_share

WIDTH = 80
NARROWEST = 40
_MOST_RANKS = 16
_COMMAND = CLASSES["compute"].colour
_OF_MEMORY = frozenset(
    {"memory-pressure", "leaking-memory", "fragmented-memory", "over-checkpointing", "allocator-churn", "small-batch"}
)
"""Rules whose findings the picture of the memory explains."""


def render(subject: Subject, width: int = WIDTH, colour: bool = False) -> str:
    """The whole report in lines of at most `width` columns; only a diff may be wider. Colour is ANSI escapes."""
    width = max(width, NARROWEST)
    state = as_state(subject)
    sections = [
        _head(state, width),
        _accounting(state, width),
        _ranks(state, width),
        _findings(state, width),
        _memory(state, width),
        _cannot_tell(state, width),
        _warnings(state, width),
        # Once fixes were tried, their table says what the ladder led to.
        ladder_lines(state.diagnosis, width) if state.diagnosis is not None and not state.verdicts else [],
        probe_lines(state.probes, width),
        fix_lines(state, width),
        _next(state, width),
    ]
    return print_sections(sections, colour)


def paragraph(words: str, width: int, indent: int = 0, style: str = "") -> list[Text]:
    """Words wrapped to `width`, indented."""
    return [styled(" " * indent + line, style) for line in wrap(words, width - indent)]


def _head(state: State, width: int) -> list[Text]:
    parts = identity(state) or ["a run of which nothing is known yet"]
    lines: list[str] = [""]
    for part in parts:
        joined = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(joined) > width and lines[-1]:
            lines.append(f"  {part}")
        else:
            lines[-1] = joined
    return [
        styled(lines[0], "bold"),
        *(styled(line, "bold") for line in lines[1:]),
        *_news(state, width),
        *_failure(state, width),
        *_outcome(state, width),
    ]


def _news(state: State, width: int) -> list[Text]:
    """Return what the fixes came to, before everything that it rests on."""
    mark, colour, said = "– ", MUTED, nothing_kept(state)
    if state.final is not None:
        better = state.final.patched_ns <= state.final.original_ns
        count = sum(verdict.decision is Decision.KEPT for verdict in state.verdicts)
        mark, colour = ("✓ ", GOOD) if better else ("▼ ", BAD)
        said = f"{named_count(count, 'kept fix', 'kept fixes')}: {final(state)}"
    elif trial := kept_by_trial(state):
        mark, colour, said = "✓ ", GOOD, trial
    if not said:
        return []
    first, *rest = wrap(said, width - 2)
    return [styled(mark, colour).append(first, "bold"), *(styled(f"  {line}", "bold") for line in rest)]


def _failure(state: State, width: int) -> list[Text]:
    """Return what the program itself failed of, before what was found in it."""
    if state.ended is None or state.diagnosis is None or not is_failed(state) or nothing_kept(state):
        return []
    first, *rest = paragraph(sentence(state.ended.message.splitlines()[0]), width, indent=2)
    return [styled("✗ ", f"bold {BAD}").append(first.plain[2:], "bold"), *rest]


def _outcome(state: State, width: int) -> list[Text]:
    if state.diagnosis is not None:
        if state.diagnosis.steps.count == 0 and state.diagnosis.memory is not None:
            return paragraph(ONLY_MEMORY, width)
        if state.diagnosis.steps.count == 0 and is_failed(state):
            return []  # its failure says why, and the warnings what to mend
        if state.diagnosis.steps.count == 0:
            seen = "No training step was seen" if state.started is not None else "No training step was found in it"
            return paragraph(f"{seen}, so nothing can be said per step.", width)
        return []
    if state.ended is not None:
        return paragraph(state.ended.message or "It ended before enough steps were seen to diagnose it.", width)
    return paragraph(f"Last seen: {state.phase.phase}." if state.phase else "Nothing was diagnosed.", width)


def _accounting(state: State, width: int) -> list[Text]:
    if state.diagnosis is None:
        return []
    parts = slices(state.diagnosis.accounting)
    if not parts:
        return []
    whole = "recording" if is_one_piece(state.diagnosis) else "median step"
    slowest = ", on the slowest rank" if state.diagnosis.ranks > 1 else ""
    return [
        heading(accounting_title(state.diagnosis), f"{whole}{slowest} = 100 %", width),
        bar(parts, width),
        *legend(parts, width),
        *(paragraph(uneven, width) if (uneven := on_average(state.diagnosis)) else ()),
        *(paragraph(bounds, width, style=MUTED) if (bounds := bounds_of_compute(state.diagnosis)) else ()),
        *(paragraph(path, width, style=MUTED) if (path := awaited(state.diagnosis)) else ()),
        *(paragraph(left, width) if (left := unexplained(state.diagnosis)) else ()),
    ]


def _ranks(state: State, width: int) -> list[Text]:
    if state.diagnosis is None:
        return []
    lines = traced_lines(state.diagnosis, width, _MOST_RANKS)
    return [heading("Ranks side by side", spread_words(state.diagnosis), width), *lines] if lines else []


def _findings(state: State, width: int) -> list[Text]:
    diagnosis = state.diagnosis
    if diagnosis is None or (diagnosis.steps.count == 0 and not diagnosis.findings):
        return []
    root = state.started.cwd if state.started else None
    lines: list[Text] = []
    if is_quiet(diagnosis):
        mark = styled("✓ ", f"bold {GOOD}") if is_healthy(diagnosis) else styled("? ", "bold")
        first, *rest = paragraph(quiet_news(diagnosis), width, indent=2)
        lines += [mark.append(first.plain[2:]), *rest]
        if not diagnosis.findings:
            return lines
        lines += [Text(), heading("Also seen", "", width)]
    else:
        lines.append(heading("Fix this first", "", width))
    for number, finding in enumerate(diagnosis.findings, 1):
        if number == 2 and not is_quiet(diagnosis):
            lines += [Text(), heading("Then", "no time is counted twice", width)]
        elif number > 1:
            lines.append(Text())
        lines += finding_lines(number, finding, root, width, without_edit(state, finding))
    return lines


def _memory(state: State, width: int) -> list[Text]:
    peak = state.diagnosis.memory if state.diagnosis else None
    if state.diagnosis is None or peak is None:
        return []
    root = state.started.cwd if state.started else None
    lines = [heading(title(peak), headline(peak), width)]
    if state.verdicts and not any(finding.rule in _OF_MEMORY for finding in state.diagnosis.findings):
        return lines + paragraph("`diagnose view` shows what it is made of.", width, indent=2, style=MUTED)
    return lines + memory_lines(peak, root, width)


def _cannot_tell(state: State, width: int) -> list[Text]:
    diagnosis, lacking = state.diagnosis, unsure(state)
    if diagnosis is None or not lacking or (diagnosis.steps.count and not is_recorded(diagnosis.accounting)):
        return []  # where no work was recorded at all, the warnings say why, and a list of all rules says nothing more
    lines = [heading("Cannot tell", "from this recording; what it would take", width)]
    for needs, rules in lacking.items():
        lines += paragraph(needs, width, indent=2)
        lines += paragraph(rules, width, indent=6, style=MUTED) if rules else []
    return lines


def _warnings(state: State, width: int) -> list[Text]:
    said = said_once((*(state.diagnosis.warnings if state.diagnosis else ()), *state.warnings))
    lines: list[Text] = []
    for message in said:
        first, *rest = wrap(message, width - 4)
        lines += [styled(f"  ! {first}"), *(styled(f"    {more}") for more in rest)]
    return [heading(named_count(len(said), "warning").capitalize(), "", width), *lines] if lines else []


def _next(state: State, width: int) -> list[Text]:
    lines: list[Text] = []
    for number, (command, effect) in enumerate(next_commands(state)):
        lines.append(styled("Then   " if number else "Next   ", "bold").append(command, f"bold {_COMMAND}"))
        lines += paragraph(effect, width, indent=7, style=MUTED)
    return lines


REPORT = Report("text", ".txt", render)


_INDENT = 5
_NAME_WIDTH = 11
_PLACES = 3


def finding_lines(
    number: int, finding: Finding, root: str | None, width: int, no_edit: Sequence[str] = ()
) -> list[Text]:
    """The finding, `number` in the ranking; file names are relative to `root`; why fixers have no edit comes last."""
    look = SEVERITIES[finding.severity]
    first = styled(f"{number:>2} ", MUTED).append(f"{look.mark} {look.label:<6} ", f"bold {look.colour}")
    name = finding.rule if finding.rank is None else f"{finding.rule} on rank {finding.rank}"
    first.append(name, "bold")
    back = gain(finding)
    if len(first) + len(back) + 3 <= width:
        lines = [first.append(" " * (width - len(first) - len(back))).append(back)]
    else:
        lines = [first, *_named("gain", back, width)]
    lines += [styled(" " * _INDENT + line) for line in wrap(sentence(finding.summary), width - _INDENT)]
    for index, where in enumerate(finding.where[:_PLACES]):
        alone = len(finding.where) == 1
        lines.append(_place("" if index else "where", where, root, width, alone))
    if finding.evidence:
        lines += _named("evidence", " · ".join(map(evidence, finding.evidence)), width)
    for at, unlike in enumerate(finding.ruled_out):
        lines += _named("" if at else "ruled out", unlike, width)
    if finding.fixers:
        lines += _named("would try", ", ".join(finding.fixers), width)
    else:
        lines += _named("by hand", by_hand(finding), width)
    if finding.confirm:
        lines += _named("to confirm", finding.confirm, width)
    for at, why in enumerate(no_edit):
        lines += _named("" if at else "no edit", why, width)
    return lines


def _named(name: str, words: str, width: int) -> list[Text]:
    column = _INDENT + _NAME_WIDTH + 1
    first, *rest = wrap(words, width - column)
    lines = [styled(" " * _INDENT).append(f"{name:<{_NAME_WIDTH}} ", MUTED).append(first)]
    return lines + [styled(" " * column + more) for more in rest]


def _place(name: str, where: Place, root: str | None, width: int, alone: bool) -> Text:
    column = _INDENT + _NAME_WIDTH + 1
    line = styled(" " * _INDENT).append(f"{name:<{_NAME_WIDTH}} ", MUTED)
    spot = clipped_path(place(where, root), width - column)
    line.append(spot, "bold underline")
    share = f"  {format_share(where.share)} of it" if where.share is not None and not alone else ""
    room = width - column - cell_len(spot) - len(share) - 2
    if where.code and room >= 16:
        line.append("  ").append(clip(where.code, room), "italic")
    if room >= 0:
        line.append(share, MUTED)
    return line
