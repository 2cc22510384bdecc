"""The first tab: how the run goes, where a step's time goes, what to fix first, how it ended."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive

from diagnose.model import TOGETHER, Decision, Diagnosis
from diagnose.report.sections.memory import ONLY_MEMORY
from diagnose.report.sections.next_steps import next_command
from diagnose.report.sections.run_outcome import kept_by_trial, nothing_kept
from diagnose.report.sections.verdict_table import measured
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import clip
from diagnose.report.style.step_bar import bar, legend, slices
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT, BAD, GOOD
from diagnose.report.terminal.probes import probe_lines
from diagnose.report.wording.compute_bounds import bounds_of_compute
from diagnose.report.wording.health import is_healthy, is_quiet, quiet_news, unexplained
from diagnose.report.wording.mean_vs_median import on_average
from diagnose.report.wording.phrases import arithmetic, final
from diagnose.report.wording.run_title import is_one_piece
from diagnose.session import State
from diagnose.tui.drawing.finding_line import finding_lines
from diagnose.tui.header import INTERRUPTED
from diagnose.tui.panels.overview_panels import CostliestPanel, LanesPanel, MemoryPanel, OutputPanel
from diagnose.tui.panels.ranks import RankPanel, has_ranks
from diagnose.tui.panels.steps import StepPanel
from diagnose.tui.tabs.present import present
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.panel import Panel, spread
from diagnose.units import format_ns

_MIDDLE, _TALL, _HIGH, _VERY_TALL = 28, 34, 40, 46  # rows


class AccountingPanel(Panel):
    """One step as a bar, every nanosecond once."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - as many lines as the legend needs
        diagnosis = self.state.diagnosis
        parts = slices(diagnosis.accounting) if diagnosis else ()
        title = styled("Where a step goes", "bold")
        if diagnosis is None or not parts:
            return [title, styled("known once a few steady steps were traced", FAINT)]
        what = "the whole recording" if is_one_piece(diagnosis) else "median traced step"
        what += ", slowest rank" if diagnosis.ranks > 1 else ""
        beside = styled(format_ns(diagnosis.accounting.total_ns), "bold").append(f" {what}", FAINT)
        if len(title) + 2 + len(beside) > width:
            title = styled("A step", "bold")
        solid, thick = not self.app.no_color, 2 if self.app.size.height >= _TALL else 1
        told = beneath_the_bar(diagnosis, tall=thick > 1)
        said = [styled(line, style) for words, style in told if words for line in wrap(words, width)]
        return [spread(title, beside, width), *[bar(parts, width, solid)] * thick, *legend(parts, width, solid), *said]


def beneath_the_bar(diagnosis: Diagnosis, *, tall: bool) -> list[tuple[str, str]]:
    """Sentences about the step, with their styles; what explains the compute only where there is room."""
    told = [(on_average(diagnosis), ""), (unexplained(diagnosis), "")]
    return [*told, (bounds_of_compute(diagnosis), FAINT), (arithmetic(diagnosis), FAINT)] if tall else told


class FirstFindings(Choices):
    """The findings, one line each."""

    state: reactive[State] = reactive(State, always_update=True)

    def watch_state(self) -> None:
        """Draw the entries anew."""
        diagnosis = self.state.diagnosis
        root = self.state.started.cwd if self.state.started else None
        findings = diagnosis.findings if diagnosis else ()
        width = (self.size.width or self.app.size.width - 4) - self.scrollbar_size_vertical
        self.show([(str(index), line) for index, line in enumerate(finding_lines(findings, root, width))])
        self.display = bool(findings)

    def on_resize(self) -> None:
        """Another width, other lines."""
        self.watch_state()


class FindingsTitle(Panel):
    """The title above the list: the question that it answers, or that there is nothing to answer."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - a few lines, whatever the height
        diagnosis = self.state.diagnosis
        if diagnosis is None:
            return [styled("Fix first", "bold"), styled("findings appear here, the costliest first", FAINT)]
        if is_stepless(diagnosis):
            if diagnosis.memory is not None:
                return [styled(line, FAINT) for line in wrap(ONLY_MEMORY, width)]
            return [styled("No training step was found in the recording.", BAD)]
        if is_quiet(diagnosis):
            first, *rest = wrap(quiet_news(diagnosis), width - 2)
            return [
                (styled("✓ ", GOOD) if is_healthy(diagnosis) else styled("? ", "bold")).append(first, "bold"),
                *(styled(f"  {line}") for line in rest),
            ]
        left = styled("Fix first", "bold")
        return [spread(left, styled(_gives_back(diagnosis), FAINT), width)]


def _gives_back(diagnosis: Diagnosis) -> str:
    """Return what the columns of the list are, with the step that their shares are of."""
    step_ns = diagnosis.step_ns or diagnosis.steps.median_ns
    return f"gives back, of each {format_ns(step_ns)} step" if step_ns else "gives back, of each step"


class Outcome(Panel):
    """How it ended, once it has: the figure reported and what to type next."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - a few lines, whatever the height
        state = self.state
        if state.ended is None and state.final is None:
            return [*_so_far(state, width), *probe_lines(state.probes, width)]
        lines = []
        if state.final is not None:
            better = state.final.patched_ns <= state.final.original_ns
            lines += [styled(line, f"bold {GOOD if better else BAD}") for line in wrap(final(state), width)]
        elif said := kept_by_trial(state):
            lines += [styled(line, f"bold {GOOD}") for line in wrap(said, width)]
        elif said := nothing_kept(state):
            lines += [styled(line, "bold") for line in wrap(said, width)]
        elif state.ended is not None and state.ended.exit_code not in (0, INTERRUPTED) and state.ended.message:
            lines += [styled(line, BAD) for line in wrap(state.ended.message, width)]
        lines += probe_lines(state.probes, width)
        command = next_command(state)
        if command is not None and state.ended is not None:
            line = styled("Next  ", FAINT).append(command[0], f"bold {ACCENT}")
            first, _, rest = command[1].partition("; ")
            whole = not rest or len(line) + 2 + len(command[1]) <= width
            line.append(f"  {command[1] if whole else first}", FAINT)
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
        return lines


def _so_far(state: State, width: int) -> list[Text]:
    """Return what is said while fixes are tried: which one, how it looks, and how many are done. Empty before."""
    if not state.trials:
        return []
    line = styled("Fixes  ", FAINT)
    if judged := measured(state.verdicts):
        kept = sum(verdict.decision is Decision.KEPT for verdict in judged)
        line.append(f"{kept} of {len(judged)} kept")
    trial = state.trials[-1]
    if trial.verdict is None:
        what = trial.started.summary if trial.started.fixer == TOGETHER else trial.started.fixer
        line.append("   ▸ trying " if judged else "▸ trying ", ACCENT).append(clip(what, max(width // 2, 1)), "bold")
        if trial.blocks:
            last = trial.blocks[-1]
            line.append(f", pair {len(trial.blocks)}: {format_ns(last.original_ns)} → {format_ns(last.patched_ns)}")
    line.truncate(width, overflow="ellipsis")
    return [line]


class Overview(Vertical):
    """The tab."""

    state: reactive[State] = reactive(State, always_update=True)

    def compose(self) -> ComposeResult:
        yield StepPanel(id="steps").data_bind(Overview.state)
        yield AccountingPanel(id="accounting").data_bind(Overview.state)
        yield LanesPanel(id="lanes").data_bind(Overview.state)
        yield RankPanel(id="ranks").data_bind(Overview.state)
        yield FindingsTitle(id="findings-title").data_bind(Overview.state)
        yield FirstFindings(id="first-findings").data_bind(Overview.state)
        yield Outcome(id="outcome").data_bind(Overview.state)
        yield OutputPanel(id="last-output").data_bind(Overview.state)
        yield MemoryPanel(id="memory-peak").data_bind(Overview.state)
        yield CostliestPanel(id="costliest").data_bind(Overview.state)

    def watch_state(self) -> None:
        """Show what there is, and no empty room for what is not."""
        self._choose()

    def on_resize(self) -> None:
        """A large terminal has room for more."""
        self._choose()

    def _choose(self) -> None:
        if not self.is_mounted:
            return
        state, rows = self.state, self.app.size.height
        lost = state.ended is not None and state.diagnosis is None
        live = any(len(steps.ends_ns) > 1 for steps in state.steps.values()) or state.diagnosis is None
        stepless = is_stepless(state.diagnosis)
        told = state.ended is not None or state.final is not None or bool(state.trials or state.probes)
        profile = state.profile
        self.query_one(StepPanel).display = live
        self.set_class(not live, "-without-steps")
        self.query_one(AccountingPanel).display = not lost and not stepless
        self.query_one(RankPanel).display = has_ranks(state)
        self.query_one(FindingsTitle).display = not lost
        self.query_one(Outcome).display = not lost and told
        self.query_one(MemoryPanel).display = stepless and "memory" in present(state)
        self.query_one(OutputPanel).display = live and not lost and bool(state.output) and rows >= _VERY_TALL
        timed = profile is not None and profile.timeline is not None and bool(profile.timeline.lanes)
        self.query_one(LanesPanel).display = timed and not stepless and rows >= (_HIGH if live else _MIDDLE)
        known = profile is not None and bool(profile.kernels or profile.operators) and not stepless
        self.query_one(CostliestPanel).display = known and (rows >= _VERY_TALL or not live)


def is_stepless(diagnosis: Diagnosis | None) -> bool:
    """Whether a recording has no training steps, as a memory snapshot has none."""
    return diagnosis is not None and diagnosis.steps.count == 0
