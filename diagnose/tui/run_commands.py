"""The commands on a run: each asks before it writes or starts something, has it done, and tells what was done."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import App, SuspendNotSupported, SystemCommand
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.screen import Screen

from diagnose.errors import DiagnoseError
from diagnose.model import Finding, Place
from diagnose.session import State
from diagnose.tui.actions import Actions
from diagnose.tui.browser import open_page
from diagnose.tui.commands import COMMANDS
from diagnose.tui.editor import editor_command
from diagnose.tui.screens.question import Question

Answer = TypeVar("Answer")
_MORE = (
    ("Sort the table by its next column", "s", "sort_table(1)"),
    ("Sort the table the other way round", "r", "sort_table(0)"),
    ("Show the keys", "?", "help"),
    ("Quit", "q", "leave"),
)
_LONG_S, _SHORT_S = 12, 4


class RunCommands(App[int]):
    """An application whose commands are about the run that it shows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # At the foot while it is of use; pressed elsewhere, the same key says why not.
        *(Binding(each.key, f"offered('{each.name}')", each.label, key_display=each.shown) for each in COMMANDS),
        *(Binding(each.key, each.name, show=False) for each in COMMANDS),
    ]

    # What shows it is bound to it and draws itself: the application would draw the whole screen.
    state: reactive[State] = reactive(State, always_update=True, repaint=False)
    active: reactive[str] = reactive("overview")

    def __init__(self, actions: Actions | None = None) -> None:
        super().__init__()
        self.actions = actions
        self.at_work = False
        """Whether the run goes on in this process."""
        self.looks_on = False
        """Whether it goes on in another one."""
        self.wants_fix = False
        """Whether the user left to have fixes tried on the program that was shown."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the run."""
        return self.state.diagnosis.findings if self.state.diagnosis else ()

    @property
    def place(self) -> Place | None:
        """The line of source that the active tab is about."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The foot of the screen names what is of use where one is."""
        if action != "offered":
            return True
        return any(each.name == parameters[0] and each.offered(self.state, self.active) for each in COMMANDS)

    async def action_offered(self, name: str) -> None:
        """Do the command of that name."""
        await self.run_action(name)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002 - Textual's call
        """Yield the entries of the palette: every command, and those that sort, show the keys, and leave."""
        for command in COMMANDS:
            said = command.about[0].upper() + command.about[1:]
            yield SystemCommand(said, f"key {command.shown}", functools.partial(self.run_action, command.name))
        for said, key, action in _MORE:
            yield SystemCommand(said, f"key {key}", functools.partial(self.run_action, action))

    def action_fix(self) -> None:
        """Leave the screen to try fixes on the program that is shown."""
        if self.at_work or self.looks_on:
            self._refuse("The program still runs. Fixes are tried on it once it has ended.")
        elif (plan := self._asked(lambda actions: actions.fix_plan(self.state))) is not None:
            about = (
                f"{plan}\nruns copies of your program side by side, which takes some minutes and the device. "
                "It writes nothing to your files."
            )
            self._ask("Try fixes?", about, "try them", self._leave_to_fix)

    def _leave_to_fix(self) -> None:
        self.wants_fix = True
        self.exit(0)

    def action_skip(self) -> None:
        """Leave the trial under way."""
        trial = self.state.trials[-1] if self.state.trials and self.state.ended is None else None
        if trial is None or trial.verdict is not None:
            self._refuse("No fix is under trial.")
            return
        about = f"{trial.started.fixer} is then not tried, and the next fix has its turn."
        self._ask(f"Skip {trial.started.fixer}?", about, "skip it", lambda: self._do(lambda actions: actions.skip()))

    def action_apply(self) -> None:
        """Write the measured patch."""
        if self.at_work or self.looks_on:
            self._refuse("The run goes on: its patch is ready once it has ended.")
        elif (plan := self._asked(lambda actions: actions.apply_plan())) is not None:
            self._ask(
                "Write this patch to your files?", plan, "write it", lambda: self._do(lambda actions: actions.apply())
            )

    def action_revert(self) -> None:
        """Take the patch back."""
        if (plan := self._asked(lambda actions: actions.revert_plan())) is not None:
            self._ask(
                "Take the patch back?", plan, "restore the files", lambda: self._do(lambda actions: actions.revert())
            )

    def action_report(self) -> None:
        """Open the report as a page; where there is none yet, ask before it is written."""
        page = self.actions.page() if self.actions is not None else None
        if page is None or self.state.diagnosis is None:
            self._refuse("There is no report yet: it comes with the findings.")
        elif page.exists() and not self.at_work:
            self._show_page(page)
        else:
            about = "over the one that is there" if page.exists() else "a page of its own, which needs no network"
            self._ask(f"Write {page.name}?", f"{page}\n{about}", "write and open it", self._write_page)

    def _write_page(self) -> None:
        page = self._asked(lambda actions: actions.write_page(self.state))
        if page is not None:
            self._show_page(page)

    def _show_page(self, page: Path) -> None:
        if open_page(page):
            self.notify(f"Opened {page}", timeout=_SHORT_S)
        else:
            self.copy_to_clipboard(str(page))
            self.notify(f"No browser can open a window here. Its path is copied:\n{page}", timeout=_LONG_S)

    def action_edit(self) -> None:
        """Open the line that the tab is about in the user's editor."""
        where = self.place
        command = editor_command(where, self.state.started.cwd if self.state.started else None) if where else None
        if where is None:
            self._refuse("Nothing here points at a line of source.")
        elif command is None:
            self._refuse(f"{where.file}:{where.line} cannot be opened: set EDITOR, and be where the file is.")
        else:
            try:
                with self.suspend():
                    subprocess.run(command, check=False)
            except (SuspendNotSupported, OSError) as error:
                self._refuse(f"The editor could not be opened: {error}")

    def _ask(self, title: str, about: str, yes: str, then: Callable[[], None]) -> None:
        def answered(answer: str | None) -> None:
            if answer == "y":
                then()

        self.push_screen(Question(title, about, (("y", yes), ("n", "do nothing"))), answered)

    def _do(self, deed: Callable[[Actions], str]) -> None:
        said = self._asked(deed)
        if said is not None:
            self.notify(said, timeout=_LONG_S, markup=False)

    def _asked(self, deed: Callable[[Actions], Answer]) -> Answer | None:
        """Return what a deed answers; None where it was refused, which is told."""
        if self.actions is None:
            self._refuse("This screen shows a run that it cannot act on.")
            return None
        try:
            return deed(self.actions)
        except (DiagnoseError, OSError) as error:
            self._refuse(str(error))
            return None

    def _refuse(self, why: str) -> None:
        self.notify(why, severity="warning", timeout=_LONG_S, markup=False)
