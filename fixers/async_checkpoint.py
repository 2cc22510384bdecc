"""Writes checkpoints while training goes on.

What it changes
    `torch.save(state, path)` in the training loop becomes `save_in_background(state, path)`, from a small file
    `diagnose_fixes.py` that the fix adds beside the script: it copies the state to the host in the step and writes it
    in a thread. `finish_saving()` after the loop waits for the last one.

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
    the same name, is the newer one and stays. What cannot be copied, and what goes to an open file or a pipe, is
    written in the step. Tensors in the file are on the CPU, except those inside of other objects: `torch.load` without
    `map_location` gives them there. The host holds a copy of the state that is being written and of the one that waits,
    and keeps their memory for the next. Left alone, with advice: a file that the program reads again, a state that is
    no dictionary, `torch.distributed.checkpoint`, which has `async_save` of its own.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Bound,
    Edits,
    EveryStep,
    Example,
    Fixer,
    Gate,
    Loop,
    Request,
    Source,
    Splice,
    Stretch,
    add_to_shim,
    call_name,
    example_request,
    import_from_shim,
    insert_after,
    loops_around,
    reaching,
    replace,
    scope_of,
    splice,
    statement_of,
    within,
)

from ._background_saves import CODE, IMPORTS

_ABOUT_DCP = (
    "saves with torch.distributed.checkpoint: its async_save(state, checkpoint_id=path) returns a future; wait for the "
    "one before with .result(), and build the process group with a backend for the CPU (cpu:gloo,cuda:nccl)."
)


def rewrite(request: Request) -> Answer:
    """Replace every save of the training loop that can be."""
    code = EveryStep(request.sources, request.finding.where)
    edits: dict[str, dict[Splice, None]] = {}
    reasons: list[str] = []
    used: dict[str, set[str]] = {}
    for stretch in code.stretches:
        if stretch.loop is None:
            continue
        for path, source, call in _saves(code, stretch, stretch.loop):
            reason = _why_not(source, call)
            if reason is not None:
                reasons.append(f"{path}:{source.lines_of(call)[0]} {reason}")
                continue
            edits.setdefault(path, {})[replace(source, call.func, "save_in_background")] = None
            used.setdefault(path, set()).add("save_in_background")
            outermost = [stretch.loop, *loops_around(stretch.source, stretch.loop)][-1]
            edits.setdefault(stretch.path, {})[insert_after(stretch.source, outermost, ["finish_saving()"])] = None
            used.setdefault(stretch.path, set()).add("finish_saving")
    if not edits:
        return Advice(" ".join(dict.fromkeys(reasons))) if reasons else None
    home = request.home
    if home is None:
        return Advice("Copy the state to pinned memory in the step and write it in a thread: the script is not ours.")
    for path, names in used.items():
        edits[path] |= dict.fromkeys(import_from_shim(code.sources[path], sorted(names)))
    files = {path: splice(code.sources[path].text, list(splices)) for path, splices in edits.items()}
    shim = add_to_shim(home, request.sources, IMPORTS, CODE)
    return Edits({**files, shim.path: shim.text}, "write checkpoints in a thread, by a new file diagnose_fixes.py")


def _saves(code: EveryStep, stretch: Stretch, loop: Loop) -> list[tuple[str, Source, cst.Call]]:
    """The saves in a loop, and in functions of the program's own that it calls."""
    found = [(stretch.path, stretch.source, call) for call in _saves_below(stretch.source, loop)]
    called = {call_name(call) for call in stretch.source.every(cst.Call, loop)}
    for path, source in code.sources.items():
        for function in source.every(cst.FunctionDef):
            if function.name.value in called and not within(source, function, loop):
                found += [(path, source, call) for call in _saves_below(source, function)]
    return found


def _saves_below(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    calls = source.every(cst.Call, node)
    return [call for call in calls if call_name(call) == "save" and _library(source, call) is not None]


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
    if _is_read_again(source, call):
        return "writes a file that the program reads again: wait for a thread that writes it before that, by hand."
    return None


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


def _is_read_again(source: Source, call: cst.Call) -> bool:
    """Whether anything after the save may open the file: a load, a copy, another use of the name of its path."""
    loops = loops_around(source, call)  # what comes before it in a loop comes after it in the next turn
    begin = source.span(loops[-1])[0] if loops else source.span(call)[1]
    if re.search(r"\btorch\.load\(|\.load_checkpoint\(|\bload_checkpoint\(", source.text[begin:]):
        return True
    path = call.args[1].value
    others = [each for each in source.every(cst.Call) if source.span(each)[0] >= begin and call_name(each) != "save"]
    if not isinstance(path, cst.Name) and any(
        source.code(arg.value) == source.code(path) and call_name(each) not in {"print", "info"}
        for each in others
        for arg in each.args
    ):
        return True
    names = {path.value} if isinstance(path, cst.Name) else set()
    uses = source.every(cst.Name, scope_of(source, call))
    end = source.span(call)[1]
    later = [use for use in uses if use.value in names and source.span(use)[0] > end]
    return any(
        isinstance(above, cst.Call) and call_name(above) not in {"print", "info", "save", "join"}
        for use in later
        for above in source.ancestors(use)
        if not isinstance(above, cst.FunctionDef | cst.Module)
    )


def _recorded(text: str) -> Request:
    return example_request("periodic-stall", text)


_TOP = "import torch\n"
_LOOP = "for step in range(9):\n    model(x).sum().backward()\n    optimizer.step()\n    if step % 3 == 0:\n"
_IMPORT = "\nfrom diagnose_fixes import finish_saving, save_in_background\n"

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
