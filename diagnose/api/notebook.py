"""`%load_ext diagnose`: `%%diagnose` watches the training loop of a cell of IPython or Jupyter."""

from __future__ import annotations

import shlex
from argparse import ArgumentError, ArgumentParser
from typing import TYPE_CHECKING, Any

from diagnose.api.loop_watch import watch
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.api.analysis import Analysis


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext diagnose`."""

    def run_cell(line: str, cell: str) -> Analysis | None:
        return watch_cell(shell, line, cell)

    run_cell.__doc__ = watch_cell.__doc__
    shell.register_magic_function(run_cell, magic_kind="cell", magic_name="diagnose")


def watch_cell(shell: Any, line: str, cell: str) -> Analysis | None:
    """%%diagnose [--steps N] [--warmup N]

    Run the cell, watch its training loop, and show where its steps' time goes. A step ends with `optimizer.step()`.
    The analysis is the cell's result, `_`. A cell that fails shows its error and gives none.
    """
    options = _options(line)
    with watch(steps=options["steps"], warmup=options["warmup"]) as watched:
        ended = shell.run_cell(cell)
    return watched.analysis if ended.success else None


def _options(line: str) -> dict[str, int]:
    parser = ArgumentParser(prog="%%diagnose", add_help=False, exit_on_error=False)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=10)
    try:
        known, rest = parser.parse_known_args(shlex.split(line))
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"%%diagnose {line}: {error}") from error
    if rest:
        raise UsageError(f"%%diagnose takes --steps N and --warmup N, not {' '.join(rest)}")
    return vars(known)
