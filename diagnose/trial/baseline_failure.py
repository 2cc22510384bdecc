"""The message for a copy of the program that fails without any fix in it: nothing can be tried then."""

from __future__ import annotations

from diagnose.collect.inside.hooks import inductor_cache_workaround
from diagnose.errors import ProgramFailed
from diagnose.program.guard import REFUSAL
from diagnose.trial.ab.result import ORIGINAL
from diagnose.trial.process.arm import ArmFailed, Trouble

_WHAT_IS_NEW = (
    "What a copy meets and your own run did not: another copy lives beside it, its files lie in another folder, and it "
    "finds what the other has compiled. Start the program twice at once, as you start it now, and mend what shows"
)
_OWN_FOLDER = (
    "The program writes below its own folder by an absolute path, where a copy of it may not. Let that path begin at "
    "the working directory or at the script (__file__), or name a folder apart from the program by an option of its own"
)
_MORE_MEMORY = "A trial needs what the program needs beside what else is on the machine: free memory, and try again"


class OutOfMemoryBaseline(ProgramFailed):
    """A copy without any fix ran out of memory, after so many `steps` as far as it could say."""

    def __init__(self, message: str, steps: int) -> None:
        super().__init__(message, 1)
        self.steps = steps


def fails_as_found(side: int, failure: ArmFailed) -> ProgramFailed:
    """The error for the user, in whose own run the program went well; `side` of the control it was, and how it ended.

    The last words of the program are in it: the copies and their streams are gone when it is read.
    """
    which = "first" if side == ORIGINAL else "second"
    done = f" after {failure.steps} steps or more" if failure.steps else " before its warm-up was over"
    when = done if failure.trouble is Trouble.CRASHED else ""
    head = (
        "the program fails in a copy, without any fix, though it went well when it was watched: of two copies, in the "
        f"{which}{when}, {failure}"
    )
    said = f"{head}\n{_next(failure)}"
    if failure.trouble is Trouble.OUT_OF_MEMORY:
        return OutOfMemoryBaseline(said, failure.steps or 0)
    return ProgramFailed(said, 1)


def _next(failure: ArmFailed) -> str:
    if inductor_cache_workaround.died_of_it(str(failure)):
        return inductor_cache_workaround.REMEDY
    if REFUSAL in str(failure):
        return _OWN_FOLDER
    return _MORE_MEMORY if failure.trouble is Trouble.OUT_OF_MEMORY else _WHAT_IS_NEW
