"""Everything that can go wrong for a user, as one family. Only `diagnose.cli.main` catches it.

    DiagnoseError               exit 2
    ├── UsageError              the call is wrong: a flag, a path, a name
    ├── InputError              a file is not what it should be
    │   └── NotATrace           nothing in it that a reader knows
    ├── EnvironmentLacks        something this machine would need: torch, a device, a profiler
    ├── PatchConflict           the user's files changed since the fix was measured
    └── ProgramFailed           exit 3: the user's program ended with an error

Who leaves (`Cancelled`, or Ctrl-C) ends with exit 130.

A message says what happened, where, and what to do next, in one or two sentences.
"""

from __future__ import annotations

from diagnose.units import printable


class DiagnoseError(Exception):
    """Base of the family; `str(error)` is what the user reads."""

    exit_code = 2


class UsageError(DiagnoseError):
    """The call cannot be carried out as written."""


class InputError(DiagnoseError):
    """A file cannot be used; `path` is the file."""

    def __init__(self, path: object, message: str) -> None:
        super().__init__(str(path), message)  # both, so that the error survives the way from another process
        self.path = str(path)

    def __str__(self) -> str:
        return f"{self.path}: {printable(self.args[1])}"  # a message may quote the file


class NotATrace(InputError):
    """The file holds nothing that a reader recognises."""


class EnvironmentLacks(DiagnoseError):
    """Something that this command needs is not on this machine."""


class PatchConflict(DiagnoseError):
    """A patch no longer fits the files it was made for."""


class ProgramFailed(DiagnoseError):
    """The user's program ended with an error; `returncode` is its own exit code (negative: a signal)."""

    exit_code = 3

    def __init__(self, message: str, returncode: int) -> None:
        super().__init__(message, returncode)  # both, as above
        self.returncode = returncode

    def __str__(self) -> str:
        return str(self.args[0])


class Cancelled(Exception):  # it is no error, and none of the family
    """The user left while work was going on: it ends where it is, and takes back what it left lying about."""

    exit_code = 130
