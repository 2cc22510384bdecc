"""Takes lines out of compiled functions at which the compiler has to stop.

What it changes
    Messages of level debug that are shown nowhere, within a function that falls into several graphs and within what
    it calls in its own file, are removed, with the logger if nothing else uses it. A decorator that keeps a function
    of the program's own out of the compiler is removed.

Why it helps
    At a call that it cannot trace, Dynamo ends its graph, lets Python make the call, and begins another graph after
    it. Each graph has guards and calls of its own, and nothing is fused across the break.

Fix safety
    Rounding: one graph in place of several may be fused in another way. A message is removed only where its logger
    comes from `logging`, no line of the program sets a level at which it would be shown, and its arguments do nothing
    but compute. Left alone, with advice: messages that are shown (`print`, `warnings.warn`, a logger's `info`), which
    compiled code would no longer print; values read from tensors and branches on them, which change what is computed;
    and calls of other libraries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, Scalar, Site, example_request, lines_with, word_diffs
from diagnose.source.dataflow.flow import scope_of, within
from diagnose.source.dataflow.purity import only_computes
from diagnose.source.models.compilation import compilations
from diagnose.source.rewrite.leftovers import without_import
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.edits import Source, Splice, call_name, parse
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import only_statement

_LEVELS = frozenset({"info", "warning", "warn", "error", "exception", "critical", "log"})
_HIDES = frozenset({"INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"})
"""Levels at which no message of level debug is shown."""
_SETS_LEVEL = frozenset({"basicConfig", "setLevel", "dictConfig", "fileConfig", "captureWarnings"})
_DISABLED = frozenset({"torch._dynamo.disable", "torch.compiler.disable", "torch._dynamo.skip"})
_BRANCH = (
    "a branch on the value of a tensor ends the graph: choose with torch.where, or decide outside of the compiled "
    "function. No edit is made: both sides would then be computed."
)
_READ = (
    "a value read from a tensor ends the graph: keep it a tensor of one element, which arithmetic takes as well. "
    "No edit is made: what Python does with the number cannot be followed."
)
_SHOWN = (
    "a message ends the graph: print it outside of the compiled function, or take it out. No edit is made: it is "
    "shown, and would no longer be."
)
_NUMPY = "NumPy leaves the graph and the device: use the torch function of the same name."


@dataclass
class _Plan:
    """The edits of one file."""

    source: Source
    removed: list[cst.BaseSmallStatement] = field(default_factory=list)
    decorators: list[cst.Decorator] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def rewrite(request: Request) -> Answer:
    """Mend every recorded break that is a message which nobody sees, or a forgotten decorator."""
    if not compilations(request.sources) and not any(site.kind in ("compile", "graph_break") for site in request.sites):
        return None
    hides_debug = not _shows_debug(request.sources)
    edits: list[tuple[str, list[Splice]]] = []
    advice: list[str] = []
    done: list[str] = []
    for path, breaks in _lines(request).items():
        source = parse(request.sources[path])
        if source is None:
            continue
        plan = _plan(source, breaks, hides_debug)
        advice += [f"{path}:{line}" for line in plan.advice]
        splices = _splices(plan)
        if splices:
            edits.append((path, splices))
            done += ["messages"] * bool(plan.removed) + ["decorators"] * bool(plan.decorators)
    return request.answer(edits, f"take {' and '.join(dict.fromkeys(done))} out of compiled functions", reasons=advice)


def _lines(request: Request) -> dict[str, dict[int, str]]:
    """Breaks by file: their lines, with the compiler's reasons where the run recorded them."""
    found: dict[str, dict[int, str]] = {}
    for site in request.sites:
        if site.kind == "graph_break" and site.file in request.sources:
            found.setdefault(site.file, {})[site.line] = str(site.arguments.get("reason") or "")
    for place in request.finding.where:
        if place.file in request.sources:
            found.setdefault(place.file, {}).setdefault(place.line, "")
    return found


def _shows_debug(sources: Mapping[str, str]) -> bool:
    """Whether a line of the program sets a level of messages, and not to one that hides those of level debug."""
    for _, source in files_with(sources, *_SETS_LEVEL):
        for call in source.every(cst.Call):
            if call_name(call) not in _SETS_LEVEL:
                continue
            given = argument(call, "level", 0) if call_name(call) == "setLevel" else argument(call, "level")
            level = given.value if given is not None else None
            named = source.code(level).rpartition(".")[2].strip("\"'") if source is not None and level else ""
            if named not in _HIDES and not (call_name(call) == "basicConfig" and level is None and not has_star(call)):
                return True
    return False


def _plan(source: Source, breaks: dict[int, str], hides_debug: bool) -> _Plan:
    plan = _Plan(source)
    functions: dict[int, cst.CSTNode] = {}
    for line, reason in breaks.items():
        statement = source.statement_at(line)
        kind = _message(source, statement) if statement is not None else None
        hidden = kind == "debug" and hides_debug
        found = hidden
        if statement is not None and not isinstance(statement, cst.FunctionDef):
            scope = scope_of(source, statement)
            if isinstance(scope, cst.FunctionDef) and not _compiles(source, scope):
                functions[id(scope)] = scope
        found = _decorator(plan, line) or found
        if not found and statement is not None:
            why = _SHOWN if kind is not None else _why_not(source, statement, reason)
            plan.advice += [f"{line}: {why}"] if why else []
    # Dynamo stops at the first break of a function that it gives up: the others lie in the same functions, and in
    # those that they call, which it did not come to or names by the line of the call.
    for function in _with_called(source, functions):
        for statement in source.every(cst.SimpleStatementLine, function):
            if hides_debug and _message(source, statement) == "debug":
                plan.removed += [small for small in statement.body if small not in plan.removed]
    return plan


def _compiles(source: Source, function: cst.FunctionDef) -> bool:
    """Whether a function has something compiled, and so is not compiled itself, whatever lines a finding names."""
    return any(within(source, found.node, function.body) for found in compilations({"": source.text}))


def _with_called(source: Source, functions: dict[int, cst.CSTNode]) -> list[cst.CSTNode]:
    """The functions, and those of the same class or file that they call by name, and so on."""
    known = dict(functions)
    waiting = list(functions.values())
    while waiting:
        caller = waiting.pop()
        owner = source.inside(caller, cst.ClassDef)
        for call in source.every(cst.Call, caller):
            called = source.code(call.func)
            for function in source.every(cst.FunctionDef):
                around = source.inside(function, cst.ClassDef)
                own = around is owner and around is not None and called == f"self.{function.name.value}"
                top = source.parent(function) is source.module and called == function.name.value
                if (own or top) and id(function) not in known and not function.decorators:
                    known[id(function)] = function
                    waiting.append(function)
    return list(known.values())


def _message(source: Source, statement: cst.CSTNode) -> str | None:
    """The level of a statement that is nothing but a message; None for any other."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    first = statement.body[0]
    call = first.value if isinstance(first, cst.Expr) else None
    if not isinstance(call, cst.Call) or any(source.every(cst.NamedExpr, call)):
        return None
    if source.names(call.func) & {"builtins.print", "warnings.warn"}:
        return "print"
    if not isinstance(call.func, cst.Attribute):
        return None
    level = call.func.attr.value
    if level in _LEVELS and _is_logger(source, call.func):
        return level
    functions = {each.name.value: each for each in source.every(cst.FunctionDef)}
    computes = all(only_computes(source, arg.value, functions) for arg in call.args)
    return "debug" if level == "debug" and computes and _is_logger(source, call.func) else None


def _is_logger(source: Source, function: cst.Attribute) -> bool:
    """Whether a method is of the standard library's `logging`: of the module, or of what `getLogger` gave."""
    if any(name.startswith("logging.") for name in source.names(function)):
        return True
    held = source.code(function.value)
    return any(
        isinstance(made.value, cst.Call)
        and "logging.getLogger" in source.names(made.value.func)
        and any(source.code(target.target) == held for target in made.targets)
        for made in source.every(cst.Assign)
    )


def _decorator(plan: _Plan, line: int) -> bool:
    """Note the decorator that disables the function which is defined, or called, in a line."""
    source = plan.source
    here = source.statement_at(line)
    called = {
        call.func.attr.value if isinstance(call.func, cst.Attribute) else source.code(call.func)
        for call in (source.every(cst.Call, here) if isinstance(here, cst.SimpleStatementLine) else ())
    }
    found = False
    for decorator in source.every(cst.Decorator):
        owner = source.parent(decorator)
        if not isinstance(owner, cst.FunctionDef) or not _disables(source, decorator):
            continue
        first, last = source.lines_of(owner)
        if owner.name.value in called or first <= line <= last:
            plan.decorators += [decorator] if decorator not in plan.decorators else []
            found = True
    return found


def _disables(source: Source, decorator: cst.Decorator) -> bool:
    called = decorator.decorator
    return bool(source.names(called.func if isinstance(called, cst.Call) else called) & _DISABLED)


def _why_not(source: Source, statement: cst.CSTNode, reason: str) -> str | None:
    head = statement.test if isinstance(statement, cst.If | cst.While) else statement
    code = source.code(head)
    if isinstance(statement, cst.If | cst.While) or "branch on the value" in reason:
        return _BRANCH
    if re.search(r"\.(item|tolist)\(\)|\b(float|int|bool)\(", code) or "item" in reason:
        return _READ
    if re.search(r"\.numpy\(\)|\bnp\.|\bnumpy\.", code):
        return _NUMPY
    return f"{reason}: write it in torch, or move it out of the compiled function." if reason else None


def _splices(plan: _Plan) -> list[Splice]:
    source = plan.source
    splices: list[Splice] = []
    if plan.removed:
        gone = [*plan.removed, *_unused_loggers(source, plan.removed)]
        splices = without_import(source, remove_statements(source, gone), "logging")
    for decorator in plan.decorators:
        start, end = source.span(decorator)
        splices.append(Splice(source.line_start(start), source.after_line(end), ""))
    return splices


def _unused_loggers(source: Source, gone: list[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    """`logger = logging.getLogger(…)` at the top of the file, where only what is gone used it."""
    found: list[cst.BaseSmallStatement] = []
    for line in source.module.body:
        assign = only_statement(line)
        if not isinstance(assign, cst.Assign) or "logging.getLogger" not in source.code(assign.value):
            continue
        target = assign.targets[0].target
        uses = [node for node in source.every(cst.Name) if isinstance(target, cst.Name) and node.value == target.value]
        left = [node for node in uses if node is not target and not any(within(source, node, each) for each in gone)]
        if uses and not left:
            found.append(assign)
    return found


_HEAD = (
    "import logging\nimport torch\nfrom torch import nn\n\n{}\n\nclass Net(nn.Module):\n    def forward(self, x):\n{}"
)
_LOGS = "logger = logging.getLogger(__name__)\n"
_REASON: dict[str, Scalar] = {"reason": "Failed to trace builtin operator", "skipped": False}


def _recorded(text: str) -> Request:
    lines = lines_with(text, "# here")
    sites = [Site("graph_break", "train.py", line, arguments=_REASON) for line in lines]
    return example_request("graph-breaks", text, sites=sites, lines=lines)


FIXER = Fixer(
    name="remove-graph-break",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle",
    order=20,
    examples=(
        Example(
            _HEAD.format(
                _LOGS, "        logger.debug('in: %s', x.shape)  # here\n        y = x + 1\n        return y\n"
            ),
            "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
            "        y = x + 1\n        return y\n",
            _recorded,
        ),
        *word_diffs(
            _recorded,
            (
                "import torch\n\n\ndef step(x):\n    y = x + 1\n    print('mean', y.mean())  # here\n"
                "    print('done')\n    return y\n"
            ),
            "import torch\n\n\n{-@torch._dynamo.disable\n-}def rope(x):  # here\n    return x + 1\n",
            (
                "import logging\n\nlog = logging.getLogger(__name__)\n\n\ndef scale(x):\n    {-log.debug('in')\n"
                "    -}return 2 * x\n\n\ndef step(x):{-\n    log.debug('step')  # here-}\n    return scale(x)\n\n\n"
                "def main(x):\n    log.debug('main')\n"
            ),
            "def step(x):\n    if x.sum() > 0:  # here\n        x = x + 1\n    return x\n",
            "def step(x):\n    scale = x.max().item()  # here\n    return x / scale\n",
            "def step(x):\n    print(x)\n    return x\n",
            (
                "import torch\n\n\ndef main():\n    net = torch.compile(Net())\n    for x in data:\n"
                "        print('step')\n        net(x)  # here\n"
            ),
            "def step(x):\n    return library(x)  # here\n",
        ),
    ),
)
