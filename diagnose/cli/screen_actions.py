"""The actions that the screen offers on a run, each carried out by the command that does it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from diagnose.cli.patches import apply, revert
from diagnose.cli.programs.argv_split import program_of
from diagnose.cli.programs.preconditions import on_one_host, require_torch
from diagnose.errors import InputError, UsageError
from diagnose.program import Program, patch
from diagnose.program.atomic import write_atomic
from diagnose.report import PAGE, formats
from diagnose.session import State
from diagnose.trial.skip_request import SkipRequest

_NO_RUN = "this is a recording, not a run of a program"


class RunActions:
    """Deeds on the run of a folder; on a recording, which has none, only its report can be written."""

    def __init__(self, folder: Path | None, skip: SkipRequest | None = None) -> None:
        self._folder = folder
        self._skip = skip

    def fix_plan(self, state: State) -> str:
        """The command that tries fixes on this program. Raises DiagnoseError where it would not start."""
        words = fix_words(state)
        require_torch()
        assert state.started is not None
        cwd = Path(state.started.cwd)
        if not cwd.is_dir():
            raise UsageError(f"the program was started in {cwd}, which is not there any more")
        found = program_of(words[1:], words[0])
        on_one_host(found)
        Program.parse(found.program, module=found.module, launcher=found.launcher, cwd=cwd)
        return f"diagnose {shlex.join(words)}"

    def apply_plan(self) -> str:
        """The files that the patch changes. Raises DiagnoseError where it cannot be written."""
        folder, change = self._patch()
        if patch.applied_at(folder) is not None:
            raise UsageError("the patch is in your files already")
        apply.check(folder, change)
        return apply.report(change, folder, written=True, as_json=False, verb="changes")

    def apply(self) -> str:
        """Write the patch."""
        folder, change = self._patch()
        apply.check(folder, change)
        apply.write(folder, change)
        said = apply.report(change, folder, written=True, as_json=False)
        return "\n".join([said, *apply.afterwards(folder, change)])

    def revert_plan(self) -> str:
        """The files that are restored. Raises DiagnoseError where no patch of this run is applied."""
        folder, change = self._patch()
        if patch.applied_at(folder) is None:
            raise UsageError("the patch of this run is not in your files")
        return apply.report(change, folder, written=True, as_json=False, verb="restores")

    def revert(self) -> str:
        """Take the patch back."""
        folder = self._run_folder()
        change = revert.take_back(folder)
        return apply.report(change, folder, written=True, as_json=False, verb="restored")

    def page(self) -> Path:
        """The page in the run folder; of a recording, one in the working directory."""
        return (self._folder or Path.cwd()) / PAGE

    def write_page(self, state: State) -> Path:
        """Render the report and write it. Raises InputError where that is refused."""
        page = self.page()
        try:
            write_atomic(page, formats()["html"].render(state).encode())
        except OSError as error:
            why = f"cannot be written ({error.strerror}); `diagnose report -o FILE` names a place"
            raise InputError(page, why) from error
        return page

    def skip(self) -> str:
        """Ask the trial under way to end."""
        if self._skip is None:
            raise UsageError("this screen looks on: a trial is skipped where its run was started")
        self._skip.ask()
        return "It ends after its current pair of blocks, unless all its pairs are measured."

    def _run_folder(self) -> Path:
        if self._folder is None:
            raise UsageError(f"{_NO_RUN}: no fix was measured")
        return self._folder

    def _patch(self) -> tuple[Path, patch.Patch]:
        folder = self._run_folder()
        if not (folder / patch.MANIFEST).exists():
            raise UsageError("this run left no patch; `diagnose fix` makes one where a fix holds")
        return folder, patch.load(folder)


def fix_words(state: State) -> list[str]:
    """`fix` and the program of a run, as words of a command line. Raises UsageError for what is no run."""
    if state.started is None or state.started.command not in ("run", "fix"):
        raise UsageError(f"{_NO_RUN}: `diagnose fix SCRIPT` starts on a program")
    return ["fix", *shlex.split(state.started.program)]


def start_fix(state: State) -> int:
    """Go on with `diagnose fix` on the program of a run, as if it were typed where that was started."""
    from diagnose.cli import main

    assert state.started is not None
    os.chdir(state.started.cwd)
    return main(fix_words(state))
