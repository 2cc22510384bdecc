"""What was tried, as lines of text: a table of verdicts, what each rests on, the final figures, and the diff."""

from __future__ import annotations

from rich.text import Text

from diagnose.model import Decision, Verdict
from diagnose.report.paths import clipped
from diagnose.report.phrases import final, interplay, interval, particulars, sentence, together
from diagnose.report.predictions import summed_up
from diagnose.report.styled import heading, styled
from diagnose.report.vocabulary import DECISIONS, GOOD, MUTED, named_count
from diagnose.report.wrapping import wrap
from diagnose.session import State
from diagnose.units import format_ns, format_share

_DECISION_WIDTH = max(len(look.label) for look in DECISIONS.values())
_SAVING_WIDTH = 24
_TIME_WIDTH = 9


def fix_lines(state: State, width: int) -> list[Text]:
    """The sections about fixes; empty for a run that tried none."""
    if not state.verdicts:
        return []
    lines = [heading("Fixes tried", "on copies of your files, against the original", width)]
    lines += _control(state, width)
    lines += _table(state.verdicts, width)
    for verdict in state.verdicts:
        lines += [Text(), *_details(verdict, width, state.control is None)]
    if predicted := summed_up(state.verdicts):
        lines += [Text(), *(styled(f"  {line}", MUTED) for line in wrap(predicted, width - 2))]
    if state.final is not None:
        lines += [Text(), heading("Result", state.final.how, width)]
        lines += [styled(f"  {line}", f"bold {GOOD}") for line in wrap(final(state), width - 2)]
        rests = "; ".join(
            filter(None, [f"{named_count(state.final.runs, 'run')} of each", together(state), interplay(state)])
        )
        lines += [styled(f"  {line}", MUTED) for line in wrap(rests, width - 2)]
    if state.patch is not None and state.patch.diff:
        lines += [Text(), heading("Diff", ", ".join(state.patch.fixers), width)]
        lines += [_diff_line(line) for line in state.patch.diff.splitlines()]
    return lines


def _control(state: State, width: int) -> list[Text]:
    if state.control is None:
        return []
    words = (
        f"This machine can tell changes of more than ±{format_share(state.control.resolution)} of a step "
        f"({format_ns(state.control.step_ns)}) from none: the original against itself, "
        f"{named_count(state.control.pairs, 'pair')} in {named_count(state.control.generations, 'generation')}."
    )
    return [styled(f"  {line}", MUTED) for line in wrap(words, width - 2)]


def _table(verdicts: tuple[Verdict, ...], width: int) -> list[Text]:
    name_width = max(width - 2 - _TIME_WIDTH * 2 - _SAVING_WIDTH - _DECISION_WIDTH - 4, 8)
    name_width = min(name_width, max(len(verdict.fixer) for verdict in verdicts) + 2)
    head = f"  {'fix':<{name_width}}{'predicted':>{_TIME_WIDTH}}{'measured':>{_TIME_WIDTH}}"
    head += f"  {'of a step [95 % interval]':<{_SAVING_WIDTH}}  verdict"
    lines = [styled(clipped(head, width), MUTED)]
    for verdict in verdicts:
        look = DECISIONS[verdict.decision]
        line = styled(f"{look.mark} ", look.colour).append(
            f"{clipped(verdict.fixer, name_width - 1):<{name_width}}", "bold"
        )
        line.append(f"{_time(verdict.predicted_ns):>{_TIME_WIDTH}}{_time(verdict.saving_ns):>{_TIME_WIDTH}}  ")
        line.append(f"{interval(verdict.saving) if verdict.saving else 'not measured':<{_SAVING_WIDTH}}  ")
        line.append(look.label, f"bold {look.colour}")
        line.truncate(width)
        lines.append(line)
    return lines


def _time(nanoseconds: int | None) -> str:
    return "–" if nanoseconds is None else format_ns(nanoseconds)


def _details(verdict: Verdict, width: int, with_resolution: bool) -> list[Text]:
    look = DECISIONS[verdict.decision]
    lines = [styled(f"{look.mark} ", look.colour).append(verdict.fixer, "bold").append(f"  {look.label}", look.colour)]
    lines += [styled(f"  {line}") for line in wrap(sentence(verdict.summary), width - 2)]
    if verdict.decision is Decision.ADVICE:
        return lines
    for name, words in particulars(verdict):
        if name == "resolution" and not with_resolution:
            continue
        first, *rest = wrap(words, width - 14)
        lines.append(styled("  ").append(f"{name:<11} ", MUTED).append(first))
        lines += [styled(" " * 14 + more) for more in rest]
    return lines


def _diff_line(line: str) -> Text:
    if line.startswith(("+++", "---", "diff ")):
        return styled(line, "bold")
    if line.startswith("@@"):
        return styled(line, "cyan")
    return styled(line, {"+": "green", "-": "red"}.get(line[:1], ""))
