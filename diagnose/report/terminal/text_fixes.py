"""The fixes as lines of text: a table of what was measured, the evidence of each kept fix, what was not tried and why,
advice, the diff, and the final figures.
"""

from __future__ import annotations

import re

from rich.text import Text

from diagnose.model import Verdict
from diagnose.report.sections.run_outcome import cut_short, nothing_kept, restless
from diagnose.report.sections.verdict_table import (
    advised,
    basis,
    dropped,
    fell_apart,
    idle,
    is_dry,
    kept_alike,
    look,
    measured,
    promise,
    remark,
    rows,
    untried,
)
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import clip, place
from diagnose.report.style.styled_text import heading, styled
from diagnose.report.style.vocabulary import BAD, DECISIONS, GOOD, MUTED, Look, named_count
from diagnose.report.wording.phrases import chosen, final, interplay, particulars, saves, sentence, together
from diagnose.report.wording.predictions import summed_up
from diagnose.report.wording.resolution import resolution_in_words
from diagnose.session import State
from diagnose.units import format_ns

_DECISION_WIDTH = max(len(look.label) for look in DECISIONS.values())
_SAVING_WIDTH = 24
_TIME_WIDTH = 9


def fix_lines(state: State, width: int) -> list[Text]:
    """The sections about fixes; empty for a run that tried none."""
    if not state.verdicts:
        return []
    if is_dry(state):
        return _would_try(state, width)
    sections = [
        _measured(state, width),
        _untried(state, width),
        _advice(state, width),
        _diff(state, width),
        _result(state, width),
    ]
    return [line for number, lines in enumerate(filter(None, sections)) for line in ([Text()] * (number > 0) + lines)]


def _measured(state: State, width: int) -> list[Text]:
    tried = measured(state.verdicts)
    if not tried:
        return []
    lines = [heading("Fixes tried", "on copies of your files, against the original", width)]
    lines += _control(state, width)
    lines += _table(state, width)
    for said in fell_apart(state):
        lines += [Text(), *_muted(sentence(said), width)]
    for alike in kept_alike(tried):
        lines += [Text(), *_kept(alike.verdicts, basis(state, alike), width, state.control is None)]
    outcomes = dropped(state.verdicts)
    if outcomes:
        lines.append(Text())
    for alike in outcomes:
        lines += _dropped(alike.verdicts, alike.words, look(state, alike.verdicts[0]), width)
    if predicted := summed_up(tried):
        lines += [Text(), *_muted(predicted, width)]
    return lines


def _control(state: State, width: int) -> list[Text]:
    if state.control is None:
        return []
    return _muted(
        f"This machine can tell changes of more than {resolution_in_words(state.control.resolution)} of a step "
        f"({format_ns(state.control.step_ns)}) from none: the original against itself, "
        f"{named_count(state.control.pairs, 'pair')} in {named_count(state.control.generations, 'generation')}.",
        width,
    )


def _table(state: State, width: int) -> list[Text]:
    verdicts = rows(state)
    times = [[_time(verdict.predicted_ns or None), _time(verdict.saving_ns)] for verdict in verdicts]
    time_width = max(_TIME_WIDTH, *(len(time) + 1 for both in times for time in both))
    name_width = max(width - 2 - time_width * 2 - _SAVING_WIDTH - _DECISION_WIDTH - 4, 8)
    name_width = min(name_width, max(len(verdict.fixer) for verdict in verdicts) + 2)
    head = f"  {'fix':<{name_width}}{'predicted':>{time_width}}{'measured':>{time_width}}"
    head += f"  {'of a step [95 % interval]':<{_SAVING_WIDTH + 1}} verdict"
    lines = [styled(clip(head, width), MUTED)]
    for verdict, (predicted, saved) in zip(verdicts, times, strict=True):
        shown = look(state, verdict)
        line = styled(f"{shown.mark} ", shown.colour).append(
            f"{clip(verdict.fixer, name_width - 1):<{name_width}}", "bold"
        )
        line.append(f"{predicted:>{time_width}}{saved:>{time_width}}  ")
        line.append(f"{saves(verdict):<{_SAVING_WIDTH}}  ")
        line.append(shown.label, f"bold {shown.colour}")
        line.truncate(width)
        lines.append(line)
    return lines


def _time(nanoseconds: int | None) -> str:
    return "–" if nanoseconds is None else format_ns(nanoseconds)


def _kept(verdicts: tuple[Verdict, ...], rests_on: Verdict, width: int, with_resolution: bool) -> list[Text]:
    verdict, *others = verdicts
    look = DECISIONS[verdict.decision]
    names = wrap(", ".join(map(chosen, verdicts)) if others else verdict.fixer, width - len(look.label) - 4)
    lines = [styled("  ").append(name, "bold") for name in names]
    lines[0] = styled(f"{look.mark} ", look.colour).append(names[0], "bold")
    lines[-1].append(f"  {look.label}", look.colour)
    if more := remark(rests_on):
        lines += [styled(f"  {line}") for line in wrap(sentence(f"{more[0].upper()}{more[1:]}"), width - 2)]
    for name, words in particulars(rests_on):
        if (name == "resolution" and not with_resolution) or (name == "setting" and others):
            continue
        first, *rest = wrap(words, width - 14)
        lines.append(styled("  ").append(f"{name:<11} ", MUTED).append(first))
        lines += [styled(" " * 14 + more) for more in rest]
    return lines


def _dropped(verdicts: tuple[Verdict, ...], words: str, look: Look, width: int) -> list[Text]:
    """Return what was measured and not kept needs no more than its reason: the figures stand in the table."""
    names = ", ".join(map(chosen, verdicts))
    first, *rest = wrap(f"{names}  {look.label}", width - 2)
    lines = [styled(f"{look.mark} ", look.colour).append(first, "bold"), *(styled(f"  {one}", "bold") for one in rest)]
    return lines + [styled(f"    {line}") for line in wrap(sentence(words), width - 4)]


def _untried(state: State, width: int) -> list[Text]:
    groups = untried(state.verdicts)
    without = _muted(idle(state.verdicts), width) if idle(state.verdicts) else []
    if not groups:
        return without
    lines = [heading("Not tried", "with what each was predicted to save of a step", width)]
    for alike in groups:
        first, *rest = wrap(", ".join(map(promise, alike.verdicts)), width - 2)
        lines += [styled("– ", MUTED).append(first), *(styled(f"  {line}") for line in rest)]
        lines += [styled(f"    {line}", MUTED) for line in wrap(sentence(alike.words), width - 4)]
    return [*lines, *without]


def _advice(state: State, width: int) -> list[Text]:
    advice = advised(state.verdicts)
    if not advice:
        return []
    root = state.started.cwd if state.started else None
    lines = [heading("By hand", "changes that only you can make", width)]
    for verdict in advice:
        look = DECISIONS[verdict.decision]
        lines.append(styled(f"{look.mark} ", look.colour).append(promise(verdict), "bold"))
        for where in verdict.where[:1]:
            code = f"  {where.code}" if where.code else ""
            lines.append(styled(clip(f"    {place(where, root)}{code}", width), MUTED))
        lines += [styled(f"    {line}") for line in wrap(sentence(verdict.summary), width - 4)]
    return lines


_IMPORTED = re.compile(r"^\+\s*(?:from|import) diagnose[. ]", re.MULTILINE)
_NEEDS = (
    "With it, the program imports diagnose: install this package where it trains, or leave out the fixes whose lines "
    "import it, by `diagnose apply --without` or `diagnose fix --skip`."
)


def _diff(state: State, width: int) -> list[Text]:
    if state.patch is None or not state.patch.diff:
        return []
    first, *rest = wrap(", ".join(state.patch.fixers), width - 2)
    names = [styled(f"  {line}", MUTED) for line in (first, *rest) if line]
    some = "`diagnose apply --only` or `--without` writes some of these" if len(state.patch.fixers) > 1 else ""
    if cut_short(state):
        some = "as far as it came: there is no patch to apply"
    needs = _muted(_NEEDS, width) if _IMPORTED.search(state.patch.diff) else []
    return [heading("Diff", some, width), *names, *needs, *(_diff_line(line) for line in state.patch.diff.splitlines())]


def _result(state: State, width: int) -> list[Text]:
    if state.final is None:
        return _without_result(state, width)
    gained = state.final.patched_ns <= state.final.original_ns
    lines = [heading("Result", state.final.how, width)]
    lines += [styled(f"  {line}", f"bold {GOOD if gained else BAD}") for line in wrap(final(state), width - 2)]
    rests = (f"{named_count(state.final.runs, 'run')} of each", together(state), interplay(state))
    return lines + _muted("; ".join(filter(None, rests)), width) + _unsettled(state, width)


def _without_result(state: State, width: int) -> list[Text]:
    """Return what is said in the place of figures at the end of a run that has none."""
    tried = measured(state.verdicts)
    if state.ended is None or not tried:
        return []
    said = "No fix held: your program stays as it is."
    if cut_short(state):
        said = nothing_kept(state)
    elif state.patch is not None and state.patch.diff:
        return []
    words = [styled(f"  {line}", "bold") for line in wrap(said, width - 2)]
    return [heading("Result", "", width), *words, *_unsettled(state, width)]


def _unsettled(state: State, width: int) -> list[Text]:
    said = restless(state)
    return [styled(f"  {line}") for line in wrap(sentence(said), width - 2)] if said else []


def _would_try(state: State, width: int) -> list[Text]:
    """A dry run: each with its diff."""
    lines = [heading("Fixes that would be tried", "a dry run: nothing was tried", width)]
    lines += _muted(
        "Each diff is for the program as it is. A trial puts a fix on top of those kept before it and looks again at "
        "what is left to find, so that some of these fall away.",
        width,
    )
    for verdict in (*measured(state.verdicts), *(one for alike in untried(state.verdicts) for one in alike.verdicts)):
        look = DECISIONS[verdict.decision]
        lines += [Text(), styled(f"{look.mark} ", look.colour).append(promise(verdict), "bold")]
        lines += [styled(f"  {line}") for line in wrap(sentence(verdict.summary), width - 2)]
        lines += [_diff_line(line) for line in verdict.diff.splitlines()]
    advice = _advice(state, width)
    return [*lines, Text(), *advice] if advice else lines


def _muted(words: str, width: int) -> list[Text]:
    return [styled(f"  {line}", MUTED) for line in wrap(words, width - 2)]


def _diff_line(line: str) -> Text:
    if line.startswith(("+++", "---", "diff ")):
        return styled(line, "bold")
    if line.startswith("@@"):
        return styled(line, "cyan")
    return styled(line, {"+": "green", "-": "red"}.get(line[:1], ""))
