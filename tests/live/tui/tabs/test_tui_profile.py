"""The tabs that show what the steps consist of, driven by keys as a user would."""

from __future__ import annotations

import functools
from dataclasses import replace

import journals
import pytest
from screens import drawn_at_once, driven, settled  # noqa: F401 - `drawn_at_once` holds for each test here
from textual.widgets import DataTable

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure.profile.step_profile import slowest_profile
from diagnose.report.style.kernel_names import short_kernel
from diagnose.session import State, fold
from diagnose.trace.drawn import drawn
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.feed import Feed
from diagnose.tui.screens.evidence import EvidenceScreen
from diagnose.tui.tabs.present import present
from diagnose.tui.widgets.sortable_table import SortableTable
from diagnose.tui.widgets.timeline_view import TimelineView

PICTURE = """
    load: wwww
    host:     ol ol  ol
    gpu :      aa bbb aa
    step:               |
"""
KERNELS = {"a": "void cutlass::a_gemm_kernel<float>(int)", "b": "b_elementwise_kernel"}


@functools.cache
def state() -> State:
    """A recording with a slow loader and two kernels."""
    trace = drawn(PICTURE, repeat=5, kernels=KERNELS)
    diagnosis = diagnose([trace], plugins.load_rules())
    return State(diagnosis=diagnosis, profile=slowest_profile([trace], diagnosis))


def seen(app: DiagnoseApp) -> str:
    return app.export_screenshot().replace("&#160;", " ")


def test_a_recording_has_the_tabs_that_it_can_fill_and_no_others() -> None:
    assert present(state()) == ["overview", "findings", "timeline", "kernels", "operators"]
    assert present(State()) == ["overview"]
    assert present(fold(journals.watching()))[-1] == "output"
    assert "memory" in present(fold(journals.full()))
    assert present(fold(journals.fixed()))[-3:] == ["fixes", "diff", "output"]


@driven
async def test_kernels_are_sorted_by_the_column_that_is_chosen() -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("4")
        table = app.query_one("#kernels DataTable", DataTable)
        names = [str(table.get_row_at(row)[-2 if len(table.columns) > 6 else -1]) for row in range(table.row_count)]
        assert table.row_count == 2 and names
        first = [str(cell) for cell in table.get_row_at(0)]
        await pilot.press("r")
        assert [str(cell) for cell in table.get_row_at(1)] == first
        await pilot.press("y")
        assert "b_elementwise_kernel" in app.clipboard


@driven
async def test_the_timeline_zooms_moves_and_goes_from_step_to_step() -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3")
        view = app.query_one(TimelineView)
        timeline = state().profile.timeline  # type: ignore[union-attr]
        assert timeline is not None
        whole = timeline.steps_ns[-1]
        assert view.shown_ns == (0, whole)
        await pilot.press("plus")
        assert view.shown_ns == (0, whole // 2)
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert view.shown_ns == (timeline.steps_ns[1], timeline.steps_ns[2])
        await pilot.press("0")
        assert view.shown_ns == (0, whole)


@driven
async def test_a_finding_is_shown_where_its_time_lies() -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "t")
        assert app.active == "timeline"
        found = state().diagnosis
        assert found is not None and found.findings[0].example_ns is not None
        begin, end = app.query_one(TimelineView).shown_ns
        timeline = state().profile.timeline  # type: ignore[union-attr]
        assert timeline is not None
        wanted = [moment - timeline.begin_ns for moment in found.findings[0].example_ns]
        assert begin <= wanted[0] < wanted[1] <= end
        assert found.findings[0].rule in seen(app)


@driven
async def test_a_pane_that_was_filled_while_hidden_fits_when_it_is_shown() -> None:
    feed = Feed(fold(journals.waiting()))
    app = DiagnoseApp(feed)
    async with app.run_test(size=(120, 40)) as pilot:
        for event in journals.fixed()[len(journals.waiting()) :]:
            feed.accept(event)
        await pilot.pause()
        await pilot.press("3")
        await pilot.pause()
        widths = [line.cell_len for line in app.query_one("#fix-detail")._lines]  # type: ignore[attr-defined]
        assert max(widths) > 60


@pytest.mark.parametrize("size", [(20, 6), (60, 20), (80, 24), (240, 70)])
@driven
async def test_no_size_breaks_the_tabs(size: tuple[int, int]) -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=size) as pilot:
        await pilot.press("3", "plus", "plus", "right", "w", "n", "down", "4", "s", "s", "5", "down", "1")
        assert app.is_running


@driven
async def test_without_colour_lanes_are_told_apart_by_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("3")
        assert "░░" in seen(app)


@driven
async def test_enter_opens_the_events_behind_a_number_and_one_of_them_is_shown_in_time() -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "enter", "enter")
        card = app.screen
        assert isinstance(card, EvidenceScreen)
        table = card.query_one(SortableTable)
        assert len(table.table_rows) > 1
        await pilot.press("s")
        steps = [int(row.cells[1].words) for row in table.table_rows]
        assert steps == sorted(steps, reverse=True) and steps[0] > 1
        await pilot.press("r")
        assert [int(row.cells[1].words) for row in table.table_rows] == steps[::-1]
        await pilot.press("t")
        assert app.active == "timeline"
        begin, end = app.query_one(TimelineView).shown_ns
        (finding,) = (one for one in app.state.diagnosis.findings if one.rule == "input-bound")  # type: ignore[union-attr]
        timeline = app.query_one(TimelineView).timeline
        assert timeline is not None
        moments = [event.begin_ns - timeline.begin_ns for event in finding.evidence[0].events]
        assert any(begin <= moment <= end for moment in moments)
        assert end - begin < timeline.steps_ns[-1]


@driven
async def test_what_is_no_finding_has_no_events_to_open() -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", "end", "enter", "enter")
        assert not isinstance(app.screen, EvidenceScreen)
        assert not app._notifications


@driven
async def test_escape_leaves_the_events_and_stays_at_the_finding() -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", "enter", "enter", "escape")
        assert app.active == "findings"
        assert not isinstance(app.screen, EvidenceScreen)


@driven
async def test_a_rule_whose_name_looks_like_markup_has_its_events_opened() -> None:
    diagnosis = state().diagnosis
    assert diagnosis is not None
    named = replace(diagnosis, findings=tuple(replace(one, rule="x[/nope]") for one in diagnosis.findings))
    app = DiagnoseApp(Feed(State(diagnosis=named)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "enter", "enter")
        assert isinstance(app.screen, EvidenceScreen)
        assert "x[/nope]: events behind a number" in seen(app)


@pytest.mark.parametrize("key", ["enter", "t"])
@driven
async def test_a_kernel_leads_to_its_longest_call_on_the_timeline(key: str) -> None:
    app = DiagnoseApp(Feed(state()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4", key)
        await settled(pilot, lambda: app.active == "timeline")
        name = app.query_one("#kernels SortableTable", SortableTable).table_rows[0].full_name
        view = app.query_one(TimelineView)
        assert short_kernel(name) in seen(app)
        begin, end = view.shown_ns
        assert view.timeline is not None
        assert end - begin < view.timeline.steps_ns[-1]


@driven
async def test_what_the_timeline_joins_with_others_is_said_to_have_no_call_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = state()
    assert shown.profile is not None
    assert shown.profile.timeline is not None
    alike = replace(shown.profile.timeline, labels=tuple(f"{one} and 9 more" for one in shown.profile.timeline.labels))
    app = DiagnoseApp(Feed(replace(shown, profile=replace(shown.profile, timeline=alike))))
    said: list[str] = []
    monkeypatch.setattr(app, "notify", lambda message, **_: said.append(message))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4", "t")
        await settled(pilot, lambda: bool(said))
        assert said == ["The timeline shows nothing of this by itself."]
        assert app.active == "kernels"
