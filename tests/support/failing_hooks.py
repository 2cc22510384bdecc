"""Runs a program watched, with every function of the watcher failing in turn.

`python failing_hooks.py FOLDER PROGRAM [FUNCTION | --one-of-each]` starts PROGRAM as a watched one starts. With
FUNCTION, that one fails whenever it is called. Without, torch is imported once; then a fork runs the program for each
function that the first fork has called, or with --one-of-each for one of each class and module, and
FOLDER/outcomes.json tells of each fork what it printed and how it ended.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from diagnose.collect import INJECTED, Recipe
from diagnose.collect.records import FACTS, RECIPE_VARIABLE, UNWATCHED, WINDOW

WATCHER = INJECTED.parent
FAULT = "the injected fault"
ONE_OF_EACH = "--one-of-each"
LIMIT_S = 60
"""So long only a program takes that hangs: it takes half a second."""


ONCE = {
    "inside.window.profiler_window.Window.stop",
    "inside.probes.line_log.LineLog.end",
    "inside.process.termination.Termination.disarm",
}
"""What switches something off fails at its first call only: if it never worked, nothing could switch that off."""


class Faults:
    """Which function fails, and which were called."""

    def __init__(self, failing: str | None) -> None:
        self.failing = failing
        self.called: set[str] = set()

    def __call__(self, function: str) -> None:
        again = function in self.called
        self.called.add(function)
        if function == self.failing and not (again and function in ONCE):
            raise OSError(FAULT)


def _is_unseen(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "unseen"


class _Inserted(ast.NodeTransformer):
    """Has each function ask `Faults` first, by its name within its module.

    Those that the program calls through (`unseen`) do not: they are what calls the hook and, if that fails, goes on.
    """

    def __init__(self, module: str) -> None:
        self._names = [module]

    def _named(self, node: Any) -> Any:
        self._names.append(node.name)
        self.generic_visit(node)
        if not isinstance(node, ast.ClassDef) and not any(_is_unseen(one) for one in node.decorator_list):
            node.body[:0] = ast.parse(f"__faults__({'.'.join(self._names)!r})").body
        self._names.pop()
        return node

    visit_FunctionDef = visit_ClassDef = _named  # noqa: N815 - as `ast` names them


_get_code = SourceFileLoader.get_code


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        path = Path(self.path)
        if not path.is_relative_to(WATCHER):
            return _get_code(self, fullname)
        module = ".".join(path.relative_to(WATCHER).with_suffix("").parts)
        tree = _Inserted(module).visit(ast.parse(path.read_text()))
        return compile(ast.fix_missing_locations(tree), str(path), "exec")


def _watch(folder: Path) -> None:
    """Let the watcher in, as its `sitecustomize` does in a program that is started under it."""
    folder.mkdir()
    os.environ[RECIPE_VARIABLE] = json.dumps(Recipe(warmup=4, most_warmup_steps=8).to_json(folder))
    spec = importlib.util.spec_from_file_location("sitecustomize", INJECTED / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _as_if_started(folder: Path, faults: Faults) -> None:
    """Have a fork stand for a program that was started for itself."""
    hub = sys.modules["_diagnose_collect.inside.modes.watch"].running[0]._hub
    hub.is_child, hub.pid, hub._root = False, os.getpid(), folder
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), number)
    atexit.register(lambda: (folder / "called.json").write_text(json.dumps(sorted(faults.called))))


def _outcome(folder: Path, code: int | None) -> dict[str, Any]:
    rank, unwatched = folder / "rank0", folder / UNWATCHED
    facts = json.loads((rank / FACTS).read_text()) if (rank / FACTS).exists() else {}
    untold = json.loads(unwatched.read_text()) if unwatched.exists() else []
    return {
        "code": code,
        "printed": (folder / "out").read_text(),
        "complained": (folder / "err").read_text(),
        "failures": facts.get("watcher_failures", untold),
        "traced": (rank / WINDOW).exists(),
    }


def _code(child: int) -> int | None:
    """The exit code of a fork; None of one that hangs, which is ended with all that it started."""
    if not select.select([os.pidfd_open(child)], [], [], LIMIT_S)[0]:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _one_of_each(functions: list[str]) -> list[str]:
    """The first function by name of each class, and of each module those that belong to none."""
    return list({name.rpartition(".")[0]: name for name in sorted(functions, reverse=True)}.values())


def _is_fork(folder: Path, faults: Faults, one_of_each: bool) -> bool:
    """True in a fork, which is to run the program. Else, after all of them, the outcomes are written."""
    outcomes: dict[str, Any] = {}
    waiting: list[str | None] = [None]
    while waiting:
        failing = waiting.pop()
        ran = folder / (failing or "none")
        ran.mkdir()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            faults.failing = failing
            faults.called.clear()
            _as_if_started(ran, faults)
            return True
        outcomes[failing or "none"] = _outcome(ran, _code(child))
        if failing is None:
            called = json.loads((ran / "called.json").read_text())
            waiting += _one_of_each(called) if one_of_each else called
    (folder / "outcomes.json").write_text(json.dumps(outcomes))
    return False


def main() -> None:
    folder, program, *failing = sys.argv[1:]
    one_of_each = failing == [ONE_OF_EACH]
    if one_of_each:
        failing.clear()
    faults = Faults(*failing) if failing else Faults(None)
    SourceFileLoader.get_code = _Loader.get_code  # type: ignore[method-assign, assignment]
    builtins.__faults__ = faults  # type: ignore[attr-defined]
    _watch(Path(folder) / "start")
    sys.argv = [program]
    sys.path[0] = str(Path(program).parent)
    importlib.import_module("light")
    if failing or _is_fork(Path(folder), faults, one_of_each):
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
