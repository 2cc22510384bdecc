"""The report as one HTML page that needs nothing beside it: no font, no request to anywhere.

It follows the reader's light or dark setting, fits a telephone, and prints. The page is `page.html.j2`, its look
`page.css`; what they say comes from the same phrases as every other report. Where the steps were profiled, `page.js`
draws the timeline and sorts the tables; the page's policy allows that script alone, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from diagnose.model import Accounting, Confidence, Decision, Diagnosis, Place, Verdict
from diagnose.report import Report, Subject, as_state
from diagnose.report.page import counter_charts, flame_graph, roofline_plot, step_chart
from diagnose.report.page.page_data import HEIGHT, WIDTH, example_of, looks_of, memory_picture, timeline_json
from diagnose.report.sections import ladder, memory, probe_answers, run_outcome, side_by_side, verdict_table
from diagnose.report.sections.event_table import event_table, events_in_words
from diagnose.report.sections.next_steps import next_commands
from diagnose.report.sections.profile_tables import kernel_table, operator_table
from diagnose.report.style.paths import place
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.step_bar import is_recorded, slices
from diagnose.report.style.vocabulary import SEVERITIES, named_count
from diagnose.report.wording import health, phrases, predictions, run_title
from diagnose.report.wording.cannot_tell import unsure
from diagnose.report.wording.compute_bounds import bounds_of_compute
from diagnose.report.wording.mean_vs_median import on_average
from diagnose.report.wording.resolution import resolution_in_words
from diagnose.report.wording.warnings import said_once
from diagnose.session import State
from diagnose.units import format_bytes, format_ns, format_share

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

_DIFF_CLASSES = {"+": "added", "-": "removed", "@": "hunk"}
_CODE = re.compile("`([^`]+)`")
_MOST_RANKS = 64


def render(subject: Subject) -> str:
    """One page."""
    state = as_state(subject)
    profile, root = state.profile, state.started.cwd if state.started else None
    explorable = profile is not None and bool(profile.kernels or profile.operators or profile.timeline)
    return _template().render(
        profile=profile,
        timeline=profile.timeline if profile and profile.timeline and profile.timeline.lanes else None,
        kernels=kernel_table(profile, root) if profile else None,
        operators=operator_table(profile, root) if profile else None,
        roofline=roofline_plot.roofline_plot(profile) if profile else None,
        flames=flame_graph.flame_graph(profile.calls, root) if profile else None,
        counters=counter_charts.counter_charts(profile.counters) if profile else None,
        script=_script()[0] if explorable else "",
        script_hash=_script()[1],
        state=state,
        diagnosis=state.diagnosis,
        identity=run_title.identity(state) or ["a run of which nothing is known yet"],
        root=root,
        answer=_answer(state),
        failure=_failure(state),
        ranks=_ranks(state.diagnosis),
        chart=step_chart.step_chart(state.steps),
        warnings=said_once((*(state.diagnosis.warnings if state.diagnosis else ()), *state.warnings)),
        measured=[] if verdict_table.is_dry(state) else verdict_table.measured(state.verdicts),
        cause_of=_cause_of(state),
        proposed=_proposed(state),
        commands=next_commands(state),
    )


@dataclass(frozen=True)
class Answer:
    """The headline of the page: the one thing to take away."""

    kind: str
    """`fixed`, `worse`, `find`, `quiet`, `open`, or `none`: how it is coloured."""
    title: str
    words: str
    where: Place | None = None


def _answer(state: State) -> Answer:
    if state.final is not None:
        better = state.final.patched_ns <= state.final.original_ns
        kept = sum(verdict.decision is Decision.KEPT for verdict in state.verdicts)
        return Answer("fixed" if better else "worse", named_count(kept, "kept fix", "kept fixes"), phrases.final(state))
    if said := run_outcome.kept_by_trial(state):
        title, _, words = said.partition(": ")
        return Answer("fixed", title, f"{words}.")
    if said := run_outcome.nothing_kept(state):
        why = run_outcome.restless(state)
        title = "No fix was kept" if not run_outcome.cut_short(state) else "The trials were cut short"
        return Answer("open", title, f"{said} {phrases.sentence(why)}" if why else said)
    diagnosis = state.diagnosis
    if diagnosis is None:
        said = state.ended.message if state.ended else ""
        return Answer("none", "Nothing was diagnosed", said or "No step was traced, or the run is still going on.")
    if health.is_quiet(diagnosis):
        healthy = health.is_healthy(diagnosis)
        known = is_recorded(diagnosis.accounting)
        title = "Healthy" if healthy else "Nothing weighty found" if known else "No step was traced"
        return Answer("quiet" if healthy else "open", title, health.quiet_news(diagnosis))
    if not diagnosis.findings and diagnosis.memory is not None:
        return Answer(
            "open", memory.title(diagnosis.memory), f"{memory.headline(diagnosis.memory)}. {memory.ONLY_MEMORY}"
        )
    if not diagnosis.findings:
        return Answer("none", "No training step was found", "So nothing can be said per step.")
    first = diagnosis.findings[0]
    words = phrases.sentence(first.summary)
    figures = (format_ns(first.estimate_ns), phrases.share(first))
    if first.confidence is not Confidence.MEASURED or not all(figure in first.summary for figure in figures):
        words += f" Gives back {phrases.gain(first)}."
    if not phrases.is_priced(first):
        words = f"{phrases.sentence(first.summary)} What it costs is not known here."
    return Answer("find", f"Fix this first: {first.rule}", words, next(iter(first.where), None))


def _failure(state: State) -> str:
    """Return what the program itself failed of, where something was found in it all the same; else nothing."""
    if state.ended is None or state.diagnosis is None or not run_outcome.is_failed(state):
        return ""
    return "" if run_outcome.nothing_kept(state) else phrases.sentence(state.ended.message.splitlines()[0])


@dataclass(frozen=True)
class RankRow:
    """One rank beside the others."""

    name: str
    mean: str
    width: float
    """The width of its bar: its mean step over the longest one (0 to 1)."""
    accounting: Accounting
    waits: str
    """The ranks that it waits for, and how long."""


def _ranks(diagnosis: Diagnosis | None) -> list[RankRow]:
    """The ranks of a job, where there are several; at most so many that a page shows them."""
    counted = [one for one in diagnosis.per_rank if one.steps.count] if diagnosis else []
    if len(counted) < 2:
        return []
    means = [one.steps.total_ns / one.steps.count for one in counted]
    return [
        RankRow(
            "rank ?" if one.rank is None else f"rank {one.rank}",
            format_ns(mean),
            mean / max(means),
            one.accounting,
            side_by_side.whom(one, 1),
        )
        for one, mean in list(zip(counted, means, strict=True))[:_MOST_RANKS]
    ]


def _cause_of(state: State) -> dict[str, int]:
    """Return the number of the first finding that asks for each measured fix: the two lead to each other."""
    findings = state.diagnosis.findings if state.diagnosis else ()
    tried = {verdict.fixer for verdict in verdict_table.measured(state.verdicts)}
    asked = [(name, number) for number, one in enumerate(findings, 1) for name in one.fixers if name in tried]
    return dict(reversed(asked))


def _proposed(state: State) -> list[Verdict]:
    """Return what a dry run would try, each with its diff."""
    if not verdict_table.is_dry(state):
        return []
    return [verdict for verdict in state.verdicts if verdict.decision is not Decision.ADVICE]


def _diff_class(line: str) -> str:
    """Return how a line of a diff is coloured; the names of files are no changes."""
    if line.startswith(("+++", "---", "diff ")):
        return "file"
    return _DIFF_CLASSES.get(line[:1], "")


def _with_code(words: str) -> Markup:
    """A sentence as HTML: what stands between backticks is code."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(words))))


@cache
def _script() -> tuple[str, str]:
    """The page's script, and its hash as a content security policy names it."""
    text = files("diagnose.report.page").joinpath("page.js").read_text(encoding="utf-8")
    return text, "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _template() -> Template:
    # Jinja takes 0.1 s to import: only a page pays for it.
    from jinja2 import Environment, StrictUndefined

    here = files("diagnose.report.page")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "code": _with_code,
        "evidence": phrases.evidence,
        "chosen": phrases.chosen,
        "promise": verdict_table.promise,
    }
    environment.globals |= {
        "style": here.joinpath("page.css").read_text(encoding="utf-8"),
        "health": health,
        "phrases": phrases,
        "run_title": run_title,
        "ending": run_outcome,
        "memory": memory,
        "ladder": ladder,
        "predictions": predictions,
        "probe_answers": probe_answers,
        "tried": verdict_table,
        "unsure": unsure,
        "slices": slices,
        "on_average": on_average,
        "bounds_of_compute": bounds_of_compute,
        "place": place,
        "resolution_in_words": resolution_in_words,
        "diff_class": _diff_class,
        "spread_words": side_by_side.spread_words,
        "example_of": example_of,
        "looks_of": looks_of,
        "timeline_json": timeline_json,
        "memory_picture": memory_picture,
        "memory_width": WIDTH,
        "memory_height": HEIGHT,
        "span_look": span_look,
        "event_table": event_table,
        "events_in_words": events_in_words,
        "roofline_size": (roofline_plot.WIDTH, roofline_plot.HEIGHT),
        "flame_width": flame_graph.WIDTH,
        "flame_row": flame_graph.ROW,
        "flame_colours": flame_graph.COLOURS,
        "counter_size": (counter_charts.WIDTH, counter_charts.HEIGHT),
        "format_ns": format_ns,
        "format_bytes": format_bytes,
        "format_share": format_share,
        "severities": SEVERITIES,
        "named_count": named_count,
        "chart_width": step_chart.WIDTH,
        "chart_height": step_chart.HEIGHT,
    }
    return environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))


REPORT = Report("html", ".html", render)
