"""The report as Markdown, for an issue, a pull request or a log book."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.model import Decision, Finding, Verdict
from diagnose.report import Report, Subject, as_state
from diagnose.report.export.markdown_text import code, fence_around, inline
from diagnose.report.sections.ladder import rows as rungs
from diagnose.report.sections.ladder import summary
from diagnose.report.sections.memory import headline, held_categories, life, title, weighty
from diagnose.report.sections.next_steps import next_commands
from diagnose.report.sections.probe_answers import ABOUT, answer, knees, left
from diagnose.report.sections.probe_answers import title as title_of_probe
from diagnose.report.sections.run_outcome import cut_short, kept_by_trial, nothing_kept, restless
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
    without_edit,
)
from diagnose.report.style.paths import place
from diagnose.report.style.step_bar import slices
from diagnose.report.style.vocabulary import SEVERITIES, Look, named_count
from diagnose.report.wording.cannot_tell import unsure
from diagnose.report.wording.compute_bounds import bounds_of_compute
from diagnose.report.wording.health import is_quiet, quiet_news, unexplained
from diagnose.report.wording.mean_vs_median import on_average
from diagnose.report.wording.phrases import (
    arithmetic,
    chosen,
    evidence,
    final,
    gain,
    interplay,
    saves,
    sentence,
    together,
)
from diagnose.report.wording.phrases import particulars as verdict_particulars
from diagnose.report.wording.predictions import summed_up
from diagnose.report.wording.resolution import resolution_in_words
from diagnose.report.wording.run_title import accounting_title, identity
from diagnose.report.wording.warnings import said_once
from diagnose.session import State
from diagnose.units import format_bytes, format_ns, format_share


def render(subject: Subject) -> str:
    """One document; tables as GitHub draws them."""
    state = as_state(subject)
    name, *about = identity(state) or ["a run of which nothing is known yet"]
    blocks = [f"# {inline(name)}", " · ".join(map(inline, about))]
    if state.final is not None:
        blocks.append(f"**{inline(final(state))}**")
    elif said := kept_by_trial(state):
        blocks.append(f"**{inline(said)}**")
    elif said := nothing_kept(state):
        blocks += [f"**{inline(said)}**", inline(sentence(restless(state)))]
    # What was changed and what it brought comes first where somebody reviews it.
    for section in (_fixes, _probes, _accounting, _findings, _memory, _ladder, _cannot_tell, _warnings):
        blocks += section(state)
    for number, (command, effect) in enumerate(next_commands(state)):
        blocks.append(f"**{'Then' if number else 'Next'}:** `{command}` {effect}.")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _accounting(state: State) -> list[str]:
    if state.diagnosis is None:
        return []
    parts = slices(state.diagnosis.accounting)
    if not parts:
        return []
    rows = [(part.look.label, format_ns(part.ns), format_share(part.share)) for part in parts]
    whole = format_ns(state.diagnosis.accounting.total_ns)
    table = _table(("class", "time per step", f"of the {whole} step"), rows)
    said = [words(state.diagnosis) for words in (on_average, bounds_of_compute, unexplained)]
    return [f"## {accounting_title(state.diagnosis)}", table, *said]


def _findings(state: State) -> list[str]:
    diagnosis = state.diagnosis
    if diagnosis is None:
        return ["Nothing was diagnosed."]
    if diagnosis.steps.count == 0 and not diagnosis.findings:
        return ["No training step was found, so nothing can be said per step."]
    blocks = [f"**{quiet_news(diagnosis)}**"] if is_quiet(diagnosis) else []
    if diagnosis.findings:
        blocks.append("## Also seen" if is_quiet(diagnosis) else "## Fix this first")
    root = state.started.cwd if state.started else None
    for number, finding in enumerate(diagnosis.findings, 1):
        blocks += _finding(number, finding, root, without_edit(state, finding))
    return blocks


def _finding(number: int, finding: Finding, root: str | None, no_edit: Sequence[str]) -> list[str]:
    look = SEVERITIES[finding.severity]
    rank = "" if finding.rank is None else f" on rank {finding.rank}"
    lines = [f"- Gives back: {gain(finding)}"]
    for where in finding.where:
        shown = f" {code(where.code)}" if where.code else ""
        lines.append(f"- Where: {code(place(where, root))}{shown}")
    if finding.evidence:
        lines.append(f"- Evidence: {inline(' · '.join(map(evidence, finding.evidence)))}")
    lines += [f"- Ruled out: {inline(unlike)}" for unlike in finding.ruled_out]
    if finding.fixers:
        lines.append(f"- Would try: {inline(', '.join(finding.fixers))}")
    if finding.confirm:
        lines.append(f"- To confirm: {inline(finding.confirm)}")
    lines += [f"- No edit: {inline(why)}" for why in no_edit]
    title = f"### {number}. {look.mark} {inline(finding.rule)}{rank} ({look.label})"
    return [title, inline(sentence(finding.summary)), "\n".join(lines)]


def _ladder(state: State) -> list[str]:
    if state.diagnosis is None or state.verdicts:
        return []
    ladder, done = state.diagnosis.ladder, arithmetic(state.diagnosis)
    if ladder is None or not (ladder.rungs or ladder.ceiling):
        return [done]
    head = ("rung", "predicted step", "of peak", "fixers")
    return ["## The ladder", done, _table(head, rungs(ladder)), summary(ladder)]


def _memory(state: State) -> list[str]:
    peak = state.diagnosis.memory if state.diagnosis else None
    if peak is None:
        return []
    root = state.started.cwd if state.started else None
    rows = [
        (part.look.label, format_bytes(part.size_bytes), format_share(part.share)) for part in held_categories(peak)
    ]
    blocks = [f"## {title(peak)}", f"{headline(peak)}.", _table(("memory", "size", "share"), rows)]
    asked = [
        (
            format_bytes(part.held_bytes),
            f"{part.pieces:,}",
            part.category,
            life(part),
            place(part.place, root) if part.place else part.by or "no line known",
        )
        for part in weighty(peak)
    ]
    return [*blocks, _table(("size", "pieces", "as", "from → until", "asked for by"), asked)] if asked else blocks


def _cannot_tell(state: State) -> list[str]:
    lines = [f"- {inline(needs)}{f': {inline(rules)}' if rules else ''}" for needs, rules in unsure(state).items()]
    return ["## Cannot tell", "From this recording; what it would take.", "\n".join(lines)] if lines else []


def _warnings(state: State) -> list[str]:
    said = said_once((*(state.diagnosis.warnings if state.diagnosis else ()), *state.warnings))
    return ["## Warnings", "\n".join(f"- {inline(message)}" for message in said)] if said else []


def _probes(state: State) -> list[str]:
    if not state.probes:
        return []
    lines = []
    for one in state.probes:
        lines.append(f"- {inline(title_of_probe(one))}: {inline(answer(one))}")
        lines += [f"  - {inline(said)}" for said in (*(each.summary for each in one.findings), *left(one))]
    return ["## Probes", f"{sentence(ABOUT)}", "\n".join(lines), *map(inline, knees(state.probes))]


def _fixes(state: State) -> list[str]:
    if not state.verdicts:
        return []
    if is_dry(state):
        return [*_would_try(state), *_advice(state)]
    blocks = [*_measured(state), *_untried(state), *_advice(state)]
    if state.patch is not None and state.patch.diff:
        so_far = "As far as it came: there is no patch to apply." if cut_short(state) else ""
        blocks += ["## Diff", so_far, _fenced(state.patch.diff)]
    if state.final is not None:
        rests = [
            f"{state.final.how}, {named_count(state.final.runs, 'run')} of each",
            together(state),
            interplay(state),
        ]
        how = f" ({inline('; '.join(filter(None, rests)))})"
        blocks += ["## Result", f"**{inline(final(state))}**{how}"]
    return blocks


def _measured(state: State) -> list[str]:
    tried = measured(state.verdicts)
    if not tried:
        return []
    blocks = ["## Fixes tried"]
    if state.control is not None:
        blocks.append(
            f"The original against itself differs by at most {resolution_in_words(state.control.resolution)} of a "
            f"{format_ns(state.control.step_ns)} step ({named_count(state.control.pairs, 'pair')}); "
            "smaller changes cannot be told from none."
        )
    head = ("fix", "predicted per step", "measured per step", "of a step [95 % interval]", "verdict")
    blocks.append(_table(head, [_verdict_row(verdict, look(state, verdict)) for verdict in rows(state)]))
    blocks += [inline(sentence(said)) for said in fell_apart(state)]
    for alike in kept_alike(tried):
        verdict, *others = alike.verdicts
        rests_on = basis(state, alike)
        lines = [
            f"- {name}: {inline(words)}"
            for name, words in verdict_particulars(rests_on)
            if not (others and name == "setting")
        ]
        names = ", ".join(map(chosen, alike.verdicts)) if others else verdict.fixer
        blocks += [f"### {inline(names)}", inline(sentence(remark(rests_on))), "\n".join(lines)]
    outcomes = dropped(state.verdicts)
    if outcomes:
        lines = [
            f"- {inline(', '.join(verdict.fixer for verdict in alike.verdicts))}: {inline(sentence(alike.words))}"
            for alike in outcomes
        ]
        blocks += ["### Not kept", "\n".join(lines)]
    return [*blocks, summed_up(tried)]


def _untried(state: State) -> list[str]:
    lines = [
        f"- {inline(', '.join(map(promise, alike.verdicts)))}: {inline(sentence(alike.words))}"
        for alike in untried(state.verdicts)
    ]
    return [*(["## Not tried", "\n".join(lines)] if lines else []), *filter(None, [inline(idle(state.verdicts))])]


def _advice(state: State) -> list[str]:
    root = state.started.cwd if state.started else None
    lines = []
    for verdict in advised(state.verdicts):
        where = f", {code(place(verdict.where[0], root))}" if verdict.where else ""
        lines.append(f"- {inline(promise(verdict))}{where}: {inline(sentence(verdict.summary))}")
    return ["## By hand", "\n".join(lines)] if lines else []


def _would_try(state: State) -> list[str]:
    blocks = ["## Fixes that would be tried", "A dry run: nothing was tried. Each diff is for the program as it is."]
    for verdict in state.verdicts:
        if verdict.decision is not Decision.ADVICE:
            blocks += [f"### {inline(promise(verdict))}", inline(sentence(verdict.summary))]
            blocks += [_fenced(verdict.diff)] if verdict.diff else []
    return blocks


def _fenced(diff: str) -> str:
    fence = fence_around(diff)
    return f"{fence}diff\n{diff.rstrip()}\n{fence}"


def _verdict_row(verdict: Verdict, look: Look) -> tuple[str, ...]:
    times = ("–" if time is None else format_ns(time) for time in (verdict.predicted_ns or None, verdict.saving_ns))
    return (verdict.fixer, *times, saves(verdict), f"{look.mark} {look.label}")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(inline(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


REPORT = Report("markdown", ".md", render)
