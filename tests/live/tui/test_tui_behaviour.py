"""What the screen does: how it follows the work, how it is left, where keys lead."""

from __future__ import annotations

from dataclasses import replace

import journals
import msgspec
import pytest
import tinygpt
from screens import Tell, asked, drawn_at_once, driven, settled, view  # noqa: F401 - `drawn_at_once` holds for each test here
from textual.widgets import ContentSwitcher
from textual.widgets._footer import FooterKey
from watching import LIMIT_S

from diagnose.errors import ProgramFailed
from diagnose.model import Diagnosis, Place
from diagnose.session import DiagnosisMade, ProgramOutput, RunEnded, RunStarted, State, fold
from diagnose.tui.app import DiagnoseApp, FollowingEnded
from diagnose.tui.drawing.trial import trial_lines
from diagnose.tui.feed import Feed
from diagnose.tui.picture import picture
from diagnose.tui.tabs.findings import FindingsPane, detail
from diagnose.tui.tabs.fixes import TRYING, FixesPane
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.key_bar import KeyBar
from diagnose.tui.widgets.lines import Lines


@driven
async def test_tabs_are_reached_by_number_and_by_tab_key() -> None:
    app = view(journals.fixed())
    async with app.run_test() as pilot:
        switcher = app.query_one(ContentSwitcher)
        for key, name in (("2", "findings"), ("5", "output"), ("tab", "overview"), ("shift+tab", "output")):
            await pilot.press(key)
            assert switcher.current == name


@driven
async def test_a_tab_is_reached_by_clicking_it() -> None:
    app = view(journals.fixed())
    async with app.run_test() as pilot:
        await pilot.click("#tabs", offset=(20, 0))
        assert app.active == "findings"


@driven
async def test_enter_on_the_overview_opens_that_finding() -> None:
    app = view(journals.diagnosed())
    async with app.run_test() as pilot:
        await pilot.press("j", "enter")
        assert app.active == "findings"
        assert app.query_one(FindingsPane).place_text() == "/home/user/tinygpt/train.py:17"


@driven
async def test_enter_goes_to_the_details_and_escape_comes_back() -> None:
    app = view(journals.diagnosed())
    async with app.run_test() as pilot:
        await pilot.press("2", "enter")
        assert app.focused is app.query_one("#finding-detail")
        await pilot.press("escape")
        assert app.focused is app.query_one("#finding-list")


@driven
async def test_one_key_leads_from_a_finding_to_its_fix_and_back() -> None:
    app = view(journals.fixed())
    async with app.run_test() as pilot:
        await pilot.press("2")
        finding = app.query_one(FindingsPane).current_index
        assert finding is not None and app.state.diagnosis is not None
        await pilot.press("v")
        fix = app.query_one(FixesPane).current
        assert app.active == "fixes"
        assert fix is not None and fix.name in app.state.diagnosis.findings[finding].fixers
        await pilot.press("v")
        assert app.active == "findings"
        assert app.query_one(FindingsPane).current_index == finding


@driven
async def test_a_finding_of_a_recording_has_no_fix_to_lead_to() -> None:
    app = DiagnoseApp(Feed(State(diagnosis=tinygpt.gpu_diagnosis())))
    async with app.run_test() as pilot:
        await pilot.press("2", "v")
        assert app.active == "findings"


@driven
async def test_a_finding_that_a_search_has_hidden_is_found_again() -> None:
    app = view(journals.diagnosed())
    async with app.run_test() as pilot:
        await pilot.press("2")
        pane = app.query_one(FindingsPane)
        pane.search("no finding has these words")
        pane.select(1)
        assert (pane.current_index, pane.searched) == (1, "")


@driven
async def test_copying_takes_the_place_of_a_finding_and_the_accepted_diff() -> None:
    app = view(journals.fixed())
    async with app.run_test() as pilot:
        await pilot.press("2", "y")
        assert app.clipboard == "/home/user/tinygpt/train.py:27"
        await pilot.press("4", "y")
        assert app.clipboard.startswith("--- a/train.py\n+++ b/train.py\n")


@driven
async def test_a_view_is_left_without_a_question() -> None:
    app = view(journals.fixed())
    async with app.run_test() as pilot:
        await pilot.press("q")
    assert app.return_value == 0


@driven
async def test_work_runs_in_a_thread_and_its_exit_code_is_the_screens() -> None:
    def work(tell: Tell) -> int:
        for event in journals.fixed():
            tell(event)
        return 3

    app = DiagnoseApp(Feed(), work)
    async with app.run_test() as pilot:
        await settled(pilot, lambda: app.state.ended is not None)
        assert app.is_running, "the result stays on the screen until the user leaves"
        await settled(pilot, lambda: not app.at_work)
        await pilot.press("q")
    assert app.return_value == 3


@driven
async def test_no_event_is_lost_however_fast_they_come() -> None:
    count = 2000

    def work(tell: Tell) -> int:
        for number in range(count):
            tell(ProgramOutput(at_ns=number, text=f"{number}\n"))
        return 0

    app = DiagnoseApp(Feed(), work)
    async with app.run_test() as pilot:
        await settled(pilot, lambda: not app.at_work)
        assert app.state.output.splitlines() == [str(number) for number in range(count)]


def test_events_that_follow_each_other_fast_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.tui.app.DRAW_EVERY_S", float(LIMIT_S))

    @driven
    async def test() -> None:
        feed = Feed()
        app = DiagnoseApp(feed)
        async with app.run_test() as pilot:
            for text in ("1", "2"):
                feed.accept(ProgramOutput(text=text))
                await pilot.pause()
                assert app.state.output == ""
            app.post_message(FollowingEnded())  # the last word is drawn at once
            await settled(pilot, lambda: app.state.output == "12")

    test()


@driven
async def test_an_error_of_the_work_is_kept_for_whoever_opened_the_screen() -> None:
    def work(_tell: Tell) -> int:
        raise ProgramFailed("train.py ended with exit code 1", 1)

    app = DiagnoseApp(Feed(), work)
    async with app.run_test() as pilot:
        await settled(pilot, lambda: not app.at_work)
    assert isinstance(app.error, ProgramFailed)


@driven
async def test_the_cursor_goes_along_with_the_trials_until_the_user_moves_it() -> None:
    events = journals.fixed()
    first_trial = next(index for index, event in enumerate(events) if type(event).__name__ == "TrialStarted")
    feed = Feed(fold(events[: first_trial + 1]))
    app = DiagnoseApp(feed)
    async with app.run_test() as pilot:
        await pilot.press("3")
        pane = app.query_one(FixesPane)
        rest = iter(events[first_trial + 1 :])
        for event in rest:
            feed.accept(event)
            if type(event).__name__ == "TrialStarted":
                break
        await settled(pilot, lambda: pane.current is not None and pane.current.name == "defer-item")
        await pilot.press("up")
        for event in rest:
            feed.accept(event)
        await settled(pilot, lambda: app.state.ended is not None)
        await pilot.pause()
        assert pane.current is not None
        assert pane.current.name == "loader-workers"


@driven
async def test_output_follows_its_end_and_keeps_what_a_progress_bar_left() -> None:
    feed = Feed(State(output="first\n" + "line\n" * 50 + "10 %\r50 %\r100 %\n"))
    app = DiagnoseApp(feed)
    async with app.run_test() as pilot:
        await pilot.press("2")
        view_lines = app.query_one("#output-lines", Lines)
        await settled(pilot, lambda: view_lines.scroll_offset.y == view_lines.max_scroll_y > 0)
        assert app.state.output.endswith("100 %\n")
        assert "100 %" in app.export_screenshot().replace("&#160;", " ")
        assert "50 %" not in app.export_screenshot().replace("&#160;", " ")


@driven
async def test_the_output_of_a_program_that_printed_nothing_is_no_tab_once_it_has_ended() -> None:
    feed = Feed(fold([RunStarted(command="run", program="train.py", cwd="/home/user", version="0.1.0")]))
    app = DiagnoseApp(feed)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3")
        assert app.active == "output"
        await settled(pilot, lambda: "What the program prints" in app.export_screenshot().replace("&#160;", " "))
        feed.accept(RunEnded(returncode=0, exit_code=0))
        await settled(pilot, lambda: app.active == "overview")


@pytest.mark.parametrize("size", [(20, 6), (200, 60)])
@driven
async def test_no_size_of_terminal_breaks_it(size: tuple[int, int]) -> None:
    for events in (journals.waiting(), journals.fixed(), journals.failed()):
        app = view(events)
        async with app.run_test(size=size) as pilot:
            await pilot.press("2", "3", "4", "5", "question_mark", "escape", "1")
            assert app.is_running


@driven
async def test_an_empty_state_and_a_bare_diagnosis_can_be_shown() -> None:
    empty = Diagnosis(1, (), 0, None, tinygpt.gpu_diagnosis().steps, tinygpt.gpu_diagnosis().accounting)
    for state in (State(), State(diagnosis=empty), State(diagnosis=tinygpt.gpu_diagnosis())):
        app = DiagnoseApp(Feed(state))
        async with app.run_test() as pilot:
            await pilot.press("2", "3", "4", "5", "1", "y")
            assert app.is_running


def test_a_picture_is_an_svg_of_what_the_keys_lead_to() -> None:
    drawn = picture(fold(journals.fixed()), None, ["4"], (80, 30), tinygpt.SOURCES.get)
    assert drawn.startswith("<svg")
    assert "num_workers=4" in drawn


@driven
async def test_of_many_findings_each_keeps_to_its_line_beside_the_bar() -> None:
    (diagnosis,) = (event for event in journals.diagnosed() if isinstance(event, DiagnosisMade))
    first = diagnosis.diagnosis.findings[0]
    far = Place(file=f"/srv/{'folder/' * 20}train.py", line=7)
    many = tuple(replace(first, rule=f"rule-{index}", where=(far,)) for index in range(40))
    events = [*journals.diagnosed(), DiagnosisMade(diagnosis=replace(diagnosis.diagnosis, findings=many))]
    app = view(events)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        listed = app.query_one("#finding-list", Choices)
        assert listed.show_vertical_scrollbar
        rows = ["".join(segment.text for segment in listed.render_line(row)) for row in range(listed.size.height)]
        assert [row.split()[2] for row in rows] == [f"rule-{index}" for index in range(len(rows))]
        await pilot.press("G")
        assert listed.highlighted == listed.option_count - 1
        await pilot.press("g")
        assert listed.highlighted == 0


def test_what_would_be_tried_and_what_would_confirm_it_are_told_whole() -> None:
    (diagnosis,) = (event for event in journals.diagnosed() if isinstance(event, DiagnosisMade))
    fixers = tuple(f"fixer-number-{index}" for index in range(9))
    finding = replace(diagnosis.diagnosis.findings[0], fixers=fixers, confirm=f"{'words ' * 30}end")
    lines = [line.plain for line in detail(finding, None, 78, tinygpt.SOURCES.get, lambda _rule: "")]
    said = " ".join(" ".join(lines).split())
    assert ", ".join(fixers) in said
    assert f"{'words ' * 30}end" in said
    assert max(map(len, lines)) <= 78


@driven
async def test_a_tab_at_the_front_fits_though_nothing_tells_it_of_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tab, "on_resize", lambda _tab: None)  # as where Textual sends it none
    app = view(journals.diagnosed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        listed = app.query_one("#finding-list", Choices)
        first = "".join(segment.text for segment in listed.render_line(0))
        assert first.split()[:3] == ["▲", "high", "input-bound"]
        assert first.rstrip().endswith("train.py:27")


@pytest.mark.parametrize("width", [36, 53, 80])
def test_details_keep_to_their_width(width: int) -> None:
    state = fold(journals.trying())
    assert state.diagnosis is not None
    said = detail(state.diagnosis.findings[0], None, width, tinygpt.SOURCES.get, lambda _rule: "")
    (trial,) = [one for one in state.trials if one.verdict is None]
    # A diff keeps its lines whole: one scrolls sideways there.
    without_diff = replace(trial, started=msgspec.structs.replace(trial.started, diff=""))
    drawn = trial_lines(without_diff, None, TRYING, 0.01, width, None)
    assert [line.plain for line in (*said, *drawn) if line.cell_len > width] == []


@driven
async def test_no_key_of_the_last_line_is_cut_and_those_that_lead_on_come_first() -> None:
    app = view(journals.diagnosed())
    async with app.run_test(size=(60, 24)) as pilot:
        await pilot.press("2")
        await settled(pilot, lambda: len(app.query(FooterKey)) > 3)
        keys = list(app.query_one(KeyBar).query(FooterKey))
        assert [key.description for key in keys[:3]] == ["Quit", "Help", "Tabs"]
        assert max(key.region.right for key in keys) <= 60
        few = len(keys)
        await pilot.resize_terminal(90, 24)
        await settled(pilot, lambda: len(app.query_one(KeyBar).query(FooterKey)) > few)
