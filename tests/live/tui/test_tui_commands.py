"""What can be asked of the screen: each command asks first, has it done, tells what was done, and refuses in words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import journals
import pytest
import tinygpt
from screens import drawn_at_once, driven, settled  # noqa: F401 - `drawn_at_once` holds for each test here
from textual.command import CommandPalette
from textual.widgets import Input
from watching import LIMIT_S

from diagnose.cli.screen_actions import RunActions, fix_words
from diagnose.errors import UsageError
from diagnose.program import patch
from diagnose.session import AnyEvent, RunStarted, State, fold
from diagnose.trial.skip_request import SkipRequest
from diagnose.tui.app import DiagnoseApp
from diagnose.tui.commands import COMMANDS
from diagnose.tui.feed import Feed
from diagnose.tui.screens.help import help_text
from diagnose.tui.screens.question import Question
from diagnose.tui.tabs.findings import FindingsPane
from diagnose.tui.widgets.choices import Choices
from diagnose.tui.widgets.lines import Lines

BEFORE, AFTER = "workers = 0\n", "workers = 4\n"


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a patch for `train.py` of the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BEFORE)
    folder = tmp_path / ".diagnose" / "runs" / "one"
    folder.mkdir(parents=True)
    patch.store(patch.make({"train.py": AFTER}, tmp_path), folder)
    return folder


def screen(events: list[AnyEvent], actions: RunActions | None = None) -> DiagnoseApp:
    return DiagnoseApp(Feed(fold(events), events[-1].at_ns), read=tinygpt.SOURCES.get, actions=actions)


def told(app: DiagnoseApp) -> str:
    """The newest of what the screen said."""
    messages = list(app._notifications)
    return messages[-1].message if messages else ""


@driven
async def test_apply_asks_writes_and_says_so_and_revert_takes_it_back(run_folder: Path) -> None:
    source = run_folder.parents[2] / "train.py"
    app = screen(journals.fixed(), RunActions(run_folder))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("a")
        assert isinstance(app.screen, Question)
        assert source.read_text() == BEFORE, "nothing is written before the answer"
        await pilot.press("n", "a", "enter")
        assert source.read_text() == BEFORE, "neither n nor enter is a yes"
        await pilot.press("y")
        await settled(pilot, lambda: source.read_text() == AFTER)
        assert "changed train.py (+1 −1)" in told(app)
        await pilot.press("a")
        assert "in your files already" in told(app)
        await pilot.press("u", "y")
        await settled(pilot, lambda: source.read_text() == BEFORE)
        assert "restored train.py" in told(app)


@driven
async def test_a_file_that_was_edited_since_is_left_alone_and_named(run_folder: Path) -> None:
    source = run_folder.parents[2] / "train.py"
    source.write_text("workers = 1\n")
    app = screen(journals.fixed(), RunActions(run_folder))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("a")
        assert not isinstance(app.screen, Question)
        assert "train.py" in told(app)
        assert source.read_text() == "workers = 1\n"


@pytest.mark.parametrize(
    ("key", "events", "says"),
    [
        ("x", journals.fixed, "No fix is under trial"),
        ("a", journals.diagnosed, "left no patch"),
        ("u", journals.fixed, "not in your files"),
        ("o", journals.waiting, "no report yet"),
        ("slash", journals.fixed, "can be searched"),
    ],
)
@driven
async def test_what_cannot_be_done_is_refused_in_words(
    key: str, events: Callable[[], list[AnyEvent]], says: str, run_folder: Path
) -> None:
    if key == "a":
        (run_folder / patch.MANIFEST).unlink()
    app = screen(events(), RunActions(run_folder))
    async with app.run_test() as pilot:
        await pilot.press(key)
        assert says in told(app)


@driven
async def test_skipping_asks_the_trial_under_way_to_end() -> None:
    skip = SkipRequest()
    app = screen(journals.trying(), RunActions(Path(), skip))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("x")
        assert not skip.asked
        await pilot.press("y")
        await settled(pilot, lambda: skip.asked)


@driven
async def test_fixes_are_started_by_leaving_the_screen(run_folder: Path) -> None:
    here = run_folder.parents[2]
    started = RunStarted(command="run", program="train.py --data 'a b'", cwd=str(here), version="0.1.0")
    events = [started, *journals.diagnosed()[1:]]
    app = screen(events, RunActions(run_folder))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f")
        assert isinstance(app.screen, Question)
        await pilot.press("y")
        await settled(pilot, lambda: app.return_value is not None)
    assert app.wants_fix
    assert fix_words(app.state) == ["fix", "train.py", "--data", "a b"]


def test_a_recording_does_not_say_how_its_program_starts() -> None:
    with pytest.raises(UsageError, match="recording"):
        fix_words(State())


@driven
async def test_the_page_is_written_once_it_was_asked_for(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    app = screen(journals.fixed(), RunActions(run_folder))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("o")
        assert not (run_folder / "report.html").exists()
        await pilot.press("y")
        await settled(pilot, lambda: str(run_folder / "report.html") in app.clipboard)
    assert (run_folder / "report.html").read_text().startswith("<!doctype html>")


@driven
async def test_a_search_keeps_the_findings_that_hold_the_words() -> None:
    app = screen(journals.diagnosed())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("2", "slash", *"host")
        listed = app.query_one("#finding-list", Choices)
        await settled(pilot, lambda: listed.get_option_at_index(0).id == "1")
        await pilot.press("enter")
        await settled(pilot, lambda: app.focused is listed)
        pane = app.query_one(FindingsPane)
        await settled(pilot, lambda: pane.place is not None and pane.place.line == 17)
        await pilot.press("slash")
        assert app.query_one(Input).value == "host"
        await pilot.press("escape")
        await settled(pilot, lambda: listed.get_option_at_index(0).id == "0")


@driven
async def test_a_search_of_the_output_goes_from_line_to_line() -> None:
    output = "".join(f"step {number} {'loss is NaN' if number % 40 == 0 else 'fine'}\n" for number in range(1, 200))
    app = DiagnoseApp(Feed(State(output=output)))
    async with app.run_test(size=(80, 24)) as pilot:
        lines = app.query_one("#output-lines", Lines)
        await pilot.press("2", "slash", *"nan", "enter")
        await settled(pilot, lambda: app.focused is lines)
        assert lines.match == 159, "the newest first"
        seen = []
        for key in ("n", "n", "N", "N"):
            await pilot.press(key)
            seen.append(lines.match)
        assert seen == [39, 79, 39, 159]


@driven
async def test_the_palette_does_what_the_key_does(run_folder: Path) -> None:
    app = screen(journals.fixed(), RunActions(run_folder))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+p", *"write the")
        await settled(pilot, lambda: isinstance(app.screen, CommandPalette))
        await app.workers.wait_for_complete()
        await pilot.press("enter")
        await settled(pilot, lambda: isinstance(app.screen, Question))


@driven
async def test_a_run_of_another_process_is_followed_and_left_as_it_is() -> None:
    events, left = journals.diagnosed(), threading.Event()

    def follow(tell: Callable[[AnyEvent], None], stop: threading.Event) -> None:
        for event in events[1:]:
            tell(event)
        stop.wait(LIMIT_S)
        left.set()

    app = DiagnoseApp(Feed(fold(events[:1])), follow=follow, actions=RunActions(Path()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot, lambda: app.state.diagnosis is not None)
        await pilot.press("f")
        assert "still runs" in told(app)
        await pilot.press("q")
    assert app.return_value == 0
    assert left.wait(LIMIT_S)


@driven
async def test_a_run_whose_process_is_gone_is_said_to_be() -> None:
    app = DiagnoseApp(Feed(fold(journals.watching())), follow=lambda _tell, _stop: None)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot, lambda: not app.looks_on)
        await settled(pilot, lambda: "is gone" in told(app))


def test_every_command_is_in_the_help_and_no_key_has_two() -> None:
    said = help_text().plain
    assert all(command.about in said for command in COMMANDS)
    assert len({command.key for command in COMMANDS}) == len(COMMANDS)
