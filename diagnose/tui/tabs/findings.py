"""The second tab: every finding, and for the one under the cursor what proves it, where it is, and why it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import OptionList

from diagnose.model import Diagnosis, Finding, Place, TraceEvent
from diagnose.report.sections.verdict_table import without_edit
from diagnose.report.style.line_wrapping import NARROWEST, wrap
from diagnose.report.style.paths import clip, clipped_path, place
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import GOOD, MUTED, SEVERITIES, named_count
from diagnose.report.wording.cannot_tell import unsure
from diagnose.report.wording.health import is_healthy
from diagnose.report.wording.phrases import gain, measure, sentence, value
from diagnose.session import State
from diagnose.tui.drawing.code import AROUND, ReadSource, context, read_source
from diagnose.tui.drawing.finding_line import cost, finding_lines
from diagnose.tui.screens.evidence import EvidenceScreen
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.lines import Lines
from diagnose.units import format_share

Explain = Callable[[str], str]
_PLACES = 3
_MOST_AROUND = 14
_ROWS_OF_REST = 30
"""Rows of the details beside the code: evidence, and what the rule says."""
_NAMES = 12  # columns


class FindingsPane(Tab):
    """The tab: a list, and the details of the entry under its cursor."""

    def __init__(self, read: ReadSource = read_source, explain: Explain = lambda _rule: "") -> None:
        super().__init__("findings")
        self._read = read
        self._explain = explain

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "events", "Events", show=False)]

    class EventChosen(Message):
        """An event behind a finding's number is to be shown on the timeline."""

        def __init__(self, event: TraceEvent, finding: int) -> None:
            super().__init__()
            self.event = event
            self.finding = finding

    def compose(self) -> ComposeResult:
        yield Choices(id="finding-list")
        yield Lines(id="finding-detail")

    def watch_state(self, before: State, state: State) -> None:
        """Draw anew for a new diagnosis, and for what its fixers answer; nothing else changes anything here."""
        is_new = before.diagnosis is not state.diagnosis or before.verdicts != state.verdicts
        if self.is_mounted and (is_new or not self._drawn()):
            self.refill()

    @on(OptionList.OptionHighlighted, "#finding-list")
    def _moved(self) -> None:
        self._detail()

    @on(OptionList.OptionSelected, "#finding-list")
    def _entered(self) -> None:
        self.query_one(Lines).focus()

    def action_events(self) -> None:
        """Open the events behind the numbers of the finding under the cursor."""
        finding, index = self._current(), self.current_index
        if finding is None or index is None:
            return
        numbers = [item for item in finding.evidence if item.events]
        if not numbers:
            self.notify("No number of this finding has events of the recording behind it.", timeout=3)
            return

        def chosen(event: TraceEvent | None) -> None:
            if event is not None:
                self.post_message(self.EventChosen(event, index))

        root = self.state.started.cwd if self.state.started else None
        self.app.push_screen(EvidenceScreen(finding.rule, numbers, root), chosen)

    def select(self, index: int) -> None:
        """Put the cursor on the finding with that index, also where a search has hidden it."""
        if not self.query_one(Choices).go_to(str(index)):
            self.search("")
            self.query_one(Choices).go_to(str(index))

    @property
    def current_index(self) -> int | None:
        """Which finding is under the cursor."""
        key = self.query_one(Choices).key
        return int(key) if key is not None and key.isdigit() else None

    @property
    def place(self) -> Place | None:
        """The line of the finding under the cursor."""
        finding = self._current()
        return finding.where[0] if finding and finding.where else None

    def place_text(self) -> str:
        """`file:line` of the finding under the cursor, to be copied."""
        return place(self.place, None) if self.place else ""

    def _drawn(self) -> bool:
        return self.query_one(Choices).option_count > 0

    def fill(self) -> None:
        """Draw it."""
        diagnosis = self.state.diagnosis
        entries = self._entries(diagnosis) if diagnosis else []
        if diagnosis is not None and diagnosis.cannot_tell:
            entries.append((_UNSURE, styled("? cannot tell", MUTED).append(f"  {len(diagnosis.cannot_tell)}", FAINT)))
        choices = self.query_one(Choices)
        choices.display = bool(entries)
        choices.show(entries)
        self._detail()

    def _entries(self, diagnosis: Diagnosis) -> list[tuple[str, Text]]:
        root = self.state.started.cwd if self.state.started else None
        beside = self.app.size.width >= _SIDE_BY_SIDE
        width = self.room.width - (len(diagnosis.findings) + 2 > _SCROLLS_FROM)  # the bar takes a column
        findings = diagnosis.findings
        lines = [_entry(finding) for finding in findings] if beside else finding_lines(findings, root, width)
        return [(str(index), line) for index, line in enumerate(lines) if self._holds(findings[index])]

    def search(self, words: str) -> str:
        """Keep the findings whose name, sentence or places hold `words`."""
        super().search(words)
        findings = self.state.diagnosis.findings if self.state.diagnosis else ()
        return f"{sum(map(self._holds, findings))} of {len(findings)}" if words else ""

    def _holds(self, finding: Finding) -> bool:
        texts = (finding.rule, finding.summary, *finding.fixers, *(place(where, None) for where in finding.where))
        return any(self.searched.lower() in text.lower() for text in texts)

    def _current(self) -> Finding | None:
        diagnosis, index = self.state.diagnosis, self.current_index
        return diagnosis.findings[index] if diagnosis and index is not None else None

    def _detail(self) -> None:
        view = self.query_one(Lines)
        width = max((view.size.width or self.room.width) - 1, 20)
        finding, diagnosis = self._current(), self.state.diagnosis
        root = self.state.started.cwd if self.state.started else None
        if finding is not None:
            no_edit = without_edit(self.state, finding)
            lines = detail(finding, root, width, self._read, self._explain, _around(view.size.height), no_edit)
        elif diagnosis is not None:
            lines = _without_finding(self.state, diagnosis, width)
        else:
            lines = [
                styled("No findings yet.", "bold"),
                *(styled(line, FAINT) for line in wrap("They come when a few steady steps have been traced.", width)),
            ]
        view.show(lines)
        view.scroll_home(animate=False)


_UNSURE = "cannot-tell"
_SIDE_BY_SIDE = 100  # columns; as the breakpoint of the application
_SCROLLS_FROM = 6  # entries, below that width; as the height of the list


def _entry(finding: Finding) -> Text:
    look = SEVERITIES[finding.severity]
    name = finding.rule if finding.rank is None else f"{finding.rule} r{finding.rank}"
    entry = styled(f"{look.mark} ", look.colour).append(f"{clip(name, 22):<23}", "bold")
    return entry.append_text(cost(finding))


def _around(rows: int) -> int:
    """Lines of code before and after a place: more where nothing else has the room."""
    return max(AROUND, min((rows - _ROWS_OF_REST) // 2, _MOST_AROUND))


def detail(
    finding: Finding,
    root: str | None,
    width: int,
    read: ReadSource,
    explain: Explain,
    around: int = AROUND,
    no_edit: Sequence[str] = (),
) -> list[Text]:
    """Everything that is known of one finding, in lines of `width` columns; `around` lines beside its first place."""
    look = SEVERITIES[finding.severity]
    head = styled(f"{look.mark} {look.label}  ", f"bold {look.colour}").append(finding.rule, "bold")
    if finding.rank is not None:
        head.append(f"  rank {finding.rank}", FAINT)
    lines = [head, *(styled(line) for line in wrap(sentence(finding.summary), width)), Text()]
    lines += _named("gives back", gain(finding), width, "bold")
    if finding.fixers:
        lines += _named("would try", ", ".join(finding.fixers), width)
    if finding.confirm:
        lines += _named("to confirm", finding.confirm, width)
    for at, why in enumerate(no_edit):
        lines += _named("" if at else "no edit", why, width)
    for index, where in enumerate(finding.where[:_PLACES]):
        spot = styled(clipped_path(place(where, root), width), "bold underline")
        beside = [f"in {where.function}"] if where.function else []
        if where.share is not None and len(finding.where) > 1:
            beside.append(f"{format_share(where.share)} of it")
        spot.append(f"  {', '.join(beside)}", FAINT).truncate(width, overflow="ellipsis")
        lines += [Text(), spot]
        beside_it = 0 if _shown_before(where, finding.where[:index]) else around if index == 0 else AROUND
        lines += context(where, read, width, beside_it)
    if finding.evidence:
        opened = "   enter: the events behind it" if any(item.events for item in finding.evidence) else ""
        head = styled("Evidence", "bold").append(opened, FAINT)
        head.truncate(width, overflow="ellipsis")
        lines += [Text(), head, *_evidence(finding, width)]
    for at, unlike in enumerate(finding.ruled_out):
        lines += _named("" if at else "ruled out", unlike, width)
    words = explain(finding.rule)
    if words:
        lines += [Text(), *_explanation(words, width)]
    return lines


def _named(name: str, words: str, width: int, style: str = "") -> list[Text]:
    """A name, and beside it words in as many lines as they take."""
    first, *more = wrap(words, width - _NAMES)
    beside = [("", line) for line in more]
    return [styled(f"{one:<{_NAMES}}", MUTED).append(line, style) for one, line in ((name, first), *beside)]


def _shown_before(where: Place, earlier: Sequence[Place]) -> bool:
    """Whether the lines around an earlier place have this one among them."""
    return any(other.file == where.file and abs(other.line - where.line) <= AROUND for other in earlier)


def _evidence(finding: Finding, width: int) -> list[Text]:
    names = [measure(item.measure) for item in finding.evidence]
    beside = [styled(value(item)) for item in finding.evidence]
    for item, figure in zip(finding.evidence, beside, strict=True):
        if item.events:
            figure.append(f"   {named_count(item.row_count, 'event')}", FAINT)
    column = min(max(map(len, names)), max(width - 2 - max(map(len, beside)), NARROWEST))
    lines = []
    for name, figure in zip(names, beside, strict=True):
        first, *more = wrap(name, column)
        line = styled(f"{first:<{column}}  ", MUTED).append_text(figure)
        line.truncate(width, overflow="ellipsis")
        lines += [line, *(styled(words, MUTED) for words in more)]
    return lines


def _explanation(words: str, width: int) -> list[Text]:
    """A rule's documentation, wrapped anew. A line that stands over indented ones is a heading."""
    lines: list[Text] = []
    for block in words.split("\n\n"):
        head, _, rest = block.strip("\n").partition("\n")
        if rest and not head.startswith(" ") and rest.startswith(" "):
            lines.append(styled(head, "bold"))
            block = rest
        lines += [styled(line, FAINT) for line in wrap(" ".join(block.split()), width)] + [Text()]
    return lines[:-1]


def _without_finding(state: State, diagnosis: Diagnosis, width: int) -> list[Text]:
    lines = []
    if is_healthy(diagnosis) and not diagnosis.findings:
        lines += [styled("✓ Nothing was found that costs time.", f"bold {GOOD}"), Text()]
    if diagnosis.cannot_tell:
        lines += [styled("Rules that could not decide on this recording", "bold"), Text()]
    for needs, rules in unsure(state).items():
        lines += [styled(line) for line in wrap(rules or needs, width)]
        if rules:
            said = f"{'need' if ',' in rules else 'needs'} {needs}"
            lines += [styled(f"  {line}", FAINT) for line in wrap(said, width - 2)]
    return lines
