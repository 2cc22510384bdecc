"""The third tab: every fix on one axis, and for the one under the cursor its pairs, its interval, and its verdict."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.widgets import OptionList

from diagnose.model import Decision, Interval, Place, Verdict
from diagnose.report.sections.verdict_table import look
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import clip
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import ACCENT, Look
from diagnose.report.wording.phrases import interval, saves, signed_percent
from diagnose.report.wording.resolution import band, resolution_in_words
from diagnose.session import State, TrialState
from diagnose.tui.drawing.chart import Scale, interval_line
from diagnose.tui.drawing.trial import trial_lines
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.lines import Lines
from diagnose.tui.widgets.panel import Panel
from diagnose.units import format_ns

_NAME, _LONGEST_NAME, _DECISION, _SAVING = 18, 24, 16, 24
_TOO_NOISY = 0.25
"""A noise floor of a quarter of a step hides nearly every fix: few save more."""
TRYING = Look("trying", "▸", ACCENT)
WAITING = Look("to be tried", "·", FAINT)


@dataclass(frozen=True)
class Fix:
    """One line of the list."""

    key: str
    name: str
    look: Look
    trial: TrialState | None = None
    verdict: Verdict | None = None

    @property
    def saving(self) -> Interval | None:
        """The verdict's interval, or the newest one of a trial that still runs."""
        if self.verdict is not None:
            return self.verdict.saving
        for block in reversed(self.trial.blocks if self.trial else ()):
            if block.saving is not None and block.low is not None and block.high is not None:
                return Interval(block.saving, block.low, block.high)
        return None

    @property
    def diff(self) -> str:
        """The diff of the fix, as far as it is known."""
        return (self.verdict.diff if self.verdict else "") or (self.trial.started.diff if self.trial else "")


def fixes_of(state: State) -> list[Fix]:
    """Return the fixes: those tried, in order, then those judged without a trial, then those still to come."""
    tried: dict[str, Fix] = {}
    for number, trial in enumerate(state.trials):
        name = trial.started.fixer
        judged = look(state, trial.verdict) if trial.verdict else TRYING
        before = tried.get(name)
        if before is not None and trial.verdict is not None and trial.verdict.decision is Decision.KEPT:
            # Checked again and still needed: the figures stay those of its own trial, and so do its pairs.
            tried[name] = replace(before, look=judged, verdict=trial.verdict)
        else:
            tried[name] = Fix(before.key if before else f"trial-{number}", name, judged, trial, trial.verdict)
    fixes = list(tried.values())
    shown = [trial.verdict for trial in state.trials]
    for number, verdict in enumerate(state.verdicts):
        if not any(verdict is other for other in shown):
            fixes.append(Fix(f"verdict-{number}", verdict.fixer, look(state, verdict), None, verdict))
    if state.started is not None and state.started.command == "fix" and state.ended is None and state.diagnosis:
        seen = {fix.name for fix in fixes}
        coming = dict.fromkeys(name for finding in state.diagnosis.findings for name in finding.fixers)
        fixes += [Fix(f"coming-{name}", name, WAITING) for name in coming if name not in seen]
    return fixes


def _name_width(fixes: list[Fix]) -> int:
    """Columns for the names and a space."""
    return min(max([_NAME, *(len(fix.name) + 1 for fix in fixes)]), _LONGEST_NAME)


class FixesHead(Panel):
    """The columns of the list and the axis of its intervals."""

    def draw(self, width: int, height: int | None) -> list[Text]:  # noqa: ARG002 - two lines, whatever the height
        fixes = fixes_of(self.state)
        if not fixes:
            return []
        names = _name_width(fixes)
        saves = "saves, of a step [95 %]" if width >= names + _DECISION + _SAVING else "saves"
        line = styled(f"  {'fix':<{names}}{'verdict':<{_DECISION}}{saves:<{_SAVING}}", FAINT)
        room = width - len(line) - 1
        if room >= 12 and any(fix.saving for fix in fixes):
            line.append_text(_axis(_scale(self.state, room)))
        line.truncate(width)
        return [*self._control(width), line]

    def _control(self, width: int) -> list[Text]:
        control = self.state.control
        if control is None:
            return []
        words = (
            f"Noise floor {resolution_in_words(control.resolution)} of a step: smaller changes cannot be measured here."
            if control.resolution <= _TOO_NOISY
            else "Too noisy to measure: the original run against itself differs by "
            f"{resolution_in_words(control.resolution)} of a step. Try again on a quiet machine."
        )
        return [styled(line, FAINT) for line in wrap(words, width)] + [Text()]


def _scale(state: State, width: int) -> Scale:
    savings = [fix.saving for fix in fixes_of(state)]
    ends = [end for saving in savings if saving for end in (saving.low, saving.high)]
    resolution = state.control.resolution if state.control else 0.0
    return Scale.around([*ends, *band(resolution)], width)


def _axis(scale: Scale) -> Text:
    """Zero and the greatest tens of percent that fit."""
    cells = [" "] * scale.width
    zero = scale.cell(0.0)
    cells[zero] = "0"
    for percent in (80, 60, 50, 40, 30, 20, 10, 5, 2):
        label = f"{percent} %"
        start = scale.cell(percent / 100) - len(label) // 2
        if percent / 100 < scale.high and start > zero + 2 and start + len(label) <= scale.width:
            cells[start : start + len(label)] = label
            break
    return styled("".join(cells), FAINT)


class FixesPane(Tab):
    """The tab."""

    def __init__(self) -> None:
        super().__init__("fixes")
        self._followed: str | None = None

    def compose(self) -> ComposeResult:
        yield FixesHead(id="fixes-head").data_bind(FixesPane.state)
        yield Choices(id="fix-list")
        yield Lines(id="fix-detail")

    def watch_state(self) -> None:
        """Trials move with every pair of blocks."""
        if self.is_mounted:
            self.refill()

    @on(OptionList.OptionHighlighted, "#fix-list")
    def _moved(self) -> None:
        self._detail()

    @on(OptionList.OptionSelected, "#fix-list")
    def _entered(self) -> None:
        self.query_one(Lines).focus()

    @property
    def current(self) -> Fix | None:
        """The fix under the cursor."""
        key = self.query_one(Choices).key
        return next((fix for fix in fixes_of(self.state) if fix.key == key), None)

    @property
    def place(self) -> Place | None:
        """The line that the fix under the cursor treats."""
        fix = self.current
        verdict, trial = (fix.verdict, fix.trial) if fix else (None, None)
        where = verdict.where if verdict and verdict.where else trial.started.where if trial else ()
        return where[0] if where else None

    def select(self, names: Collection[str]) -> bool:
        """Put the cursor on the first fix with one of the names; False where there is none."""
        key = next((fix.key for fix in fixes_of(self.state) if fix.name in names), None)
        return key is not None and self.query_one(Choices).go_to(key)

    def fill(self) -> None:
        """Draw it."""
        choices = self.query_one(Choices)
        fixes = fixes_of(self.state)
        moved = choices.key is not None and choices.key != self._followed
        width = max(self.room.width - 1, 20)
        choices.display = bool(fixes)
        names = _name_width(fixes)
        choices.show([(fix.key, self._entry(fix, width, names)) for fix in fixes])
        running = [index for index, fix in enumerate(fixes) if fix.look is TRYING]
        if not moved:
            # The cursor goes along with the trials until the user takes it.
            if running:
                choices.highlighted = running[-1]
            self._followed = choices.key
        self._detail()

    def _entry(self, fix: Fix, width: int, names: int) -> Text:
        line = styled(f"{fix.look.mark} ", fix.look.colour).append(f"{clip(fix.name, names - 1):<{names}}", "bold")
        words = fix.look.label
        if fix.look is TRYING and fix.trial is not None and fix.trial.blocks:
            words = f"trying, pair {len(fix.trial.blocks)}"
        line.append(f"{words:<{_DECISION}}", fix.look.colour)
        saving = fix.saving
        if saving is None:
            if fix.verdict is not None and fix.verdict.decision is Decision.KEPT:
                line.append(saves(fix.verdict), FAINT)
            elif fix.verdict is not None and fix.verdict.predicted_ns:
                line.append(f"predicted {format_ns(fix.verdict.predicted_ns)}", FAINT)
            return line
        if width < names + _DECISION + _SAVING:
            return line.append(signed_percent(saving.estimate))
        line.append(f"{interval(saving):<{_SAVING}}")
        room = width - len(line)
        if room >= 12:
            resolution = self.state.control.resolution if self.state.control else 0.0
            scale = _scale(self.state, room)
            line.append_text(
                interval_line(scale, saving.low, saving.estimate, saving.high, resolution, fix.look.colour)
            )
        return line

    def _detail(self) -> None:
        view = self.query_one(Lines)
        width = max((view.size.width or self.room.width) - 1, 20)
        fix = self.current
        resolution = self.state.control.resolution if self.state.control else 0.0
        if fix is None:
            view.show(_none_yet(width))
        else:
            root = self.state.started.cwd if self.state.started else None
            view.show(trial_lines(fix.trial, fix.verdict, fix.look, resolution, width, root, view.size.height))


def _none_yet(width: int) -> list[Text]:
    words = "No fix has been tried yet. Findings come first; then each fix is measured on a copy of your files."
    return [styled("No fixes yet", "bold"), *(styled(line, FAINT) for line in wrap(words, width))]
