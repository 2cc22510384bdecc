"""Writes checkpoints while training goes on.

What it changes
    `torch.save(state, path)` in the training loop becomes `save_in_background(state, path)` of
    `diagnose.background_saves`: it copies the state to the host in the step and writes it in a thread.
    `finish_saving()` after the loop, before a `return` within it, and after other calls of a function that saves, waits
    for the last one.

Why it helps
    `torch.save` copies every tensor to the host and writes the file while the device waits. The copy is needed, but
    from pinned memory it takes a tenth of the time, and the file system need not be waited for.

Fix safety
    Bitwise: the state is copied before the next operation can change it, and training does not depend on the file. A
    file appears under its name only when it is whole, and in the order of the saves. One file is written at a time, and
    one more state waits where the host has free memory of many times its size; a save that finds no place waits. Where
    a newer state is saved to the same path, it takes the place of the one that waits, which is then never written:
    training does not wait where one file is written over and over, and of the saves in between some leave no file. The
    last is always written, in the step where an interrupt or a lack of threads stands in its way. A process that is
    killed leaves a file that is older than its last save by at most the time that two files take to be written. An
    error of a thread is raised by the next save, whose own state is safe by then, or after the loop; where that is left
    otherwise, it is printed at the end. A file that the program writes itself meanwhile, by a plain `torch.save` under
    the same name, is the newer one and stays. What cannot be copied is written in the step. Tensors in the file are on
    the CPU, except those inside of other objects: `torch.load` without `map_location` gives them there. The host holds
    a copy of the state that is being written and of the one that waits, and keeps their memory for the next. Left
    alone, with advice that names the line: a program that may load, look at, move, send or remove files while one is
    written, in any of its files, or that catches errors of the save, handles signals, or ends by `os._exit`; a state
    that is no dictionary or has classes that say how they are copied; `torch.distributed.checkpoint`, which has
    `async_save` of its own. The program then imports `diagnose.background_saves`, which needs torch and nothing else:
    where it runs, this package has to be installed. `diagnose revert` takes the import out again, and
    `--skip async-checkpoint` never puts it in.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.flow import Loop, loops_around, scope_of, within
from diagnose.source.dataflow.reaching_definitions import Bound, reaching, statement_of
from diagnose.source.training.every_step import EveryStep, Stretch
from diagnose.source.training.pending_files import may_notice
from diagnose.source.tree.definitions import is_foreign
from diagnose.source.tree.edits import (
    Source,
    Splice,
    call_name,
    ensure_from_import,
    insert_after,
    insert_before,
    replace,
)

_MODULE = "diagnose.background_saves"
_FINISH = "finish_saving()"
_ABOUT_DCP = (
    "saves with torch.distributed.checkpoint: its async_save(state, checkpoint_id=path) returns a future; wait for the "
    "one before with .result(), and build the process group with a backend for the CPU (cpu:gloo,cuda:nccl)."
)


def rewrite(request: Request) -> Answer:
    """Replace every save of the training loop that can be."""
    code = EveryStep(request.sources, request.finding.where)
    found: dict[cst.Call, tuple[str, Source]] = {}
    loops: dict[Loop, tuple[str, Source]] = {}
    reasons: list[str] = []
    for stretch in code.stretches:
        for path, source, call in _saves(code, stretch, stretch.loop) if stretch.loop is not None else ():
            reason = _why_not(source, call)
            if reason is not None:
                reasons.append(f"{path}:{source.lines_of(call)[0]} {reason}")
            elif stretch.loop is not None:
                found[call] = (path, source)
                outermost = [stretch.loop, *loops_around(stretch.source, stretch.loop)][-1]
                loops[outermost] = (stretch.path, stretch.source)
    if not found:
        return Advice(" ".join(dict.fromkeys(reasons))) if reasons else None
    saves = [(path, source, call) for call, (path, source) in found.items()]
    noticed = may_notice(code.sources, saves, [(path, source, loop) for loop, (path, source) in loops.items()])
    if noticed is not None:
        where = f"{saves[0][0]}:{saves[0][1].lines_of(saves[0][2])[0]}"
        return Advice(f"{where} saves a checkpoint, and {noticed}: wait for a thread that writes it there, by hand.")
    waits: dict[str, dict[Splice, None]] = {}
    for loop, (path, source) in loops.items():
        ends = _waits_of_loop(source, loop)
        if isinstance(ends, str):
            return Advice(f"{path}:{ends}: write it in a thread by hand.")
        waits.setdefault(path, {}).update(dict.fromkeys(ends))
    others = _waits_of_calls(code, saves, list(loops))
    if isinstance(others, str):
        return Advice(f"{others}: write it in a thread by hand.")
    for path, edit in others:
        waits.setdefault(path, {})[edit] = None
    return _edited(request, code, saves, waits)


def _edited(
    request: Request,
    code: EveryStep,
    saves: list[tuple[str, Source, cst.Call]],
    waits: dict[str, dict[Splice, None]],
) -> Edits:
    edits: list[tuple[str, list[Splice]]] = [(path, list(splices)) for path, splices in waits.items()]
    for path in {*waits, *(path for path, _, _ in saves)}:
        source = code.sources[path]
        calls = [call for at, _, call in saves if at == path]
        names = [*(["finish_saving"] if path in waits else []), *(["save_in_background"] if calls else [])]
        known, imports = ensure_from_import(source, _MODULE, names)
        edits.append((path, [*imports, *(replace(source, call.func, known[-1]) for call in calls)]))
    return Edits(request.edited(edits), f"write checkpoints in a thread, by {_MODULE}, which the program then needs")


def _waits_of_loop(source: Source, loop: Loop) -> list[Splice] | str:
    """The waits at every end of a loop; the line of an end that cannot have one, and why."""
    found = [insert_after(source, loop, [_FINISH])]
    for node in source.walk(loop):
        if not isinstance(node, cst.Return | cst.Yield) or scope_of(source, node) is not scope_of(source, loop):
            continue
        line = source.parent(node)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if isinstance(node, cst.Yield) or not alone or line is None:
            return f"{source.lines_of(node)[0]} leaves the loop that saves, on a line that no wait fits before"
        found.append(insert_before(source, line, [_FINISH]))
    return found


def _waits_of_calls(
    code: EveryStep, saves: list[tuple[str, Source, cst.Call]], loops: list[Loop]
) -> list[tuple[str, Splice]] | str:
    """The waits after calls, outside of the loops, of functions that save."""
    found: list[tuple[str, Splice]] = []
    pending = [
        (source, function)
        for _, source, call in saves
        if (function := source.inside(call, cst.FunctionDef)) is not None
    ]
    seen: set[cst.FunctionDef] = set()
    while pending:
        home, function = pending.pop()
        if function in seen or any(within(home, loop, function) for loop in loops):
            continue
        seen.add(function)
        for path, source, call in _calls_of(code, home, function):
            if any(within(source, call, loop) for loop in loops):
                continue
            around = source.inside(call, cst.FunctionDef)
            statement = source.parent(call)
            line = source.parent(statement) if statement is not None else None
            if around is not None and _is_called_in(code, source, around, loops):
                pending.append((source, around))
            elif isinstance(statement, cst.Expr) and isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
                found.append((path, insert_after(source, line, [_FINISH])))
            else:
                return f"{path}:{source.lines_of(call)[0]} saves outside of the loop, in an expression"
    return found


def _calls_of(code: EveryStep, home: Source, function: cst.FunctionDef) -> Iterator[tuple[str, Source, cst.Call]]:
    for path, source in code.sources.items():
        for call in source.calls_named(function.name.value):
            if _calls(code, source, call, home, function):
                yield path, source, call


def _calls(code: EveryStep, source: Source, call: cst.Call, home: Source, function: cst.FunctionDef) -> bool:
    """Whether a call may be of a function of the program's own: `model.train()` is not of the function `train`."""
    if call_name(call) != function.name.value or is_foreign(source, call.func, code.sources):
        return False
    method = home.inside(function, cst.ClassDef) is not None
    if not isinstance(call.func, cst.Attribute):
        return not method
    aliases = (each for each in source.every(cst.ImportAlias))
    modules = {source.code(each.asname.name if each.asname is not None else each.name) for each in aliases}
    return method or source.code(call.func.value) in modules


def _is_called_in(code: EveryStep, home: Source, function: cst.FunctionDef, loops: list[Loop]) -> bool:
    return any(within(source, call, loop) for _, source, call in _calls_of(code, home, function) for loop in loops)


def _saves(code: EveryStep, stretch: Stretch, loop: Loop) -> list[tuple[str, Source, cst.Call]]:
    """The saves in a loop, and in functions of the program's own that it calls."""
    found = [(stretch.path, stretch.source, call) for call in _saves_below(stretch.source, loop)]
    calls = list(stretch.source.every(cst.Call, loop))
    for path, source in code.mentioning("save(").items():
        for function in source.every(cst.FunctionDef):
            called = any(_calls(code, stretch.source, call, source, function) for call in calls)
            if called and not within(source, function, loop) and not within(stretch.source, loop, function):
                found += [(path, source, call) for call in _saves_below(source, function)]
    return found


def _saves_below(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    calls = [call for call in source.every(cst.Call, node) if call_name(call) == "save"]
    return [call for call in calls if _library(source, call) is not None]


def _library(source: Source, call: cst.Call) -> str | None:
    names = source.names(call.func)
    if "torch.save" in names:
        return "torch"
    return "dcp" if any("distributed.checkpoint" in name for name in names) else None


def _why_not(source: Source, call: cst.Call) -> str | None:
    """Why a save stays as it is; None where it need not."""
    if _library(source, call) == "dcp":
        return _ABOUT_DCP
    if len(call.args) != 2 or any(arg.star or arg.keyword for arg in call.args):
        return "passes more than a state and a path to torch.save: write it in a thread by hand."
    if not isinstance(source.parent(call), cst.Expr):
        return "is a part of an expression: write it in a thread by hand."
    if not _is_state(source, call, call.args[0].value):
        return "saves what is not seen to be a dictionary of tensors: save a state_dict() in a thread by hand."
    if _is_open(source, call.args[1].value):
        return "writes to an open file: give torch.save the path, or write it in a thread by hand."
    return None


def _is_open(source: Source, path: cst.BaseExpression, seen: tuple[cst.CSTNode, ...] = ()) -> bool:
    """Whether a state goes to a buffer or an open file, which the next statement may read.

    `seen` are the names on the way to it: of what is bound to itself, `file = file`, nobody can tell.
    """
    if path in seen:
        return True
    if isinstance(path, cst.Name):
        items = (item for item in source.every(cst.AsName) if source.code(item.name) == path.value)
        if any(isinstance(source.parent(item), cst.WithItem) for item in items):
            return True
        bound = binding_of(source, path)
        return bound is not None and bound.value is not None and _is_open(source, bound.value, (*seen, path))
    return isinstance(path, cst.Call) and call_name(path) in {"open", "BytesIO", "SpooledTemporaryFile"}


def _is_state(source: Source, call: cst.Call, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Dict):
        return True
    if isinstance(value, cst.Call):
        return call_name(value) in {"state_dict", "dict"}
    if isinstance(value, cst.Name):
        seen = reaching(source, statement_of(source, call), value.value)
        assigned = [seen.value] if seen.bound is Bound.ASSIGNED else _assigned(source, call, value.value)
        return bool(assigned) and all(
            isinstance(each, cst.Dict | cst.Call) and _is_state(source, call, each) for each in assigned
        )
    return False


def _assigned(source: Source, call: cst.Call, name: str) -> list[cst.BaseExpression]:
    """All that the name is ever made in the function."""
    return [
        assign.value
        for assign in source.every(cst.Assign, scope_of(source, call))
        if isinstance(assign.targets[0].target, cst.Name) and assign.targets[0].target.value == name
    ]


def _recorded(text: str) -> Request:
    return example_request("periodic-stall", text)


_TOP = "import torch\n"
_LOOP = "for step in range(9):\n    model(x).sum().backward()\n    optimizer.step()\n    if step % 3 == 0:\n"
_POLICY = "class Policy:\n    def save(self, path):\n        {}(self.net.state_dict(), path)\npolicy = Policy()\n"
_IMPORT = "from diagnose.background_saves import finish_saving, save_in_background\n"

FIXER = Fixer(
    name="async-checkpoint",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle+exposed_copy",
    order=20,
    examples=(
        Example(
            before=_TOP + _LOOP + "        state = {'step': step, 'model': model.state_dict()}\n"
            "        torch.save(state, folder / 'latest.pt')  # to resume\nprint('done')\n",
            after=_TOP + _IMPORT + _LOOP + "        state = {'step': step, 'model': model.state_dict()}\n"
            "        save_in_background(state, folder / 'latest.pt')  # to resume\nfinish_saving()\nprint('done')\n",
            request=_recorded,
        ),
        Example(
            before=_TOP + "def keep(path):\n    torch.save(model.state_dict(), path)\n\n"
            "def main():\n    for x in loader:\n        model(x).sum().backward()\n        keep('last.pt')\n",
            after=_TOP + _IMPORT + "def keep(path):\n    save_in_background(model.state_dict(), path)\n\n"
            "def main():\n    for x in loader:\n        model(x).sum().backward()\n        keep('last.pt')\n"
            "    finish_saving()\n",
            request=_recorded,
        ),
        Example(
            before="import numpy as np\n"
            + _TOP
            + _POLICY.format("torch.save")
            + _LOOP
            + "        policy.save('last.pt')\nnp.save('losses.npy', losses)\n",
            after="import numpy as np\n"
            + _TOP
            + _IMPORT
            + _POLICY.format("save_in_background")
            + _LOOP
            + "        policy.save('last.pt')\nfinish_saving()\nnp.save('losses.npy', losses)\n",
            request=_recorded,
        ),
        Example(
            before=_TOP
            + "state = torch.load('last.pt')\nmodel.load_state_dict(state)\nstate = None\n"
            + _LOOP
            + "        state = {'model': model.state_dict()}\n        torch.save(state, 'last.pt')\n",
            after=_TOP
            + _IMPORT
            + "state = torch.load('last.pt')\nmodel.load_state_dict(state)\nstate = None\n"
            + _LOOP
            + "        state = {'model': model.state_dict()}\n        save_in_background(state, 'last.pt')\n"
            "finish_saving()\n",
            request=_recorded,
        ),
        Example(_TOP + _LOOP + "        torch.save(model, 'model.pt')\n", None, _recorded),
        Example(
            _TOP + "state = {}\nstate = fill()\n" + _LOOP + "        torch.save(state, 'last.pt')\n", None, _recorded
        ),
        Example(
            _TOP + _LOOP + "        torch.save(model.state_dict(), name)\n        shutil.copyfile(name, 'best.pt')\n",
            None,
            _recorded,
        ),
        Example(_TOP + _LOOP + "        print(step)\ntorch.save(model.state_dict(), 'model.pt')\n", None, _recorded),
        Example(
            "import torch.distributed.checkpoint as dcp\n" + _LOOP + "        dcp.save(state, checkpoint_id='last')\n",
            None,
            _recorded,
        ),
    ),
)
